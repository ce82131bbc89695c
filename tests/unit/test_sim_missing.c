/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the library of the simulated GPU is not installed, the caller is told which file is missing.
 */
#include "gpu/gpu.h"
#include "unit.h"

static void without_its_library_there_is_no_simulated_gpu(void **state) {
    const struct gpu *gpu = NULL;
    (void)state;

    assert_null(gpu_sim_missing()); /* nothing asked for it */
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(gpu_sim(&(struct gpu_sim_options){0}, &gpu), GPU_ERROR_INSUFFICIENT_DRIVER);
        assert_null(gpu);
        assert_non_null(strstr(gpu_sim_missing(), "/nonexistent/libgpupool-sim.so.0"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_its_library_there_is_no_simulated_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
