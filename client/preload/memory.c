/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's device memory, pinned host memory and handles for other processes. As with the driver, freeing
 * waits for the device.
 */
#include "client/preload/driver.h"
#include "client/preload/lending.h"
#include "client/preload/report.h"
#include "client/preload/shared.h"

#define ELEMENT_BYTES_MIN 4u
#define ELEMENT_BYTES_MAX 16u
/* cuMemAllocPitch() aligns rows to this on all devices so far. */
#define PITCH_BYTES ((size_t)512)

/* --- device memory --- */

int gpupool_driver_cuMemAlloc_v2(uint64_t *memory, size_t size_bytes) {
    void *lent;
    int device;

    DRIVER_OR_FAIL(cuMemAlloc_v2);
    if (memory == NULL || size_bytes == 0 || !driver_may_lend(LEND_DEVICE, size_bytes, &device))
        return driver_real.cuMemAlloc_v2(memory, size_bytes);
    int r = lend(device, LEND_DEVICE, size_bytes, &lent);
    if (r == NOT_OURS)
        return driver_real.cuMemAlloc_v2(memory, size_bytes);
    if (r == 0)
        *memory = (uintptr_t)lent;
    return r;
}

/* Rows of the width, each on a boundary. Where the product does not fit, no memory does. */
static int lend_rows(int device, size_t width_bytes, size_t rows, size_t *ret_pitch, void **ret_memory) {
    size_t pitch, size_bytes;

    if (__builtin_add_overflow(width_bytes, PITCH_BYTES - 1, &pitch))
        return CUDA_MEMORY_ALLOCATION;
    pitch &= ~(PITCH_BYTES - 1);
    if (__builtin_mul_overflow(pitch, rows, &size_bytes))
        return CUDA_MEMORY_ALLOCATION;
    int r = lend(device, LEND_DEVICE, size_bytes, ret_memory);
    if (r == 0)
        *ret_pitch = pitch;
    return r;
}

int gpupool_driver_cuMemAllocPitch_v2(uint64_t *memory, size_t *pitch, size_t width_bytes, size_t rows,
                                      unsigned element_bytes) {
    void *lent;
    int device;

    DRIVER_OR_FAIL(cuMemAllocPitch_v2);
    bool is_element = element_bytes >= ELEMENT_BYTES_MIN && element_bytes <= ELEMENT_BYTES_MAX &&
                      (element_bytes & (element_bytes - 1)) == 0;
    if (memory == NULL || pitch == NULL || width_bytes == 0 || rows == 0 || !is_element ||
        !driver_may_lend(LEND_DEVICE, (uint64_t)width_bytes * rows, &device))
        return driver_real.cuMemAllocPitch_v2(memory, pitch, width_bytes, rows, element_bytes);
    int r = lend_rows(device, width_bytes, rows, pitch, &lent);
    if (r == NOT_OURS)
        return driver_real.cuMemAllocPitch_v2(memory, pitch, width_bytes, rows, element_bytes);
    if (r == 0)
        *memory = (uintptr_t)lent;
    return r;
}

int gpupool_driver_cuMemFree_v2(uint64_t memory) {
    DRIVER_OR_FAIL(cuMemFree_v2);
    int r = lend_release(driver_pointer(memory));
    return r == NOT_OURS ? driver_real.cuMemFree_v2(memory) : r;
}

/* --- pinned host memory --- */

static int lend_host(void **memory, size_t size_bytes) {
    void *lent;
    int device;

    if (memory == NULL || size_bytes == 0 || !driver_may_lend(LEND_HOST, size_bytes, &device))
        return NOT_OURS;
    int r = lend(device, LEND_HOST, size_bytes, &lent);
    if (r == 0)
        *memory = lent;
    return r;
}

int gpupool_driver_cuMemAllocHost_v2(void **memory, size_t size_bytes) {
    DRIVER_OR_FAIL(cuMemAllocHost_v2);
    int r = lend_host(memory, size_bytes);
    return r == NOT_OURS ? driver_real.cuMemAllocHost_v2(memory, size_bytes) : r;
}

/* Lent memory is portable and mapped, asked for or not, as the real one is under unified addressing. */
int gpupool_driver_cuMemHostAlloc(void **memory, size_t size_bytes, unsigned flags) {
    DRIVER_OR_FAIL(cuMemHostAlloc);
    int r =
        (flags & ~(CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED)) == 0 ? lend_host(memory, size_bytes) : NOT_OURS;
    if (r != NOT_OURS)
        return r;
    r = driver_real.cuMemHostAlloc(memory, size_bytes, flags);
    if (r == 0 && (flags & CUDA_HOST_WRITE_COMBINED) != 0)
        report_add(REPORT_WRITE_COMBINED, size_bytes);
    return r;
}

int gpupool_driver_cuMemFreeHost(void *memory) {
    DRIVER_OR_FAIL(cuMemFreeHost);
    int r = lend_release(memory);
    return r == NOT_OURS ? driver_real.cuMemFreeHost(memory) : r;
}

/* The real one knows memory that it allocated, and not memory that was registered. */
int gpupool_driver_cuMemHostGetFlags(unsigned *flags, void *memory) {
    struct gpupool_buffer buffer;

    DRIVER_OR_FAIL(cuMemHostGetFlags);
    if (flags == NULL || memory == NULL || lend_is_inside() || lend_find(memory, &buffer) != 0 ||
        buffer.kind != GPUPOOL_POOL_HOST)
        return driver_real.cuMemHostGetFlags(flags, memory);
    *flags = CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED;
    return 0;
}

/* --- sharing --- */

int gpupool_driver_cuIpcGetMemHandle(struct cuda_ipc_handle *handle, uint64_t memory) {
    DRIVER_OR_FAIL(cuIpcGetMemHandle);
    int r = handle == NULL || memory == 0 || lend_is_inside() ? NOT_OURS
                                                              : shared_export(driver_pointer(memory), handle);
    return r == NOT_OURS ? driver_real.cuIpcGetMemHandle(handle, memory) : r;
}

int gpupool_driver_cuIpcOpenMemHandle_v2(uint64_t *memory, struct cuda_ipc_handle handle, unsigned flags) {
    void *opened = NULL;
    int device;

    DRIVER_OR_FAIL(cuIpcOpenMemHandle_v2);
    int r = memory == NULL || lend_is_inside() || !driver_in_primary(&device)
                ? NOT_OURS
                : shared_open(device, &handle, &opened);
    if (r == NOT_OURS)
        return driver_real.cuIpcOpenMemHandle_v2(memory, handle, flags);
    if (r == 0)
        *memory = (uintptr_t)opened;
    return r;
}

int gpupool_driver_cuIpcCloseMemHandle(uint64_t memory) {
    DRIVER_OR_FAIL(cuIpcCloseMemHandle);
    int r = memory == 0 || lend_is_inside() ? NOT_OURS : shared_close(driver_pointer(memory));
    return r == NOT_OURS ? driver_real.cuIpcCloseMemHandle(memory) : r;
}

/* --- the rest --- */

/* A reset takes away the context that the mappings of lent memory live in, while libgpupool-client goes on
 * using it. So once there are such mappings it only waits. Memory that the program has on loan then stays on
 * loan. */
int gpupool_driver_cuDevicePrimaryCtxReset_v2(int device) {
    DRIVER_OR_FAIL(cuDevicePrimaryCtxReset_v2);
    if (lend_is_inside() || lend_client_if_open() == NULL)
        return driver_real.cuDevicePrimaryCtxReset_v2(device);
    return driver_wait(device);
}
