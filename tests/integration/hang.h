/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_HANG_H
#define TESTS_INTEGRATION_HANG_H
/* A call of the daemon's simulated driver that hangs until the test lets it go on. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/integration/harness.h"

struct hang {
    char path[64];      /* the call hangs as long as there is this file */
    char variable[128]; /* for the daemon's environment */
};

/* call: as in GPUPOOL_SIM_HANG (gpu/sim/sim.h), "call[@device]:n". */
static inline void hang_plan(struct hang *hang, const char *call) {
    snprintf(hang->path, sizeof hang->path, "/tmp/gpupool-hang-XXXXXX");
    int fd = mkstemp(hang->path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(hang->variable, sizeof hang->variable, "GPUPOOL_SIM_HANG=%s:%s", call, hang->path);
}

static inline void hang_end(struct hang *hang) {
    assert_int_equal(unlink(hang->path), 0);
}

#endif
