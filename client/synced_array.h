/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SYNCED_ARRAY_H
#define CLIENT_SYNCED_ARRAY_H
/*
 * A synchronised array, and what its calls begin and end with. The caller owns the array. Accesses are in
 * synced.c; the calls that make, change and end an array are in synced_array.c.
 *
 * A side whose copy is good has at least size_bytes.
 */
#include "client/client.h"
#include "client/synced_memory.h"

struct gpupool_synced {
    struct gpupool_client *client; /* borrowed */
    const struct gpu *gpu;
    uint64_t size_bytes;
    unsigned device;
    enum gpupool_synced_state state;
    struct synced_memory sides[2]; /* by enum synced_side */
    uint64_t copies_to[2], copies_between_devices, zeroed;
};

/* Begins a call: INVALID for no array, FORKED in a child. */
int array_enter(const struct gpupool_synced *array);

/* Begins a call that names a stream: also INVALID for GPUPOOL_NO_STREAM. */
int array_enter_on(const struct gpupool_synced *array, const void *stream);

/* Ends a call that failed: says what it did, and to which array (NULL: to one that does not exist yet).
 * Returns error. */
int array_fail(int error, const char *doing, const struct gpupool_synced *array);

/* Says that there is no memory for bookkeeping. Returns NO_MEMORY. */
int array_no_memory(void);

#endif
