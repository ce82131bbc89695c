/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_SYNCED_STATE_H
#define CLIENT_OBJECTS_SYNCED_STATE_H
/*
 * The effect of an access on a synchronised array: which of its two copies is the newer, what has to come
 * into one of them before it can be used, and what holds afterwards. Values only: client/objects/synced.c
 * copies, zeroes and waits, and then makes the new state the array's.
 *
 * A state is a set of the sides that are good, as the numbers of enum gpupool_synced_state say: bit 0 host,
 * bit 1 device.
 */
#include <stdbool.h>

#include "client/include/gpupool/synced.h"

enum synced_side {
    SYNCED_HOST = 0,
    SYNCED_DEVICE = 1,
};

/* A push or a pull, beside the accesses: the side is to be made good, and not to be written. */
#define SYNCED_FETCH 0

enum synced_fill {
    SYNCED_KEEP, /* what is in the side will do */
    SYNCED_ZERO,
    SYNCED_COPY, /* from the other side */
};

struct synced_step {
    enum synced_fill fill;
    bool needs_memory; /* of the side */
    bool writes;       /* the access writes the side, so its other uses must be over */
    enum gpupool_synced_state after;
};

static inline bool synced_is_good(enum gpupool_synced_state state, enum synced_side side) {
    return ((unsigned)state >> side & 1) != 0;
}

/* The state in which one side alone is good. */
static inline enum gpupool_synced_state synced_newer(enum synced_side side) {
    return side == SYNCED_HOST ? GPUPOOL_SYNCED_HOST_NEWER : GPUPOOL_SYNCED_DEVICE_NEWER;
}

/* The step of an access (enum gpupool_access, or SYNCED_FETCH) to a side. */
struct synced_step synced_step(enum gpupool_synced_state state, enum synced_side side, unsigned access);

/* The state after the memory of a side is gone, with what was in it. */
enum gpupool_synced_state synced_lose(enum gpupool_synced_state state, enum synced_side side);

#endif
