/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/retries.h"

int (*gpupool_retried_real)(void **memory, size_t size_bytes);

static _Thread_local bool retries;

int gpupool_retried_cudaMalloc(void **memory, size_t size_bytes) {
    retries = true;
    int r = gpupool_retried_real(memory, size_bytes);
    retries = false;
    return r;
}

bool retries_now(void) {
    return retries;
}
