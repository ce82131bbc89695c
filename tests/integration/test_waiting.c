/* SPDX-License-Identifier: Apache-2.0 */
/* Room that is not there: who waits, who does not, who is told what, and who is served meanwhile. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/core/limits.h"
#include "tests/integration/hang.h"
#include "tests/integration/puppet.h"

#define POOL_MIB  16u
#define MOST      (12 * MIB) /* no two of them fit the pool */
#define LARGE_MIB 1024u      /* takes the kernel long enough to make that others can be watched meanwhile */

#include "tests/integration/daemon_fixture.h"

/* Two clients, and the first has most of the pool. */
static void have_and_want(struct puppet *holder, struct puppet *wanter, unsigned kind) {
    puppet_connect(holder, &daemon_);
    puppet_connect(wanter, &daemon_);
    PUPPET_MUST(holder, puppet_acquire(holder, 0, kind, MOST, GPUPOOL_FOREVER, 0));
}

static uint64_t waiters(unsigned kind) {
    return daemon_pool(&daemon_, puppet_kind_name(kind), 0, "waiters");
}

static void a_waiter_gets_what_another_releases(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    for (unsigned i = 0; i < count; i++) {
        struct puppet holder, wanter;
        have_and_want(&holder, &wanter, kinds[i]);
        puppet_send_acquire(&wanter, 0, kinds[i], MOST, GPUPOOL_FOREVER);
        WAIT_UNTIL(waiters(kinds[i]) == 1);
        assert_false(puppet_has_answered(&wanter));
        PUPPET_MUST(&holder, puppet_release(&holder, 0));
        PUPPET_MUST(&wanter, puppet_receive(&wanter));
        PUPPET_MUST(&wanter, puppet_fill(&wanter, 0, 6));
        PUPPET_MUST(&wanter, puppet_check(&wanter, 0, 6));
        PUPPET_MUST(&wanter, puppet_release(&wanter, 0));
        puppet_quit(&holder);
        puppet_quit(&wanter);
    }
}

static void a_deadline_is_kept_and_the_text_names_the_holder(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    for (unsigned i = 0; i < count; i++) {
        struct puppet holder, wanter;
        char who[32];
        have_and_want(&holder, &wanter, kinds[i]);
        uint64_t start_ns = clock_now_ns();
        PUPPET_MUST_BE(&wanter, puppet_acquire(&wanter, 0, kinds[i], MOST, 50 * NS_PER_MS, 0),
                       GPUPOOL_E_EXHAUSTED);
        assert_true(clock_now_ns() - start_ns >= 50 * NS_PER_MS); /* and not before it */
        snprintf(who, sizeof who, "pid %d", (int)holder.pid);
        PUPPET_SAID(&wanter, who);
        PUPPET_SAID(&wanter, "12 MiB");
        PUPPET_SAID(&wanter, "16 MiB"); /* the limit */
        assert_int_equal(waiters(kinds[i]), 0);
        puppet_quit(&holder);
        puppet_quit(&wanter);
    }
}

