/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs that are lost while the daemon runs, and driver calls of it that do not come back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/hang.h"
#include "tests/integration/puppet.h"

#define CONFIG                                                                                               \
    "[device]\nlimit = 32MiB\nstep = 4MiB\nlow_water = 0\n[host]\nlimit = 32MiB\nstep = 4MiB\nlow_water = "  \
    "0\n"

static const char *config(void) {
    static char text[TEST_CONFIG_SIZE];
    snprintf(text, sizeof text, "%s%s", CONFIG, test_zero_lines());
    return text;
}

static void start_daemon(struct test_daemon *daemon, const char *const *environment, unsigned gpus) {
    daemon_start(daemon,
                 &(struct daemon_options){.config = config(), .environment = environment, .sim_gpus = gpus});
}

static void send_acquire_on(struct puppet *puppet, unsigned slot, int device, uint64_t size,
                            uint64_t timeout_ns) {
    puppet_send(puppet, &(struct puppet_command){.verb = PUPPET_ACQUIRE,
                                                 .slot = slot,
                                                 .kind = GPUPOOL_POOL_DEVICE,
                                                 .device = device,
                                                 .size = size,
                                                 .timeout_ns = timeout_ns});
}

static int acquire_on(struct puppet *puppet, unsigned slot, int device, uint64_t size) {
    send_acquire_on(puppet, slot, device, size, GPUPOOL_FOREVER);
    return puppet_receive(puppet);
}

/* Whether a text member of a device's pool has a part; false for null. */
static bool device_says(struct test_daemon *daemon, int device, const char *member, const char *part) {
    bool says = false;
    cJSON *reply = daemon_ask(daemon, "{\"command\":\"pools\"}"), *pool;

    cJSON_ArrayForEach(pool, cJSON_GetObjectItemCaseSensitive(reply, "pools")) {
        const cJSON *number = cJSON_GetObjectItemCaseSensitive(pool, "device");
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(pool, member));
        if (cJSON_IsNumber(number) && number->valueint == device && text != NULL &&
            strstr(text, part) != NULL)
            says = true;
    }
    cJSON_Delete(reply);
    return says;
}

static void use(struct puppet *puppet, unsigned slot, unsigned seed) {
    PUPPET_MUST(puppet, puppet_fill(puppet, slot, seed));
    PUPPET_MUST(puppet, puppet_check(puppet, slot, seed));
    PUPPET_MUST(puppet, puppet_release(puppet, slot));
}

/* --- lost --- */

