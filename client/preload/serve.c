/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/serve.h"

#include "client/preload/reclaim.h"

/* cudaMallocPitch() aligns rows to this on all devices so far. */
#define PITCH_BYTES ((size_t)512)

int serve_rows(const struct runtime *runtime, size_t width_bytes, size_t rows, size_t *ret_pitch,
               void **ret_memory) {
    size_t pitch, size_bytes;

    if (__builtin_add_overflow(width_bytes, PITCH_BYTES - 1, &pitch))
        return runtime_raise(runtime, CUDA_MEMORY_ALLOCATION);
    pitch &= ~(PITCH_BYTES - 1);
    if (__builtin_mul_overflow(pitch, rows, &size_bytes))
        return runtime_raise(runtime, CUDA_MEMORY_ALLOCATION);
    int r = lend(runtime, LEND_DEVICE, size_bytes, false, ret_memory);
    if (r == 0)
        *ret_pitch = pitch;
    return r;
}

int serve_free(const struct runtime *runtime, void *memory) {
    struct gpupool_buffer buffer;

    if (memory == NULL || lend_is_inside())
        return NOT_OURS;
    int r = lend_find(runtime, memory, &buffer);
    if (r == 0 && reclaim_collect(runtime, &buffer))
        return 0;
    if (r == 0)
        r = lend_wait(runtime, &buffer);
    return r == 0 ? lend_free(runtime, memory, GPUPOOL_NO_STREAM) : r;
}

int serve_free_behind(const struct runtime *runtime, void *memory, void *stream) {
    struct gpupool_buffer buffer;

    if (memory == NULL || lend_is_inside())
        return NOT_OURS;
    int r = lend_find(runtime, memory, &buffer);
    if (r != 0)
        return r;
    return buffer.kind == GPUPOOL_POOL_DEVICE ? lend_free(runtime, memory, stream) : NOT_OURS;
}
