/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the daemon has a CUDA context: never with pools of descriptors that the driver clears, and with others
 * from their first segment on. The simulated driver refuses each call that needs a context which was not
 * asked for, so a daemon that goes on without one is not merely said to.
 *
 * Exit status 3 says that a daemon had a context, or needed one, which is what daemons with a fault have to
 * show.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/integration/puppet.h"

#define EXIT_CONTEXT 3
#define NO_CONTEXT   "cudaErrorDeviceUninitialized"

static bool context_seen;

/* A member of a pool as text; a truth value as "yes" or "no". */
static bool pool_says(struct test_daemon *daemon, const char *kind, int device, const char *member,
                      const char *value) {
    bool says = false;
    cJSON *reply = daemon_ask(daemon, "{\"command\":\"stats\"}"), *pool;

    cJSON_ArrayForEach(pool, cJSON_GetObjectItemCaseSensitive(reply, "pools")) {
        const cJSON *number = cJSON_GetObjectItemCaseSensitive(pool, "device");
        const cJSON *found = cJSON_GetObjectItemCaseSensitive(pool, member);
        const char *text =
            cJSON_IsBool(found) ? (cJSON_IsTrue(found) ? "yes" : "no") : cJSON_GetStringValue(found);
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(pool, "kind")), kind) == 0 &&
            (!cJSON_IsNumber(number) || number->valueint == device) && text != NULL &&
            strcmp(text, value) == 0)
            says = true;
    }
    cJSON_Delete(reply);
    return says;
}

static bool has_context(struct test_daemon *daemon, int device) {
    return pool_says(daemon, "device", device, "context", "yes");
}

static void must_have_none(struct test_daemon *daemon, int device, const char *when) {
    if (!has_context(daemon, device))
        return;
    context_seen = true;
    fail_msg("the daemon has a context %s", when);
}

static int acquire(struct puppet *puppet, unsigned slot, unsigned kind, int device, uint64_t size_bytes) {
    return puppet_call(puppet, &(struct puppet_command){.verb = PUPPET_ACQUIRE,
                                                        .slot = slot,
                                                        .kind = kind,
                                                        .device = device,
                                                        .size = size_bytes,
                                                        .timeout_ns = GPUPOOL_FOREVER});
}

/* A growth that fails for want of a context is the same fault as a context. */
static void must_grow(struct puppet *puppet, unsigned slot, unsigned kind, int device, uint64_t size_bytes) {
    if (acquire(puppet, slot, kind, device, size_bytes) == 0)
        return;
    context_seen = strstr(puppet->answer.text, NO_CONTEXT) != NULL;
    fail_msg("%s", puppet->answer.text);
}

#define VMM_CONFIG                                                                                           \
    "[device]\nexport = vmm\nlimit = 64MiB\nreserve = 4MiB\nlow_water = 2MiB\n[host]\nlimit = 32MiB\nstep "  \
    "= 4MiB\n"

/* Leases, shares, growth, the death of a process, memory that is given back and made anew. */
static void use_all(struct test_daemon *daemon, unsigned kind, const char *name) {
    struct puppet holder, other;
    struct gpupool_token token;

    puppet_connect(&holder, daemon);
    puppet_connect(&other, daemon);
    must_grow(&holder, 0, kind, 0, 6 * MIB);
    PUPPET_MUST(&holder, puppet_check(&holder, 0, 0));
    PUPPET_MUST(&holder, puppet_fill(&holder, 0, 1));
    PUPPET_MUST(&holder, puppet_share(&holder, 0, &token));
    PUPPET_MUST(&other, puppet_attach(&other, 0, &token));
    PUPPET_MUST(&other, puppet_check(&other, 0, 1));
    must_grow(&other, 1, kind, 0, 16 * MIB);
    PUPPET_MUST(&other, puppet_check(&other, 1, 0));
    must_have_none(daemon, 0, "while memory is lent");
    puppet_kill(&holder);
    PUPPET_MUST(&other, puppet_release(&other, 0));
    WAIT_UNTIL(daemon_sum(daemon, "quarantined_bytes") == 0);
    must_have_none(daemon, 0, "after a process died");
    PUPPET_MUST(&other, puppet_fill(&other, 1, 2));
    puppet_quit(&other);
    WAIT_UNTIL(daemon_number(daemon, "sessions") == 0);
    uint64_t retires = daemon_pool(daemon, name, 0, "retires");
    cJSON_Delete(daemon_ask(daemon, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(daemon_pool(daemon, name, 0, "retires") > retires);
    puppet_connect(&other, daemon);
    must_grow(&other, 0, kind, 0, 24 * MIB);
    PUPPET_MUST(&other, puppet_check(&other, 0, 0));
    must_have_none(daemon, 0, "after memory was made anew");
    puppet_quit(&other);
}

static void a_daemon_of_descriptors_makes_none(void **state) {
    static const char *const environment[] = {"WATCHDOG_USEC=200000", NULL}; /* checks of idle devices */
    struct test_daemon daemon;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = VMM_CONFIG, .environment = environment});
    WAIT_UNTIL(daemon_pool(&daemon, "device", 0, "reserved_bytes") >= 4 * MIB ||
               daemon_logged(&daemon, NO_CONTEXT));
    context_seen |= daemon_logged(&daemon, NO_CONTEXT);
    assert_false(context_seen);
    must_have_none(&daemon, 0, "with a reserve");
    assert_true(pool_says(&daemon, "device", 0, "zeroed_by", "driver"));
    assert_true(pool_says(&daemon, "host", -1, "zeroed_by", "kernel"));
    use_all(&daemon, GPUPOOL_POOL_DEVICE, "device");
    use_all(&daemon, GPUPOOL_POOL_HOST, "host");
    assert_false(daemon_logged(&daemon, "CUDA context"));
    daemon_stop(&daemon);
}

