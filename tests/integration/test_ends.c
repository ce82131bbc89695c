/* SPDX-License-Identifier: Apache-2.0 */
/* Ends without a farewell: what a client held is in quarantine until its process and its GPU work are over,
 * and comes back then, not before. And forked children, which are neither the client nor its end. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/ghost.h"
#include "tests/integration/puppet.h"

#define POOL_MIB   32u
#define SIZE_BYTES (20 * MIB) /* no two of them fit the pool */
/* Rounds of another client that pass while something must not happen. Each is a few round trips. */
#define ROUNDS_MEANWHILE 100u

#include "tests/integration/daemon_fixture.h"

/* Other clients are served from what is left of the pool, again and again. */
static void others_go_on(unsigned kind) {
    struct puppet other;
    puppet_connect(&other, &daemon_);
    PUPPET_MUST(&other, puppet_call(&other, &(struct puppet_command){.verb = PUPPET_ROUNDS,
                                                                     .kind = kind,
                                                                     .size = 64 * KIB,
                                                                     .seed = 5,
                                                                     .number = ROUNDS_MEANWHILE}));
    puppet_quit(&other);
}

static void nothing_is_left(void) {
    WAIT_UNTIL(daemon_sum(&daemon_, "quarantined_bytes") == 0);
    WAIT_UNTIL(daemon_sessions(&daemon_, "quarantined") == 0);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    assert_int_equal(daemon_sum(&daemon_, "leases"), 0);
}

static void the_memory_of_a_killed_worker_comes_back(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    for (unsigned i = 0; i < count; i++) {
        struct puppet worker, next;
        puppet_connect(&worker, &daemon_);
        puppet_connect(&next, &daemon_);
        PUPPET_MUST(&worker, puppet_acquire(&worker, 0, kinds[i], SIZE_BYTES, GPUPOOL_FOREVER, 0));
        puppet_send_acquire(&next, 0, kinds[i], SIZE_BYTES, GPUPOOL_FOREVER);
        WAIT_UNTIL(daemon_pool(&daemon_, puppet_kind_name(kinds[i]), 0, "waiters") == 1);
        puppet_kill(&worker);
        PUPPET_MUST(&next, puppet_receive(&next)); /* who waited has it now */
        PUPPET_MUST(&next, puppet_release(&next, 0));
        puppet_quit(&next);
        nothing_is_left();
    }
}

