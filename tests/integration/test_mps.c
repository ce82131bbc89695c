/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon whose environment leads to an MPS must not become its client: it would lose its context with the
 * first worker that is killed under MPS. Where it looks for one is decided when the CUDA driver is loaded;
 * here that is a library which writes down what it finds then. (tests/gpu/run has a real MPS beside a real
 * daemon.)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/harness.h"

#define RECORD_SIZE 256u

static struct test_daemon daemon_;

/* Starts a daemon that looks for a GPU, and returns where its driver would have looked for MPS. */
static const char *recorded(const char *pipe_variable) {
    static char text[RECORD_SIZE];
    char record[64] = "/tmp/gpupool-test-record-XXXXXX", record_variable[128];
    int fd = mkstemp(record);

    assert_true(fd >= 0);
    close(fd);
    snprintf(record_variable, sizeof record_variable, "GPUPOOL_TEST_CUDA_RECORD=%s", record);
    const char *const environment[] = {record_variable, "LD_LIBRARY_PATH=" GPUPOOL_RECORDING_CUDA,
                                       pipe_variable, NULL};
    daemon_start(&daemon_, &(struct daemon_options){.config = "[host]\nlimit = 32MiB\n",
                                                    .gpu = "auto",
                                                    .environment = environment});
    daemon_stop(&daemon_);
    _cleanup_(fclosep) FILE *file = fopen(record, "re");
    assert_non_null(file);
    if (fgets(text, sizeof text, file) == NULL)
        text[0] = '\0';
    unlink(record);
    return text;
}

static void the_daemon_keeps_out_of_mps(void **state) {
    struct stat status;
    (void)state;

    /* the variable as a user has it who uses MPS; and not set, when the driver looks in a place that
     * everybody knows */
    static const char *const variables[] = {"CUDA_MPS_PIPE_DIRECTORY=/tmp", "CUDA_MPS_PIPE_DIRECTORY="};
    for (unsigned i = 0; i < 2; i++) {
        const char *pipes = recorded(variables[i]);
        assert_string_not_equal(pipes, ""); /* the library was there, and loaded */
        assert_string_not_equal(pipes, "/tmp");
        assert_string_not_equal(pipes, "the default place");
        assert_int_not_equal(stat(pipes, &status), 0); /* no MPS can be there */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_daemon_keeps_out_of_mps),
    };
    if (!test_is_simulated()) {
        fputs("skipped: here is a driver; tests/gpu/run sees to it\n", stderr);
        return 77;
    }
    return test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
