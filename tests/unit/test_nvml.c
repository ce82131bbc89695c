/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the questions to NVML, against a library of its name that stands in for it (fake_nvml.c, found by
 * LD_LIBRARY_PATH).
 */
#include "gpu/nvml.h"
#include "unit.h"

static const struct gpu_uuid known = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};

static void all_processes_are_counted_and_as_many_as_fit_are_told(void **state) {
    static const char *const counts[] = {"0", "1", "16", "17", "500"};
    pid_t pids[500];
    size_t count;

    (void)state;
    for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        size_t there = strtoul(counts[i], NULL, 10);

        setenv("FAKE_NVML_PROCESSES", counts[i], 1);
        count = 9999;
        assert_int_equal(nvml_compute_processes(&known, pids, 500, &count), 0);
        assert_int_equal(count, there);
        for (size_t k = 0; k < count; k++)
            assert_int_equal(pids[k], 1000 + k);
        assert_int_equal(nvml_compute_processes(&known, NULL, 0, &count), 0);
        assert_int_equal(count, there);
    }
    pids[2] = -1;
    assert_int_equal(nvml_compute_processes(&known, pids, 2, &count), 0);
    assert_int_equal(count, 500);
    assert_int_equal(pids[2], -1);
}

static void what_nvml_cannot_tell_is_not_supported(void **state) {
    struct gpu_uuid unknown = known;
    size_t count = 9999;
    pid_t pid = -1;

    (void)state;
    unknown.bytes[0] = 99;
    assert_int_equal(nvml_compute_processes(&unknown, &pid, 1, &count), GPU_ERROR_NOT_SUPPORTED);
    unsetenv("FAKE_NVML_PROCESSES");
    assert_int_equal(nvml_compute_processes(&known, &pid, 1, &count), GPU_ERROR_NOT_SUPPORTED);
    /* More than any machine has processes. */
    setenv("FAKE_NVML_PROCESSES", "4000000000", 1);
    assert_int_equal(nvml_compute_processes(&known, &pid, 1, &count), GPU_ERROR_NOT_SUPPORTED);
    assert_int_equal(count, 9999);
    assert_int_equal(pid, -1);
}

static void the_memory_of_a_device_is_told_and_its_loss(void **state) {
    struct gpu_uuid unknown = known;
    uint64_t free_bytes = 1, total_bytes = 2;

    (void)state;
    unknown.bytes[0] = 99;
    setenv("FAKE_NVML_FREE", "lost", 1);
    assert_int_equal(nvml_device_memory(&known, &free_bytes, &total_bytes), GPU_ERROR_DEVICES_UNAVAILABLE);
    unsetenv("FAKE_NVML_FREE");
    assert_int_equal(nvml_device_memory(&known, &free_bytes, &total_bytes), GPU_ERROR_NOT_SUPPORTED);
    assert_int_equal(free_bytes, 1);
    assert_int_equal(total_bytes, 2);
    setenv("FAKE_NVML_FREE", "300", 1);
    assert_int_equal(nvml_device_memory(&unknown, &free_bytes, &total_bytes), GPU_ERROR_NOT_SUPPORTED);
    assert_int_equal(nvml_device_memory(&known, &free_bytes, &total_bytes), 0);
    assert_int_equal(free_bytes, 300);
    assert_int_equal(total_bytes, 1000);
    unsetenv("FAKE_NVML_FREE");
}

static void clients_of_mps_are_told_apart(void **state) {
    struct gpu_process processes[40];
    size_t count;

    (void)state;
    setenv("FAKE_NVML_PROCESSES", "2", 1);
    setenv("FAKE_NVML_MPS", "30", 1);
    assert_int_equal(nvml_all_processes(processes, 40, &count), 0);
    assert_int_equal(count, 32);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(processes[i].pid, i < 2 ? 1000 + i : 5000 + i - 2);
        assert_int_equal(processes[i].under_mps, i >= 2);
        assert_int_equal(processes[i].used_bytes, i < 2 ? i : i - 2); /* as the fake has it */
    }
    processes[3].pid = -1;
    assert_int_equal(nvml_all_processes(processes, 3, &count), 0);
    assert_int_equal(count, 32);
    assert_int_equal(processes[3].pid, -1);
    unsetenv("FAKE_NVML_MPS"); /* who cannot tell of MPS tells of the rest */
    assert_int_equal(nvml_all_processes(processes, 40, &count), 0);
    assert_int_equal(count, 2);
    unsetenv("FAKE_NVML_PROCESSES");
    count = 9999;
    assert_int_equal(nvml_all_processes(processes, 40, &count), GPU_ERROR_NOT_SUPPORTED);
    assert_int_equal(count, 9999);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_processes_are_counted_and_as_many_as_fit_are_told),
        cmocka_unit_test(what_nvml_cannot_tell_is_not_supported),
        cmocka_unit_test(the_memory_of_a_device_is_told_and_its_loss),
        cmocka_unit_test(clients_of_mps_are_told_apart),
    };

    return cmocka_run_group_tests_name("nvml", tests, NULL, NULL);
}
