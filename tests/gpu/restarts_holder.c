/* SPDX-License-Identifier: Apache-2.0 */
/* The process of the program restarts that keeps much device memory throughout. */
#include "tests/gpu/restarts.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/gpu/kills.h"

#define HOLD_BYTES (512 * KILLS_MIB)
#define HOLDS_MAX  256u

static volatile sig_atomic_t told_to_stop;

static void on_stop(int number) {
    (void)number;
    told_to_stop = 1;
}

/* Says so when it has it all; looks at its end whether it still is as it was written. */
int restarts_holder(uint64_t gib) {
    static struct gpupool_buffer buffers[HOLDS_MAX];
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    uint8_t *found = malloc(HOLD_BYTES);
    struct gpupool_client *client;
    unsigned n = (unsigned)(gib * 1024 * KILLS_MIB / HOLD_BYTES);
    uint32_t pool;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, on_stop);
    if (n > HOLDS_MAX || found == NULL)
        return 1;
    kills_need(gpupool_open(&options, &client), "a holder connects");
    kills_need(gpupool_device_pool(client, 0, &pool), "the device pool");
    for (unsigned i = 0; i < n; i++) {
        kills_need(gpupool_acquire(client, pool, HOLD_BYTES, NULL, KILLS_PATIENCE_NS, 0, &buffers[i]),
                   "a hold");
        kills_need(gpupool_set(client, buffers[i].device, buffers[i].data, (int)i + 1, HOLD_BYTES, NULL),
                   "a fill");
    }
    kills_need(gpupool_stream_synchronize(client, buffers[0].device, NULL), "a wait for fills");
    if (write(STDOUT_FILENO, "r", 1) != 1)
        return 1;
    while (!told_to_stop)
        pause();
    for (unsigned i = 0; i < n; i++) {
        kills_need(gpupool_copy(client, buffers[i].device, found, buffers[i].data, HOLD_BYTES, NULL),
                   "a copy");
        kills_need(gpupool_stream_synchronize(client, buffers[i].device, NULL), "a wait for a copy");
        for (uint64_t k = 0; k < HOLD_BYTES; k++)
            if (found[k] != i + 1)
                return RESTARTS_FOREIGN;
        kills_need(gpupool_release(client, &buffers[i], NULL), "a release");
    }
    gpupool_close(client);
    return 0;
}
