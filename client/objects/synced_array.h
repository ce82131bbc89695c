/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_SYNCED_ARRAY_H
#define CLIENT_OBJECTS_SYNCED_ARRAY_H
/*
 * A synchronised array, and what its calls begin and end with. The caller owns the array. Accesses are in
 * synced.c; the calls that make, change and end an array are in synced_array.c.
 *
 * An array has a device from the beginning, or from the first call on that needs one. Until then no GPU work
 * uses it. Where this process or the daemon has no GPU, an array never has a device, and those calls fail.
 *
 * A side whose copy is good has at least size_bytes. An array of 0 bytes needs no memory, and its accesses
 * copy, zero and order nothing.
 */
#include <limits.h>

#include "client/api/client.h"
#include "client/objects/synced_memory.h"

#define SYNCED_NO_DEVICE UINT_MAX

struct gpupool_synced {
    struct gpupool_client *client; /* borrowed */
    const struct gpu *gpu;         /* NULL: the array has no device yet */
    uint64_t size_bytes;
    unsigned device; /* SYNCED_NO_DEVICE while gpu is NULL */
    enum gpupool_synced_state state;
    struct synced_memory sides[2]; /* by enum synced_side */
    uint64_t copies_to[2], copies_between_devices, zeroed;
};

/* Begins a call that names a stream of the array's device, if it has one: INVALID for no array, or for
 * GPUPOOL_NO_STREAM; FORKED in a child. */
int array_enter_on(const struct gpupool_synced *array, const void *stream);

/* Begins a call that needs the device. An array without one gets the calling thread's current device. Also
 * NO_GPU, NO_POOL, DRIVER; then the array has no device still. */
int array_enter_device(struct gpupool_synced *array, const void *stream);

/* Ends a call that failed: says what it did, and to which array (NULL: to one that does not exist yet).
 * Returns error. */
int array_fail(int error, const char *doing, const struct gpupool_synced *array);

/* Says that there is no memory for bookkeeping. Returns NO_MEMORY. */
int array_no_memory(void);

#endif