static void now_does_not_stand_in_line(void **state) {
    struct puppet holder, wanter, first;

    (void)state;
    have_and_want(&holder, &wanter, GPUPOOL_POOL_HOST);
    puppet_connect(&first, &daemon_);
    puppet_send_acquire(&first, 0, GPUPOOL_POOL_HOST, MOST, GPUPOOL_FOREVER);
    WAIT_UNTIL(waiters(GPUPOOL_POOL_HOST) == 1);
    PUPPET_MUST_BE(&wanter, puppet_acquire(&wanter, 0, GPUPOOL_POOL_HOST, MOST, GPUPOOL_NOW, 0),
                   GPUPOOL_E_EXHAUSTED);
    assert_int_equal(waiters(GPUPOOL_POOL_HOST), 1);
    /* what fits is had at once, although somebody waits for more */
    PUPPET_MUST(&wanter, puppet_acquire(&wanter, 0, GPUPOOL_POOL_HOST, 4096, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&wanter, puppet_release(&wanter, 0));
    PUPPET_MUST(&holder, puppet_release(&holder, 0));
    PUPPET_MUST(&first, puppet_receive(&first));
    puppet_quit(&first);
    puppet_quit(&holder);
    puppet_quit(&wanter);
}

static void small_requests_pass_a_large_one_only_so_often(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    for (unsigned i = 0; i < count; i++) {
        struct puppet holder, large, small;
        unsigned passes = 0;
        puppet_connect(&holder, &daemon_);
        puppet_connect(&large, &daemon_);
        puppet_connect(&small, &daemon_);
        PUPPET_MUST(&holder, puppet_acquire(&holder, 0, kinds[i], MOST, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&holder,
                    puppet_acquire(&holder, 1, kinds[i], 4 * MIB, GPUPOOL_FOREVER, 0)); /* the rest */
        PUPPET_MUST(&holder,
                    puppet_call(&holder, &(struct puppet_command){.verb = PUPPET_SHRINK, .size = 4096}));
        puppet_send_acquire(&large, 0, kinds[i], MOST, GPUPOOL_FOREVER);
        WAIT_UNTIL(waiters(kinds[i]) == 1);
        while (passes <= PASSES_MAX && puppet_acquire(&small, 0, kinds[i], 4096, GPUPOOL_NOW, 0) == 0) {
            PUPPET_MUST(&small, puppet_release(&small, 0));
            passes++;
        }
        assert_int_equal(passes, PASSES_MAX);
        puppet_send_acquire(&small, 0, kinds[i], 4096, GPUPOOL_FOREVER);
        WAIT_UNTIL(waiters(kinds[i]) == 2);
        PUPPET_MUST(&holder, puppet_release(&holder, 0));
        PUPPET_MUST(&large, puppet_receive(&large));
        PUPPET_MUST(&large, puppet_release(&large, 0));
        PUPPET_MUST(&small, puppet_receive(&small));
        puppet_quit(&small);
        puppet_quit(&large);
        puppet_quit(&holder);
    }
}

static void what_can_never_be_had_is_said_at_once(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    struct puppet worker;

    (void)state;
    puppet_connect(&worker, &daemon_);
    for (unsigned i = 0; i < count; i++) {
        PUPPET_MUST_BE(&worker, puppet_acquire(&worker, 0, kinds[i], POOL_MIB * MIB + 1, GPUPOOL_FOREVER, 0),
                       GPUPOOL_E_TOO_LARGE);
        PUPPET_SAID(&worker, "16 MiB");
        PUPPET_MUST_BE(&worker, puppet_acquire(&worker, 0, kinds[i], UINT64_MAX, GPUPOOL_FOREVER, 0),
                       GPUPOOL_E_TOO_LARGE);
        PUPPET_MUST_BE(&worker, puppet_acquire(&worker, 0, kinds[i], 0, GPUPOOL_FOREVER, 0),
                       GPUPOOL_E_INVALID);
    }
    PUPPET_MUST_BE(
        &worker,
        puppet_call(&worker, &(struct puppet_command){.verb = PUPPET_ACQUIRE, .pool = 77, .size = 1}),
        GPUPOOL_E_NO_POOL);
    puppet_quit(&worker);
}

static void a_client_that_dies_leaves_the_line(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    for (unsigned i = 0; i < count; i++) {
        struct puppet holder, dying, next;
        have_and_want(&holder, &dying, kinds[i]);
        puppet_connect(&next, &daemon_);
        puppet_send_acquire(&dying, 0, kinds[i], MOST, GPUPOOL_FOREVER);
        WAIT_UNTIL(waiters(kinds[i]) == 1);
        puppet_send_acquire(&next, 0, kinds[i], MOST, GPUPOOL_FOREVER);
        WAIT_UNTIL(waiters(kinds[i]) == 2);
        puppet_kill(&dying);
        WAIT_UNTIL(waiters(kinds[i]) == 1);
        PUPPET_MUST(&holder, puppet_release(&holder, 0));
        PUPPET_MUST(&next, puppet_receive(&next));
        puppet_quit(&next);
        puppet_quit(&holder);
        WAIT_UNTIL(daemon_sum(&daemon_, "leases") == 0);
    }
}

/* Acquires and releases until the large pool has grown; returns how many rounds that were. */
static unsigned rounds_while_growing(struct test_daemon *daemon, struct puppet *worker, unsigned kind,
                                     const char *growing_kind) {
    unsigned rounds = 0;
    while (daemon_pool(daemon, growing_kind, 0, "growing_bytes") > 0) {
        PUPPET_MUST(worker, puppet_acquire(worker, 0, kind, 4096, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(worker, puppet_release(worker, 0));
        rounds++;
    }
    return rounds;
}

static uint64_t available_bytes(void) {
    char line[128];
    unsigned long long kib = 0;
    _cleanup_(fclosep) FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            break;
    return kib * KIB;
}

static void a_growing_host_pool_holds_nobody_up(void **state) {
    struct puppet large, others[2];
    struct test_daemon daemon;
    char text[TEST_CONFIG_SIZE];
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    if (available_bytes() < 2 * LARGE_MIB * MIB)
        skip();
    daemon_start(&daemon, &(struct daemon_options){.config = test_config(text, POOL_MIB, LARGE_MIB + 64)});
    for (unsigned i = 0; i < count; i++) { /* something is there for them already */
        puppet_connect(&others[i], &daemon);
        PUPPET_MUST(&others[i], puppet_acquire(&others[i], 0, kinds[i], 4096, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&others[i], puppet_release(&others[i], 0));
    }
    puppet_start(&large, &daemon);
    PUPPET_MUST(&large, puppet_call(&large, &(struct puppet_command){.verb = PUPPET_OPEN,
                                                                     .flags = GPUPOOL_OPEN_NO_CUDA |
                                                                              GPUPOOL_OPEN_NO_CACHE}));
    puppet_send_acquire(&large, 0, GPUPOOL_POOL_HOST, LARGE_MIB * MIB, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_pool(&daemon, "host", 0, "growing_bytes") > 0 || puppet_has_answered(&large));
    unsigned rounds = 0;
    for (unsigned i = count; i-- > 0;)
        rounds += rounds_while_growing(&daemon, &others[i], kinds[i], "host");
    print_message("%u rounds while %u MiB were made\n", rounds, LARGE_MIB);
    assert_true(rounds >= 3);
    PUPPET_MUST(&large, puppet_receive(&large));
    puppet_quit(&large);
    for (unsigned i = 0; i < count; i++)
        puppet_quit(&others[i]);
    daemon_stop(&daemon);
}

static void a_driver_call_that_hangs_holds_nobody_else_up(void **state) {
    struct puppet stuck, device, host;
    struct test_daemon daemon;
    char text[TEST_CONFIG_SIZE];
    struct hang hang;

    (void)state;
    if (!test_is_simulated())
        skip();
    hang_plan(&hang, "memory_allocate:2");
    const char *const environment[] = {hang.variable, NULL};
    daemon_start(&daemon,
                 &(struct daemon_options){.config = test_config(text, 64, 64), .environment = environment});
    puppet_connect(&stuck, &daemon);
    puppet_connect(&device, &daemon);
    puppet_connect(&host, &daemon);
    PUPPET_MUST(&device, puppet_acquire(&device, 0, GPUPOOL_POOL_DEVICE, 4096, GPUPOOL_FOREVER, 0));
    puppet_send_acquire(&stuck, 0, GPUPOOL_POOL_DEVICE, 32 * MIB, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_pool(&daemon, "device", 0, "growing_bytes") > 0);
    /* the device pool still lends what it has, and the host pool grows */
    PUPPET_MUST(&device, puppet_acquire(&device, 1, GPUPOOL_POOL_DEVICE, 4096, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&host, puppet_call(&host, &(struct puppet_command){.verb = PUPPET_ROUNDS,
                                                                   .kind = GPUPOOL_POOL_HOST,
                                                                   .size = 64 * KIB,
                                                                   .seed = 1,
                                                                   .number = 100}));
    assert_false(puppet_has_answered(&stuck));
    hang_end(&hang);
    PUPPET_MUST(&stuck, puppet_receive(&stuck));
    puppet_quit(&stuck);
    puppet_quit(&device);
    puppet_quit(&host);
    daemon_stop(&daemon);
}

int main(int argc, char **argv) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_waiter_gets_what_another_releases),
        cmocka_unit_test(a_deadline_is_kept_and_the_text_names_the_holder),
        cmocka_unit_test(now_does_not_stand_in_line),
        cmocka_unit_test(small_requests_pass_a_large_one_only_so_often),
        cmocka_unit_test(what_can_never_be_had_is_said_at_once),
        cmocka_unit_test(a_client_that_dies_leaves_the_line),
        cmocka_unit_test(a_growing_host_pool_holds_nobody_up),
        cmocka_unit_test(a_driver_call_that_hangs_holds_nobody_else_up),
    };
    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
