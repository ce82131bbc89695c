/* SPDX-License-Identifier: Apache-2.0 */
/* On the simulation a dead process's work needs no kernel: see GPUPOOL_SIM_LINGER_MS in gpu/sim/sim.h. */
#include "tests/gpu/kills.h"

int kills_start_kernel(void *const *memory, unsigned n_memory, size_t size_bytes, unsigned milliseconds) {
    (void)memory, (void)n_memory, (void)size_bytes, (void)milliseconds;
    return 0;
}
