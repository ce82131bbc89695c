/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_POOL_FACTS_H
#define CLIENT_CORE_POOL_FACTS_H
/*
 * The facts of a pool that the core is given when it makes a stream heap. They do not change while the client
 * is open, but for the limit, which an operator may change.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/core/fence.h"

struct piece;

struct pool_facts {
    uint32_t id;
    uint32_t kind;                    /* enum gpupool_pool_kind */
    int device;                       /* ordinal in this process; -1: host memory */
    bool is_movable;                  /* its segments can be mapped at several addresses, side by side */
    uint64_t limit_bytes;             /* as it was when the pools were listed last */
    const struct fence_array *fences; /* of the client; borrowed */
    void (*leave_map)(struct piece *piece); /* see struct piece_stock */
};

#endif
