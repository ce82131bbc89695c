/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon in a network namespace of its own, as in a container, and clients outside of it. Takes root, and
 * leave to make namespaces. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/integration/puppet.h"

#define POOL_MIB   64u
#define SIZE_BYTES (5 * MIB)

static char config[TEST_CONFIG_SIZE];
static char script[] = "/tmp/gpupool-test-daemon-XXXXXX";
static struct test_daemon daemon_;

static int start_daemon(void **state) {
    (void)state;
    test_run_daemon_by(script, "unshare --net");
    daemon_start(&daemon_, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB)});
    return 0;
}

/* The second socket of the simulated GPU. */
static const char *sim_path(void) {
    static char path[sizeof daemon_.socket + 8];
    snprintf(path, sizeof path, "%s.sim", daemon_.socket);
    return path;
}

static int stop_daemon(void **state) {
    (void)state;
    unlink(script);
    daemon_stop(&daemon_);
    assert_int_not_equal(access(sim_path(), F_OK), 0);
    return 0;
}

static void a_daemon_takes_the_place_of_one_that_was_killed(void **state) {
    (void)state;
    assert_int_equal(access(sim_path(), F_OK) == 0, test_has_device() && test_is_simulated());
    daemon_crash(&daemon_);
    assert_int_equal(access(sim_path(), F_OK) == 0, test_has_device() && test_is_simulated());
    daemon_restart(&daemon_);
}

static void a_client_maps_and_shares_memory_of_the_device(void **state) {
    struct gpupool_token token;
    struct puppet writer, reader;
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    puppet_connect(&writer, &daemon_);
    puppet_connect(&reader, &daemon_);
    for (unsigned i = 0; i < count; i++) {
        PUPPET_MUST(&writer, puppet_acquire(&writer, i, kinds[i], SIZE_BYTES, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&writer, puppet_fill(&writer, i, 11));
        PUPPET_MUST(&writer, puppet_share(&writer, i, &token));
        PUPPET_MUST(&reader, puppet_attach(&reader, i, &token));
        PUPPET_MUST(&reader, puppet_check(&reader, i, 11));
    }
    puppet_quit(&writer);
    puppet_quit(&reader);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
}

/* The list of the processes that use the GPU is that of the connections. */
static void the_memory_of_a_killed_client_comes_back(void **state) {
    struct puppet worker;
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    puppet_connect(&worker, &daemon_);
    for (unsigned i = 0; i < count; i++)
        PUPPET_MUST(&worker, puppet_acquire(&worker, i, kinds[i], SIZE_BYTES, GPUPOOL_FOREVER, 0));
    puppet_kill(&worker);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0 && daemon_sum(&daemon_, "quarantined_bytes") == 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_maps_and_shares_memory_of_the_device),
        cmocka_unit_test(a_daemon_takes_the_place_of_one_that_was_killed),
        cmocka_unit_test(a_client_maps_and_shares_memory_of_the_device),
        cmocka_unit_test(the_memory_of_a_killed_client_comes_back),
    };
    int status = puppet_main(argc, argv, NULL);
    if (status >= 0)
        return status;
    if (geteuid() != 0 || system("unshare --net true 2>/dev/null") != 0) {
        fputs("skipped: this takes root, and leave to make namespaces\n", stderr);
        return 77;
    }
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