static void a_lost_device_closes_its_pool_and_no_other(void **state) {
    /* NVML does not know the GPU any more, either: the dead of the other pools must not wait for that. */
    static const char *const one_growth[] = {"GPUPOOL_SIM_FAIL=memory_allocate@1:2!:214,processes@1:1+:999",
                                             NULL};
    static const char *const two_growths[] = {"GPUPOOL_SIM_FAIL=memory_allocate@1:3!:214,processes@1:1+:999",
                                              NULL};
    /* Segments of descriptors are of 2 MiB in so small a pool: the victim's memory is in one of its own. */
    const char *const *environment = test_exports_vmm() ? two_growths : one_growth;
    struct puppet holder, waiter, victim;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    start_daemon(&daemon, environment, 2);
    puppet_connect(&holder, &daemon);
    puppet_connect(&waiter, &daemon);
    puppet_connect(&victim, &daemon);
    PUPPET_MUST(&holder, acquire_on(&holder, 0, 1, 2 * MIB));
    PUPPET_MUST(&holder, puppet_fill(&holder, 0, 3));
    PUPPET_MUST(&holder, puppet_share(&holder, 0, &token));
    PUPPET_MUST(&holder, acquire_on(&holder, 1, 0, MIB));
    PUPPET_MUST(&victim, acquire_on(&victim, 0, 1, MIB));
    PUPPET_MUST(&victim, acquire_on(&victim, 1, 0, MIB));
    assert_true(device_says(&daemon, 1, "state", "ready"));

    /* the growth that it needs is where the device goes */
    PUPPET_MUST_BE(&waiter, acquire_on(&waiter, 0, 1, 8 * MIB), GPUPOOL_E_DRIVER);
    PUPPET_SAID(&waiter, "cudaErrorECCUncorrectable");
    PUPPET_SAID(&waiter, "lost");
    assert_true(device_says(&daemon, 1, "state", "lost"));
    assert_true(device_says(&daemon, 1, "last_error", "cudaErrorECCUncorrectable"));
    assert_true(daemon_logged(&daemon, "the device is lost"));
    assert_int_equal(daemon_pool(&daemon, "device", 1, "growing_bytes"), 0);

    /* nothing more is lent of it, although there would be room, nor is anything shared */
    PUPPET_MUST_BE(&waiter, acquire_on(&waiter, 0, 1, 4096), GPUPOOL_E_DRIVER);
    PUPPET_SAID(&waiter, "cudaErrorECCUncorrectable");
    PUPPET_MUST_BE(&waiter, puppet_attach(&waiter, 0, &token), GPUPOOL_E_DRIVER);
    PUPPET_SAID(&waiter, "lost");

    /* what is leased can still be given back, and what is dead comes back, of this pool and of the others */
    PUPPET_MUST(&holder, puppet_query(&holder, 0));
    PUPPET_MUST(&holder, puppet_release(&holder, 0));
    puppet_kill(&victim);
    WAIT_UNTIL(daemon_sum(&daemon, "quarantined_bytes") == 0 && daemon_number(&daemon, "sessions") == 2);
    assert_int_equal(daemon_pool(&daemon, "device", 1, "leased_bytes"), 0);
    uint64_t reserved = daemon_pool(&daemon, "device", 1, "reserved_bytes");
    cJSON_Delete(daemon_ask(&daemon, "{\"command\":\"trim\"}"));
    assert_int_equal(daemon_pool(&daemon, "device", 1, "reserved_bytes"), reserved); /* it cannot be freed */

    assert_true(device_says(&daemon, 0, "state", "ready"));
    use(&holder, 1, 4);
    PUPPET_MUST(&waiter, acquire_on(&waiter, 0, 0, 8 * MIB));
    use(&waiter, 0, 5);
    PUPPET_MUST(&waiter, puppet_acquire(&waiter, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    use(&waiter, 0, 6);
    puppet_quit(&holder);
    puppet_quit(&waiter);
    daemon_stop(&daemon);
}

static void those_who_wait_for_a_lost_device_are_told(void **state) {
    struct puppet holder, waiters[3];
    struct test_daemon daemon;
    struct hang hang;

    (void)state;
    if (!test_is_simulated())
        skip();
    hang_plan(&hang, "memory_allocate@0:2");
    const char *const environment[] = {hang.variable, "GPUPOOL_SIM_FAIL=memory_set@0:2!:700", NULL};
    start_daemon(&daemon, environment, 1);
    puppet_connect(&holder, &daemon);
    PUPPET_MUST(&holder, acquire_on(&holder, 0, 0, 4 * MIB));
    for (unsigned i = 0; i < 3; i++) {
        puppet_connect(&waiters[i], &daemon);
        send_acquire_on(&waiters[i], 0, 0, 8 * MIB, GPUPOOL_FOREVER);
    }
    WAIT_UNTIL(daemon_pool(&daemon, "device", 0, "waiters") == 3);
    hang_end(&hang);
    for (unsigned i = 0; i < 3; i++) {
        PUPPET_MUST_BE(&waiters[i], puppet_receive(&waiters[i]), GPUPOOL_E_DRIVER);
        PUPPET_SAID(&waiters[i], "cudaErrorIllegalAddress");
        puppet_quit(&waiters[i]);
    }
    assert_int_equal(daemon_pool(&daemon, "device", 0, "waiters"), 0);
    puppet_quit(&holder);
    daemon_stop(&daemon);
}

static void a_device_that_is_lost_while_nobody_uses_it_is_found(void **state) {
    static const char *const environment[] = {"GPUPOOL_SIM_FAIL=device_check@1:3!:999",
                                              "WATCHDOG_USEC=300000", NULL};
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_is_simulated())
        skip();
    start_daemon(&daemon, environment, 2);
    WAIT_UNTIL(device_says(&daemon, 1, "state", "lost"));
    assert_true(device_says(&daemon, 1, "last_error", "cudaErrorUnknown"));
    puppet_connect(&worker, &daemon);
    PUPPET_MUST_BE(&worker, acquire_on(&worker, 0, 1, MIB), GPUPOOL_E_DRIVER);
    PUPPET_MUST(&worker, acquire_on(&worker, 0, 0, MIB));
    use(&worker, 0, 1);
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

/* An error that comes once, however bad its name, closes nothing. */
static void a_device_that_answers_again_is_not_lost(void **state) {
    static const char *const environment[] = {
        "GPUPOOL_SIM_FAIL=ipc_export:1:719,device_check:2:700,device_check:3:700", NULL};
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_is_simulated())
        skip();
    start_daemon(&daemon, environment, 1);
    puppet_connect(&worker, &daemon);
    PUPPET_MUST_BE(&worker, acquire_on(&worker, 0, 0, 4 * MIB), GPUPOOL_E_DRIVER);
    PUPPET_SAID(&worker, "cudaErrorLaunchFailure");
    assert_true(device_says(&daemon, 0, "state", "ready"));
    PUPPET_MUST(&worker, acquire_on(&worker, 0, 0, 4 * MIB));
    use(&worker, 0, 1);
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

/* --- hanging --- */

static void the_stats_name_the_call_that_hangs(void **state) {
    static const struct {
        const char *call, *name;
        bool frees;
    } calls[] = {
        {"memory_allocate@1:1", "cudaMalloc", false},
        {"memory_set@1:1", "cudaMemsetAsync", false},
        {"stream_synchronize@1:1", "cudaStreamSynchronize", false},
        {"ipc_export@1:1", "cudaIpcGetMemHandle", false},
        {"memory_free@1:1", "cudaFree", true},
    };

    (void)state;
    if (!test_is_simulated())
        skip();
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct puppet stuck, other;
        struct test_daemon daemon;
        struct hang hang;
        hang_plan(&hang, calls[i].call);
        const char *const environment[] = {hang.variable, NULL};
        start_daemon(&daemon, environment, 2);
        puppet_connect(&stuck, &daemon);
        puppet_connect(&other, &daemon);
        if (calls[i].frees) {
            PUPPET_MUST(&stuck, acquire_on(&stuck, 0, 1, MIB));
            puppet_quit(&stuck);
            cJSON_Delete(daemon_ask(&daemon, "{\"command\":\"trim\"}"));
        } else {
            send_acquire_on(&stuck, 0, 1, MIB, GPUPOOL_FOREVER);
        }
        WAIT_UNTIL(device_says(&daemon, 1, "worker_call", test_device_call(calls[i].name)));
        uint64_t first_ns = daemon_pool(&daemon, "device", 1, "worker_call_ns");
        assert_true(daemon_pool(&daemon, "device", 1, "worker_call_ns") >= first_ns);
        PUPPET_MUST(&other, acquire_on(&other, 0, 0, MIB));
        use(&other, 0, 1);
        PUPPET_MUST(&other, puppet_acquire(&other, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
        use(&other, 0, 2);
        hang_end(&hang);
        if (!calls[i].frees) {
            PUPPET_MUST(&stuck, puppet_receive(&stuck));
            puppet_quit(&stuck);
        }
        WAIT_UNTIL(!device_says(&daemon, 1, "worker_call", test_device_call(calls[i].name)));
        puppet_quit(&other);
        daemon_stop(&daemon);
    }
}

static void a_call_that_never_returns_is_in_the_refusal_and_holds_nobody_up_at_the_end(void **state) {
    static const char *const environment[] = {"GPUPOOL_SIM_HANG=memory_allocate@1:1:3600000",
                                              "WATCHDOG_USEC=150000", NULL};
    struct puppet stuck, other;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    start_daemon(&daemon, environment, 2);
    puppet_connect(&stuck, &daemon);
    puppet_connect(&other, &daemon);
    send_acquire_on(&stuck, 0, 1, MIB, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_logged(&daemon, TEST_HANGS));
    send_acquire_on(&other, 0, 1, MIB, 1);
    PUPPET_MUST_BE(&other, puppet_receive(&other), GPUPOOL_E_EXHAUSTED);
    PUPPET_SAID(&other, TEST_HANGS);
    PUPPET_MUST(&other, acquire_on(&other, 0, 0, MIB));
    use(&other, 0, 1);
    puppet_kill(&stuck);
    puppet_quit(&other);
    WAIT_UNTIL(daemon_number(&daemon, "sessions") == 0);
    daemon_signal(&daemon, SIGTERM);
    int status = daemon_wait(&daemon);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE);
    assert_true(daemon_logged(&daemon, "the daemon ends without it"));
    assert_int_not_equal(access(daemon.socket, F_OK), 0);
    daemon_remove(&daemon);
}

/* The daemon cannot know then which dead process's work is over. */
static void a_list_of_processes_that_does_not_come_keeps_the_dead_waiting_and_nobody_else(void **state) {
    struct puppet victim, other;
    struct test_daemon daemon;
    struct hang hang;

    (void)state;
    if (!test_is_simulated())
        skip();
    hang_plan(&hang, "processes:1");
    const char *const environment[] = {hang.variable, "WATCHDOG_USEC=150000", NULL};
    start_daemon(&daemon, environment, 1);
    puppet_connect(&victim, &daemon);
    puppet_connect(&other, &daemon);
    PUPPET_MUST(&victim, acquire_on(&victim, 0, 0, MIB));
    puppet_kill(&victim);
    WAIT_UNTIL(daemon_logged(&daemon, "list of processes (NVML) does not come"));
    PUPPET_MUST(&other, acquire_on(&other, 0, 0, MIB));
    use(&other, 0, 1);
    assert_int_equal(daemon_sum(&daemon, "quarantined_bytes"), MIB);
    hang_end(&hang);
    WAIT_UNTIL(daemon_sum(&daemon, "quarantined_bytes") == 0);
    WAIT_UNTIL(daemon_logged(&daemon, "comes again"));
    puppet_quit(&other);
    daemon_stop(&daemon);
}

/* --- each call, and at random --- */

/* More driver calls than the scene below has in the daemon, but for the questions that it repeats. */
#define DAEMON_CALLS 24u

static bool is_at_rest(struct test_daemon *daemon) {
    return daemon_number(daemon, "sessions") == 0 && daemon_sum(daemon, "leases") == 0 &&
           daemon_sum(daemon, "quarantined_bytes") == 0 && daemon_sum(daemon, "waiters") == 0;
}

/* Takes and gives back; a refusal is a driver's, and says so. Returns whether it was served. */
static bool take_and_give(struct puppet *puppet, unsigned kind) {
    int r = puppet_acquire(puppet, 0, kind, 4 * MIB, GPUPOOL_FOREVER, 0);
    if (r != 0) {
        PUPPET_MUST_BE(puppet, r, GPUPOOL_E_DRIVER);
        PUPPET_SAID(puppet, "cudaErrorUnknown");
        return false;
    }
    PUPPET_MUST(puppet, puppet_fill(puppet, 0, 7));
    PUPPET_MUST(puppet, puppet_check(puppet, 0, 7));
    PUPPET_MUST(puppet, puppet_release(puppet, 0));
    return true;
}

static void any_failing_call_of_the_daemons_driver_is_named_and_leaves_nothing_behind(void **state) {
    unsigned refused = 0, survived = 0, named = 0;

    (void)state;
    if (!test_is_simulated())
        skip();
    for (unsigned n = 1; n <= DAEMON_CALLS; n += test_stride(3)) {
        char fault[64];
        const char *const environment[] = {fault, NULL};
        struct puppet worker, victim;
        struct test_daemon daemon;
        snprintf(fault, sizeof fault, "GPUPOOL_SIM_FAIL=any:%u:999", n);
        daemon_start(&daemon,
                     &(struct daemon_options){
                         .config = config(), .environment = environment, .sim_gpus = 1, .unready = true});
        WAIT_UNTIL(test_has_ended(daemon.pid) || daemon_logged(&daemon, "serving "));
        if (test_has_ended(daemon.pid)) {
            int status = daemon_wait(&daemon);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE);
            assert_true(daemon_logged(&daemon, "cudaErrorUnknown"));
            daemon_remove(&daemon);
            refused++;
            continue;
        }
        puppet_connect(&worker, &daemon);
        /* The driver makes host memory, too, where its segments are descriptors. */
        assert_true(take_and_give(&worker, GPUPOOL_POOL_HOST) || test_host_exports_vmm());
        if (daemon_logged(&daemon, "gets no pool") || device_says(&daemon, 0, "state", "failed")) {
            assert_true(daemon_logged(&daemon, "cudaErrorUnknown"));
            refused++;
        } else {
            (void)take_and_give(&worker, GPUPOOL_POOL_DEVICE);
            WAIT_UNTIL(take_and_give(&worker, GPUPOOL_POOL_DEVICE)); /* it failed once */
            assert_true(device_says(&daemon, 0, "state", "ready"));
            puppet_connect(&victim, &daemon);
            PUPPET_MUST(&victim, acquire_on(&victim, 0, 0, MIB));
            puppet_kill(&victim);
            WAIT_UNTIL(daemon_number(&daemon, "sessions") == 1);
            cJSON_Delete(daemon_ask(&daemon, "{\"command\":\"trim\"}"));
            WAIT_UNTIL(daemon_pool(&daemon, "device", 0, "growing_bytes") == 0);
            survived++;
        }
        puppet_quit(&worker);
        WAIT_UNTIL(is_at_rest(&daemon));
        WAIT_UNTIL(daemon_sum(&daemon, "reserved_bytes") == 0 ||
                   (cJSON_Delete(daemon_ask(&daemon, "{\"command\":\"trim\"}")), false));
        named += daemon_logged(&daemon, "cudaErrorUnknown");
        daemon_stop(&daemon);
    }
    print_message("%u closed the pool or did not start, %u were survived, %u of them in the log\n", refused,
                  survived, named);
    unsigned few = test_is_full() ? 4 : 1;
    assert_true(refused > 0 && survived > few && named > few);
}

/* Daemon and clients at once, again and again, by several processes. */
static void calls_that_fail_at_random_under_load_lose_nothing(void **state) {
    enum {
        WORKERS = 4
    };
    static const char *const daemon_environment[] = {
        "GPUPOOL_SIM_FAIL=memory_allocate:~5:2,memory_set:~7:1,stream_synchronize:~7:719,ipc_export:~7:999,"
        "processes:~3:999",
        "GPUPOOL_SIM_SEED=20", NULL};
    struct puppet workers[WORKERS];
    struct test_daemon daemon;
    const unsigned rounds = test_is_full() ? 60 : 20;
    uint64_t random = 5;
    unsigned served = 0, failed = 0;

    (void)state;
    if (!test_is_simulated())
        skip();
    start_daemon(&daemon, daemon_environment, 1);
    for (unsigned i = 0; i < WORKERS; i++) {
        char seed[64];
        const char *const environment[] = {"GPUPOOL_SIM_FAIL=ipc_open:~6:205,host_register:~6:2,memory_copy:~"
                                           "9:999,stream_synchronize:~9:719",
                                           seed, NULL};
        snprintf(seed, sizeof seed, "GPUPOOL_SIM_SEED=%u", 30 + i);
        puppet_connect_as(&workers[i], &daemon, environment, 0);
    }
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < WORKERS; i++)
            puppet_send_acquire(&workers[i], 0,
                                test_random(&random) % 2 == 0 ? GPUPOOL_POOL_DEVICE : GPUPOOL_POOL_HOST,
                                1 + test_random(&random) % (6 * MIB), 2 * NS_PER_S);
        for (unsigned i = 0; i < WORKERS; i++) {
            int r = puppet_receive(&workers[i]);
            if (r != 0) {
                assert_true(r == GPUPOOL_E_DRIVER || r == GPUPOOL_E_EXHAUSTED);
                assert_true(workers[i].answer.text[0] != '\0');
                failed++;
                continue;
            }
            served++;
            do
                r = puppet_fill(&workers[i], 0, 1 + round);
            while (r == GPUPOOL_E_DRIVER);
            assert_int_equal(r, 0);
            do
                r = puppet_check(&workers[i], 0, 1 + round);
            while (r == GPUPOOL_E_DRIVER);
            assert_int_equal(r, 0);
        }
        if (round % 20 == 19) { /* one dies with what it has */
            puppet_kill(&workers[round / 20 % WORKERS]);
            puppet_connect(&workers[round / 20 % WORKERS], &daemon);
        }
        for (unsigned i = 0; i < WORKERS; i++) {
            int r = workers[i].answer.buffer.data != NULL ? GPUPOOL_E_DRIVER : 0;
            while (r == GPUPOOL_E_DRIVER)
                r = puppet_release(&workers[i], 0);
        }
        if (round % 10 == 9)
            cJSON_Delete(daemon_ask(&daemon, "{\"command\":\"trim\"}"));
    }
    for (unsigned i = 0; i < WORKERS; i++)
        puppet_quit(&workers[i]);
    print_message("%u served, %u failed\n", served, failed);
    assert_true(served > 20 && failed > 0); /* how many failed depends on whose calls coincide */
    WAIT_UNTIL(is_at_rest(&daemon));
    assert_int_equal(daemon_sum(&daemon, "leased_bytes") + daemon_sum(&daemon, "fenced_bytes"), 0);
    assert_false(device_says(&daemon, 0, "state", "lost"));
    daemon_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_device_closes_its_pool_and_no_other),
        cmocka_unit_test(those_who_wait_for_a_lost_device_are_told),
        cmocka_unit_test(a_device_that_is_lost_while_nobody_uses_it_is_found),
        cmocka_unit_test(a_device_that_answers_again_is_not_lost),
        cmocka_unit_test(the_stats_name_the_call_that_hangs),
        cmocka_unit_test(a_call_that_never_returns_is_in_the_refusal_and_holds_nobody_up_at_the_end),
        cmocka_unit_test(a_list_of_processes_that_does_not_come_keeps_the_dead_waiting_and_nobody_else),
        cmocka_unit_test(any_failing_call_of_the_daemons_driver_is_named_and_leaves_nothing_behind),
        cmocka_unit_test(calls_that_fail_at_random_under_load_lose_nothing),
    };
    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
