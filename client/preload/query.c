/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's answers about memory. Of memory on loan they tell the allocation, not the segment in which it
 * lies, so that all of them and the handles for other processes (shared.c) speak of the same range. Libraries
 * for communication, which map segments by these answers, are bound to the driver's own functions (audit.c).
 */
#include <stdlib.h>
#include <string.h>

#include "client/preload/driver.h"
#include "client/preload/lending.h"

#define POOLS_MAX 64u /* of a machine: PROTO_POOLS_MAX */

/* The allocation around an address. False: it is not on loan. */
static bool find(uint64_t address, struct gpupool_buffer *ret_buffer) {
    if (address == 0 || lend_is_inside() || lend_client_if_open() == NULL)
        return false;
    bool before = lend_enter();
    int r = gpupool_lookup(driver_pointer(address), NULL, ret_buffer);
    lend_leave(before);
    return r == 0;
}

int gpupool_driver_cuMemGetAddressRange_v2(uint64_t *base, size_t *size_bytes, uint64_t address) {
    struct gpupool_buffer buffer;

    DRIVER_OR_FAIL(cuMemGetAddressRange_v2);
    if ((base == NULL && size_bytes == NULL) || !find(address, &buffer))
        return driver_real.cuMemGetAddressRange_v2(base, size_bytes, address);
    if (base != NULL)
        *base = (uintptr_t)buffer.data;
    if (size_bytes != NULL)
        *size_bytes = buffer.size_bytes;
    return 0;
}

/* Writes an attribute of memory on loan. False: the driver's answer is right. */
static bool tell(void *value, int attribute, const struct gpupool_buffer *buffer) {
    switch (attribute) {
    case CUDA_POINTER_RANGE_START:
        *(uint64_t *)value = (uintptr_t)buffer->data;
        return true;
    case CUDA_POINTER_RANGE_SIZE:
        *(size_t *)value = buffer->size_bytes;
        return true;
    case CUDA_POINTER_IS_LEGACY_IPC: /* cuIpcGetMemHandle() gives a handle, on pools of both kinds */
        *(bool *)value = buffer->kind == GPUPOOL_POOL_DEVICE;
        return true;
    default:
        return false;
    }
}

int gpupool_driver_cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
    struct gpupool_buffer buffer;

    DRIVER_OR_FAIL(cuPointerGetAttribute);
    if (value != NULL && attribute >= CUDA_POINTER_IS_LEGACY_IPC && attribute <= CUDA_POINTER_RANGE_SIZE &&
        find(address, &buffer) && tell(value, attribute, &buffer))
        return 0;
    return driver_real.cuPointerGetAttribute(value, attribute, address);
}

/* An attribute that the driver cannot tell is 0 there, and no failure. */
int gpupool_driver_cuPointerGetAttributes(unsigned count, int *attributes, void **values, uint64_t address) {
    struct gpupool_buffer buffer;

    DRIVER_OR_FAIL(cuPointerGetAttributes);
    int r = driver_real.cuPointerGetAttributes(count, attributes, values, address);
    if (r != 0 || !find(address, &buffer))
        return r;
    for (unsigned i = 0; i < count; i++)
        if (values[i] != NULL)
            (void)tell(values[i], attributes[i], &buffer);
    return 0;
}

/* --- how much there is --- */

static bool wants_pool(void) {
    const char *wanted = getenv("GPUPOOL_MEMORY_INFO");
    return wanted == NULL || strcmp(wanted, "gpu") != 0;
}

/* The device's pool. False: there is none. */
static bool find_pool(int device, struct gpupool_pool *ret_pool) {
    struct gpupool_pool pools[POOLS_MAX];
    size_t count = 0;
    uint32_t id = 0;

    bool before = lend_enter();
    struct gpupool_client *client = lend_client();
    if (client != NULL &&
        (gpupool_device_pool(client, device, &id) < 0 || gpupool_pools(client, pools, POOLS_MAX, &count) < 0))
        count = 0;
    lend_leave(before);
    for (size_t i = 0; i < count && i < POOLS_MAX; i++)
        if (pools[i].id == id) {
            *ret_pool = pools[i];
            return true;
        }
    return false;
}

/* The pool's free memory with what it can still grow by, and its limit. The driver's answer stays where
 * GPUPOOL_MEMORY_INFO is "gpu", in another context than the primary one, and without a pool. */
int gpupool_driver_cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    struct gpupool_pool pool;
    int device;

    DRIVER_OR_FAIL(cuMemGetInfo_v2);
    int r = driver_real.cuMemGetInfo_v2(free_bytes, total_bytes);
    if (r != 0 || free_bytes == NULL || total_bytes == NULL || lend_is_inside() || !wants_pool() ||
        !driver_in_primary(&device) || !find_pool(device, &pool))
        return r;
    uint64_t growth_bytes =
        pool.limit_bytes > pool.reserved_bytes ? pool.limit_bytes - pool.reserved_bytes : 0;
    *free_bytes = pool.free_bytes + (growth_bytes < *free_bytes ? growth_bytes : *free_bytes);
    *total_bytes = pool.limit_bytes;
    return r;
}