static void a_process_that_lives_on_without_its_connection_keeps_its_memory(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    for (unsigned i = 0; i < count; i++) {
        const char *name = puppet_kind_name(kinds[i]);
        struct puppet worker, next;
        puppet_connect(&worker, &daemon_);
        puppet_connect(&next, &daemon_);
        PUPPET_MUST(&worker, puppet_acquire(&worker, 0, kinds[i], SIZE_BYTES, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&worker, puppet_fill(&worker, 0, 4711));
        PUPPET_MUST(&worker, puppet_do(&worker, PUPPET_CUT, 0));
        WAIT_UNTIL(daemon_has_session(&daemon_, worker.pid, "quarantined"));
        assert_int_equal(daemon_pool(&daemon_, name, 0, "quarantined_bytes"), SIZE_BYTES);
        assert_int_equal(daemon_pool(&daemon_, name, 0, "leased_bytes"), 0);
        others_go_on(kinds[i]);
        PUPPET_MUST_BE(&next, puppet_acquire(&next, 0, kinds[i], SIZE_BYTES, GPUPOOL_NOW, 0),
                       GPUPOOL_E_EXHAUSTED);
        PUPPET_SAID(&next, "in quarantine");
        assert_int_equal(daemon_pool(&daemon_, name, 0, "quarantined_bytes"), SIZE_BYTES);
        /* its own data is safe from others, and readable for it */
        PUPPET_MUST(&worker, puppet_check(&worker, 0, 4711));
        PUPPET_MUST(&worker, puppet_release(&worker, 0)); /* the daemon hears of its process's end only */
        puppet_kill(&worker);
        PUPPET_MUST(&next, puppet_acquire(&next, 0, kinds[i], SIZE_BYTES, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&next, puppet_release(&next, 0));
        puppet_quit(&next);
        nothing_is_left();
    }
}

static void a_session_that_was_given_nothing_does_not_wait_for_its_process(void **state) {
    struct puppet worker;

    (void)state;
    puppet_connect(&worker, &daemon_);
    WAIT_UNTIL(daemon_has_session(&daemon_, worker.pid, "active"));
    PUPPET_MUST(&worker, puppet_do(&worker, PUPPET_CUT, 0));
    WAIT_UNTIL(daemon_number(&daemon_, "sessions") == 0);
    assert_false(test_has_ended(worker.pid));
    puppet_kill(&worker);
}

static void device_memory_waits_for_the_driver_to_forget_the_process(void **state) {
    static const char *const linger[] = {"GPUPOOL_SIM_LINGER_MS=" GHOST_LINGERS, NULL};
    struct puppet worker, next;

    (void)state;
    if (!test_is_simulated())
        skip();
    puppet_connect_as(&worker, &daemon_, linger, 0);
    puppet_connect(&next, &daemon_);
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_DEVICE, SIZE_BYTES, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&worker, puppet_acquire(&worker, 1, GPUPOOL_POOL_HOST, SIZE_BYTES, GPUPOOL_FOREVER, 0));
    pid_t ghost = 0, dead = worker.pid;
    WAIT_UNTIL((ghost = find_ghost(dead)) > 0); /* it takes its name when it first runs */
    /* The process is gone, pidfd and all; its kernel writes on. */
    puppet_kill(&worker);
    WAIT_UNTIL(daemon_has_session(&daemon_, dead, "quarantined"));
    puppet_send_acquire(&next, 0, GPUPOOL_POOL_DEVICE, SIZE_BYTES, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_pool(&daemon_, "device", 0, "waiters") == 1);
    others_go_on(GPUPOOL_POOL_DEVICE);
    assert_int_equal(daemon_pool(&daemon_, "device", 0, "quarantined_bytes"), SIZE_BYTES);
    assert_int_equal(daemon_pool(&daemon_, "host", 0, "quarantined_bytes"), SIZE_BYTES);
    assert_false(puppet_has_answered(&next));
    /* and now it does not */
    assert_int_equal(kill(ghost, SIGKILL), 0);
    PUPPET_MUST(&next, puppet_receive(&next));
    PUPPET_MUST(&next, puppet_fill(&next, 0, 1));
    PUPPET_MUST(&next, puppet_check(&next, 0, 1));
    PUPPET_MUST(&next, puppet_release(&next, 0));
    puppet_quit(&next);
    nothing_is_left();
}

static void what_another_holds_too_stays_leased(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    for (unsigned i = 0; i < count; i++) {
        const char *name = puppet_kind_name(kinds[i]);
        struct gpupool_token token;
        struct puppet sharer, other;
        puppet_connect(&sharer, &daemon_);
        puppet_connect(&other, &daemon_);
        PUPPET_MUST(&sharer, puppet_acquire(&sharer, 0, kinds[i], MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&sharer, puppet_fill(&sharer, 0, 31));
        PUPPET_MUST(&sharer, puppet_share(&sharer, 0, &token));
        PUPPET_MUST(&other, puppet_attach(&other, 0, &token));
        puppet_kill(&sharer);
        WAIT_UNTIL(daemon_sessions(&daemon_, "active") == 1 && daemon_sessions(&daemon_, "quarantined") == 0);
        assert_int_equal(daemon_pool(&daemon_, name, 0, "leased_bytes"), MIB);
        others_go_on(kinds[i]);
        PUPPET_MUST(&other, puppet_check(&other, 0, 31));
        PUPPET_MUST(&other, puppet_release(&other, 0));
        puppet_quit(&other);
        nothing_is_left();
    }
}

static void a_token_ends_with_the_last_living_holder(void **state) {
    struct gpupool_token token;
    struct puppet sharer, late;

    (void)state;
    puppet_connect(&sharer, &daemon_);
    puppet_connect(&late, &daemon_);
    PUPPET_MUST(&sharer, puppet_acquire(&sharer, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&sharer, puppet_share(&sharer, 0, &token));
    PUPPET_MUST(&sharer, puppet_do(&sharer, PUPPET_CUT, 0));
    WAIT_UNTIL(daemon_has_session(&daemon_, sharer.pid, "quarantined"));
    PUPPET_MUST_BE(&late, puppet_attach(&late, 0, &token), GPUPOOL_E_NO_TOKEN);
    puppet_kill(&sharer);
    puppet_quit(&late);
    nothing_is_left();
}

static void a_forked_child_is_refused_and_its_parent_goes_on(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    struct puppet parent;

    (void)state;
    puppet_connect(&parent, &daemon_);
    PUPPET_MUST(&parent, puppet_acquire(&parent, 0, kinds[count - 1], MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&parent, puppet_fill(&parent, 0, 21));
    PUPPET_MUST(&parent, puppet_do(&parent, PUPPET_FORK_TRY, 0));
    assert_int_equal(parent.answer.number, 0); /* calls that were not refused */
    PUPPET_MUST(&parent, puppet_check(&parent, 0, 21));
    PUPPET_MUST(&parent, puppet_acquire(&parent, 1, kinds[0], MIB, GPUPOOL_FOREVER, 0));
    assert_true(daemon_has_session(&daemon_, parent.pid, "active"));
    PUPPET_MUST(&parent, puppet_release(&parent, 0));
    PUPPET_MUST(&parent, puppet_release(&parent, 1));
    puppet_quit(&parent);
    nothing_is_left();
}

static void a_forked_child_with_the_socket_is_no_sign_of_life(void **state) {
    struct puppet_command open_plain = {.verb = PUPPET_OPEN,
                                        .flags = GPUPOOL_OPEN_NO_CUDA | GPUPOOL_OPEN_NO_CACHE};
    struct puppet parent;

    (void)state;
    puppet_start(&parent, &daemon_);
    PUPPET_MUST(&parent, puppet_call(&parent, &open_plain));
    PUPPET_MUST(&parent, puppet_acquire(&parent, 0, GPUPOOL_POOL_HOST, SIZE_BYTES, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&parent, puppet_do(&parent, PUPPET_FORK_HOLD, 0));
    pid_t child = (pid_t)parent.answer.number;
    puppet_kill(&parent);
    nothing_is_left(); /* no GPU work: the process's end is all there is to wait for */
    assert_int_equal(daemon_sessions(&daemon_, "active"), 0);
    assert_false(test_has_ended(child));
    kill(child, SIGKILL);
}

/* Whether the daemon names a process as the one that holds a dead client's memory. */
static bool names_holder(pid_t dead, pid_t holder) {
    char words[64], also[64];
    cJSON *reply = daemon_ask(&daemon_, "{\"command\":\"quarantine\"}"), *session;
    bool names = false;

    snprintf(words, sizeof words, "pid %d (", (int)holder);
    snprintf(also, sizeof also, "may be a child of pid %d, holds /", (int)dead);
    cJSON_ArrayForEach(session, cJSON_GetObjectItemCaseSensitive(reply, "sessions")) {
        const cJSON *reason = cJSON_GetObjectItemCaseSensitive(session, "quarantine_reason");
        names |= cJSON_GetObjectItemCaseSensitive(session, "pid")->valueint == dead &&
                 cJSON_IsString(reason) && strstr(reason->valuestring, words) != NULL &&
                 strstr(reason->valuestring, also) != NULL;
    }
    cJSON_Delete(reply);
    return names;
}

static void a_forked_child_with_the_device_keeps_the_memory_in_quarantine(void **state) {
    struct puppet parent;

    (void)state;
    if (!test_has_device())
        skip();
    puppet_connect(&parent, &daemon_);
    PUPPET_MUST(&parent, puppet_acquire(&parent, 0, GPUPOOL_POOL_DEVICE, SIZE_BYTES, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&parent, puppet_do(&parent, PUPPET_FORK_HOLD, 0));
    pid_t child = (pid_t)parent.answer.number, dead = parent.pid;
    puppet_kill(&parent);
    WAIT_UNTIL(daemon_has_session(&daemon_, dead, "quarantined"));
    others_go_on(GPUPOOL_POOL_DEVICE);
    assert_int_equal(daemon_pool(&daemon_, "device", 0, "quarantined_bytes"), SIZE_BYTES);
    WAIT_UNTIL(names_holder(dead, child)); /* which keeps the list from telling the end */
    assert_int_equal(daemon_pool(&daemon_, "device", 0, "quarantined_bytes"), SIZE_BYTES);
    kill(child, SIGKILL);
    nothing_is_left();
}

int main(int argc, char **argv) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_memory_of_a_killed_worker_comes_back),
        cmocka_unit_test(a_process_that_lives_on_without_its_connection_keeps_its_memory),
        cmocka_unit_test(a_session_that_was_given_nothing_does_not_wait_for_its_process),
        cmocka_unit_test(device_memory_waits_for_the_driver_to_forget_the_process),
        cmocka_unit_test(what_another_holds_too_stays_leased),
        cmocka_unit_test(a_token_ends_with_the_last_living_holder),
        cmocka_unit_test(a_forked_child_is_refused_and_its_parent_goes_on),
        cmocka_unit_test(a_forked_child_with_the_socket_is_no_sign_of_life),
        cmocka_unit_test(a_forked_child_with_the_device_keeps_the_memory_in_quarantine),
    };
    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
