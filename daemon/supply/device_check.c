/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/supply/device_check.h"

#include <stdio.h>

#include "daemon/loop/worker.h"

/* An error that comes once is not one that stays. */
#define ATTEMPTS 3u

static int ask(const struct gpu *gpu, unsigned device, struct worker *worker, const char **ret_call) {
    uint64_t free_bytes, total_bytes;

    /* The first tells of work that went wrong; the second also asks the kernel, and so finds a GPU that has
     * gone while no program used it. */
    *ret_call = "cudaDeviceSynchronize";
    worker_enter_call(worker, *ret_call);
    int r = gpu->device_synchronize(device);
    if (r == 0) {
        *ret_call = "cudaMemGetInfo";
        worker_enter_call(worker, *ret_call);
        r = gpu->device_memory(device, &free_bytes, &total_bytes);
    }
    worker_leave_call(worker);
    return r == GPU_ERROR_MEMORY_ALLOCATION ? 0 : r;
}

bool device_answers(const struct gpu *gpu, unsigned device, struct worker *worker,
                    char error[BACKING_ERROR_SIZE]) {
    const char *call = NULL;
    int r = 0;

    for (unsigned i = 0; i < ATTEMPTS; i++) {
        r = ask(gpu, device, worker, &call);
        if (r == 0)
            return true;
    }
    snprintf(error, BACKING_ERROR_SIZE, "the device is lost: %s on device %u fails with %s (%s)", call,
             device, gpu->error_name(r), gpu->error_text(r));
    return false;
}
