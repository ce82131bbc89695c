/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_FAILING_CALLS_H
#define TESTS_INTEGRATION_FAILING_CALLS_H
/* The n-th failure loop of a test that plays the client itself: the n-th call of the simulated driver fails, or the n-th
 * allocation. */
#include <stdbool.h>

#include "gpu/gpu.h"
#include "gpu/sim/sim.h"
#include "tests/failing_memory.h"
#include "tests/integration/harness.h"

/* In a round the n-th call of the driver fails, or the n-th allocation. */
enum failing {
    FAILING_DRIVER,
    FAILING_MEMORY
};

static inline void arm_call(enum failing failing, unsigned n) {
    if (failing == FAILING_DRIVER)
        assert_int_equal(gpu_sim_fail("any", n, GPU_ERROR_MEMORY_ALLOCATION), 0);
    else
        memory_fail_nth(n);
}

/* No call fails any more. Returns whether one did. */
static inline bool disarm_call(enum failing failing) {
    bool failed = failing == FAILING_DRIVER ? gpu_sim_failed() : memory_failed();

    arm_call(failing, 0);
    return failed;
}

#endif
