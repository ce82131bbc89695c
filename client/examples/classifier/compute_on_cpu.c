/* SPDX-License-Identifier: Apache-2.0 */
/* In place of the kernels, for the simulated GPU: its device memory is ordinary memory, and what it cannot
 * run, the thread runs that waits for it. */
#include <stdio.h>

#include "compute.h"

static int run_on_cpu(const struct compute_work *work) {
    /* As a kernel would, it waits for what is enqueued before it: the copy of the pixels, and perhaps of the
     * weights. */
    if (gpupool_stream_synchronize(work->client, work->device, work->stream) < 0) {
        fprintf(stderr, "classifier: waiting for the input: %s\n", gpupool_error_text());
        return -1;
    }
    model_run(work->model, work->pixels, work->width, work->height, work->scores);
    return 0;
}

const struct compute compute_on_cpu = {"CPU", run_on_cpu};
