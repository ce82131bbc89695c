/* SPDX-License-Identifier: Apache-2.0 */
/* A library that is linked to the driver. plugins.cu loads it with RTLD_DEEPBIND. */
#include <cuda.h>

extern "C" __attribute__((visibility("default"))) int plugin_alloc(CUdeviceptr *memory, size_t size_bytes) {
    return cuMemAlloc(memory, size_bytes);
}

extern "C" __attribute__((visibility("default"))) int plugin_free(CUdeviceptr memory) {
    return cuMemFree(memory);
}
