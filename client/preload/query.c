/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's answers about memory. Of memory on loan they tell the allocation, not the segment in which it
 * lies, so that all of them and the handles for other processes (shared.c) speak of the same range. Libraries
 * for communication, which map segments by these answers, are bound to the driver's own functions (audit.c).
 */
#include "client/preload/driver.h"
#include "client/preload/lending.h"
#include "client/preload/serve.h"

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

int gpupool_driver_cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    DRIVER_OR_FAIL(cuMemGetInfo_v2);
    int r = driver_real.cuMemGetInfo_v2(free_bytes, total_bytes);
    if (r == 0 && driver_in_primary())
        serve_memory_info(&driver_runtime, free_bytes, total_bytes);
    return r;
}
