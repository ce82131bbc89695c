/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_POOL_H
#define CLIENT_SESSION_POOL_H
/*
 * The session's table of the daemon's pools: the part that does not change (id, kind, UUID, NUMA node; the
 * limit, only where the operator changes it), so that an acquire knows its device without asking. A session
 * owns one table. It is filled by the first list, and asked for again when an id is not in it.
 *
 * The lock is a leaf: nothing else is locked while it is held. An empty table is zero but for it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/proto.h"

struct request;
struct session;

struct pool {
    uint32_t id;
    enum proto_pool_kind kind;
    int numa_node;
    uint8_t uuid[PROTO_UUID_BYTES];
    uint64_t limit_bytes; /* as it was when the pools were listed last */
    bool is_movable;      /* its segments can be mapped side by side, see segment.h */
};

struct pools {
    pthread_mutex_t lock;
    unsigned count;
    struct pool list[PROTO_POOLS_MAX];
};

/* Asks the daemon, and remembers. On success the reply, a POOLS message, is the caller's to recycle, unless
 * ret_reply is NULL. */
int pools_fetch(struct session *session, struct request **ret_reply);

/* Looks a pool up, and asks the daemon where it is not known yet. Returns 0 and a copy, NO_POOL, or what the
 * connection says. */
int pools_find(struct session *session, uint32_t id, struct pool *ret_pool);

/* Looks up the first remembered pool that the function accepts. False, and *ret_pool untouched, where none
 * is. */
bool pools_look_up(struct pools *pools, bool (*accept)(const struct pool *pool, const void *wanted),
                   const void *wanted, struct pool *ret_pool);

/* As pools_look_up, asking the daemon where there is none. 0, NO_POOL (with a text
 * that says too little: the caller knows what was sought), or what the connection says. */
int pools_select(struct session *session, bool (*accept)(const struct pool *pool, const void *wanted),
                 const void *wanted, struct pool *ret_pool);

#endif