static void host_memory_of_the_driver_needs_none(void **state) {
    struct test_daemon daemon;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){
                              .config = "[host]\nexport = vmm\nlimit = 64MiB\n[device]\nlimit = 32MiB\n"});
    assert_true(pool_says(&daemon, "host", -1, "zeroed_by", "driver"));
    use_all(&daemon, GPUPOOL_POOL_HOST, "host");
    must_have_none(&daemon, 0, "with host memory alone");
    daemon_stop(&daemon);
}

static void a_daemon_of_ipc_handles_makes_one_with_the_first_segment(void **state) {
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nexport = ipc\nlimit = 32MiB\n",
                                                   .sim_gpus = 2});
    must_have_none(&daemon, 0, "before a segment");
    assert_true(pool_says(&daemon, "device", 0, "state", "ready"));
    assert_true(pool_says(&daemon, "device", 1, "zeroed_by", "daemon"));
    puppet_connect(&worker, &daemon);
    PUPPET_MUST(&worker, acquire(&worker, 0, GPUPOOL_POOL_DEVICE, 1, 4 * MIB));
    assert_true(has_context(&daemon, 1));
    assert_false(has_context(&daemon, 0));
    /* The simulation's context takes no memory of a GPU, and the log does not tell of it. */
    assert_int_equal(daemon_logged(&daemon, "a CUDA context on device 1"), strcmp(test_gpu(), "cuda") == 0);
    assert_false(daemon_logged(&daemon, "a CUDA context on device 0"));
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

static void memory_is_set_to_zero_where_that_is_asked_for(void **state) {
    static const char *const environment[] = {"GPUPOOL_SIM_UNCLEAN=silent", NULL};
    static const char *const configs[] = {
        "[device]\nexport = vmm\nlimit = 32MiB\nzero = daemon\n[host]\nlimit = 32MiB\n",
        "[device]\nlimit = 32MiB\n[host]\nexport = vmm\nlimit = 32MiB\nzero = daemon\n"};
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const char *name = i == 0 ? "device" : "host";
        daemon_start(&daemon, &(struct daemon_options){.config = configs[i], .environment = environment});
        assert_true(pool_says(&daemon, name, -1 + (i == 0), "zeroed_by", "daemon"));
        must_have_none(&daemon, 0, "before a segment");
        puppet_connect(&worker, &daemon);
        PUPPET_MUST(&worker, acquire(&worker, 0, i == 0 ? GPUPOOL_POOL_DEVICE : GPUPOOL_POOL_HOST,
                                     i == 0 ? 0 : -1, 4 * MIB));
        PUPPET_MUST(&worker, puppet_check(&worker, 0, 0));
        assert_true(has_context(&daemon, 0));
        puppet_quit(&worker);
        daemon_stop(&daemon);
    }
}

