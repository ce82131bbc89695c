/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In the place of cuda.c where the build had no CUDA toolkit: there is no real GPU for this program.
 */
#include "gpu/gpu.h"

int gpu_cuda(const struct gpu **ret_gpu) {
    (void)ret_gpu;
    return GPU_ERROR_INSUFFICIENT_DRIVER;
}

bool gpu_cuda_built(void) {
    return false;
}

const char *gpu_cuda_toolkit(void) {
    return "none";
}