/* A reload says what the next segment's memory is set by. */
static void it_can_be_asked_for_while_the_daemon_runs(void **state) {
    static const char *const environment[] = {"GPUPOOL_SIM_UNCLEAN=silent", NULL};
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nexport = vmm\nlimit = 32MiB\n",
                                                   .environment = environment});
    puppet_connect(&worker, &daemon);
    PUPPET_MUST(&worker, acquire(&worker, 0, GPUPOOL_POOL_DEVICE, 0, 4 * MIB));
    PUPPET_MUST_BE(&worker, puppet_check(&worker, 0, 0),
                   1); /* this driver does not clear, and nothing says so */
    must_have_none(&daemon, 0, "before it is asked for");
    daemon_write_config(&daemon, "[device]\nexport = vmm\nlimit = 32MiB\nzero = daemon\n");
    daemon_signal(&daemon, SIGHUP);
    WAIT_UNTIL(pool_says(&daemon, "device", 0, "zeroed_by", "daemon"));
    PUPPET_MUST(&worker, acquire(&worker, 1, GPUPOOL_POOL_DEVICE, 0, 16 * MIB));
    PUPPET_MUST(&worker, puppet_check(&worker, 1, 0));
    assert_true(has_context(&daemon, 0));
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

static void a_driver_that_says_that_it_does_not_clear_has_the_daemon_do_it(void **state) {
    static const char *const environment[] = {"GPUPOOL_SIM_UNCLEAN=told", NULL};
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    daemon_start(&daemon,
                 &(struct daemon_options){.config = "[device]\nexport = vmm\nlimit = 32MiB\nzero = driver\n",
                                          .environment = environment});
    assert_true(daemon_logged(&daemon, "keeps it from clearing memory"));
    assert_true(pool_says(&daemon, "device", 0, "zeroed_by", "daemon"));
    puppet_connect(&worker, &daemon);
    PUPPET_MUST(&worker, acquire(&worker, 0, GPUPOOL_POOL_DEVICE, 0, 4 * MIB));
    PUPPET_MUST(&worker, puppet_check(&worker, 0, 0));
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

/* The daemon serves without it, and says once what it does not learn. */
static void a_missing_nvml_is_told(void **state) {
    static const char *const environment[] = {"GPUPOOL_SIM_FAIL=device_memory:1+:801", "WATCHDOG_USEC=100000",
                                              NULL};
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = VMM_CONFIG, .environment = environment});
    WAIT_UNTIL(daemon_logged(&daemon, "NVML (libnvidia-ml.so.1) is missing"));
    assert_true(pool_says(&daemon, "device", 0, "state", "ready"));
    puppet_connect(&worker, &daemon);
    must_grow(&worker, 0, GPUPOOL_POOL_DEVICE, 0, 4 * MIB);
    PUPPET_MUST(&worker, puppet_check(&worker, 0, 0));
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

/* The context is what fails: the request is told, and the next one tries again. */
static void a_context_that_cannot_be_made_fails_the_growth(void **state) {
    static const char *const environment[] = {"GPUPOOL_SIM_FAIL=context_make:1:46", NULL};
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    daemon_start(&daemon,
                 &(struct daemon_options){.config = "[device]\nexport = ipc\nlimit = 32MiB\nstep = 4MiB\n",
                                          .environment = environment});
    puppet_connect(&worker, &daemon);
    PUPPET_MUST_BE(&worker, acquire(&worker, 0, GPUPOOL_POOL_DEVICE, 0, 4 * MIB), GPUPOOL_E_DRIVER);
    PUPPET_SAID(&worker, "cuDevicePrimaryCtxRetain");
    assert_true(pool_says(&daemon, "device", 0, "state", "ready"));
    PUPPET_MUST(&worker, acquire(&worker, 0, GPUPOOL_POOL_DEVICE, 0, 4 * MIB));
    PUPPET_MUST(&worker, puppet_check(&worker, 0, 0));
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_daemon_of_descriptors_makes_none),
        cmocka_unit_test(host_memory_of_the_driver_needs_none),
        cmocka_unit_test(a_daemon_of_ipc_handles_makes_one_with_the_first_segment),
        cmocka_unit_test(memory_is_set_to_zero_where_that_is_asked_for),
        cmocka_unit_test(it_can_be_asked_for_while_the_daemon_runs),
        cmocka_unit_test(a_driver_that_says_that_it_does_not_clear_has_the_daemon_do_it),
        cmocka_unit_test(a_missing_nvml_is_told),
        cmocka_unit_test(a_context_that_cannot_be_made_fails_the_growth),
    };
    int status = puppet_main(argc, argv, NULL);
    if (status >= 0)
        return status;
    if (!test_is_simulated()) {
        fputs("skipped: the simulated driver alone refuses calls without a context\n", stderr);
        return 77;
    }
    status = cmocka_run_group_tests(tests, NULL, NULL);
    return context_seen ? EXIT_CONTEXT : status;
}
