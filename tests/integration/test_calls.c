/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to the kernel and the C library that fail, each in its turn: in the daemon while it starts, in the
 * daemon while a client does all that a client does, and in that client. Each failure is reported or
 * coped with, no process crashes or hangs, nothing leaks, and the next client is served.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/faults_fixture.h"
#include "tests/integration/puppet.h"

#define CONFIG                                                                                               \
    "[device]\nlimit = 32MiB\nstep = 2MiB\nlow_water = 0\n[host]\nlimit = 32MiB\nstep = 2MiB\nlow_water = "  \
    "0\n"
/* More calls of a kind than a scene has: the loops end before. */
#define CALLS_MAX 400u

#define CALL_NAME(name) [CALL_##name] = #name,
static const char *const call_names[] = {CALL_KINDS(CALL_NAME)};

struct fault {
    enum call_kind kind;
    int error;
    unsigned step; /* every so many calls only: the daemon tries again what failed after seconds. 0: each */
};

/* The call to fail after the n-th: the next one. A short run tries every third after the first, and others
 * for each fault. */
static unsigned next_call(unsigned n, unsigned fault) {
    if (test_is_full())
        return n + 1;
    return n == 1 ? 2 + fault % 5 : n + 5;
}

/* Starts a client's process and waits until it is there: what a runtime does before main() is not meant. */
static void start_puppet(struct puppet *puppet, const struct test_daemon *daemon,
                         const char *const *variables) {
    puppet_start_as(puppet, daemon, variables, 0);
    PUPPET_MUST(puppet, puppet_do(puppet, PUPPET_COPY, 0));
}

/* --- what a client does --- */

struct scene {
    unsigned calls, failures;
    char text[PUPPET_TEXT]; /* of the first failure */
};

static bool scene_did(struct scene *scene, struct puppet *puppet, int result) {
    scene->calls++;
    if (result == 0)
        return true;
    if (scene->failures++ == 0)
        memcpy(scene->text, puppet->answer.text, sizeof scene->text);
    if (result > 0 || puppet->answer.text[0] == '\0')
        fail_msg("a call failed with %d and the text '%s'", result, puppet->answer.text);
    return false;
}

static bool is_host_only(void) {
    return !test_has_device();
}

/* Opens, takes, shares, attaches, asks, gives back and closes, as far as it gets. */
static void scene_play(struct scene *scene, struct puppet *puppet, uint32_t flags) {
    const unsigned kinds[] = {GPUPOOL_POOL_HOST, GPUPOOL_POOL_DEVICE};
    struct gpupool_token token;
    bool had[4] = {false};

    if (!scene_did(scene, puppet,
                   puppet_call(puppet, &(struct puppet_command){.verb = PUPPET_OPEN, .flags = flags})))
        return;
    scene_did(scene, puppet, puppet_do(puppet, PUPPET_POOL_LIST, 0));
    for (unsigned i = 0; i < (is_host_only() ? 1 : 2); i++) {
        had[i] = scene_did(scene, puppet, puppet_acquire(puppet, i, kinds[i], MIB, GPUPOOL_FOREVER, 0));
        if (!had[i])
            continue;
        scene_did(scene, puppet, puppet_query(puppet, i));
        if (scene_did(scene, puppet, puppet_share(puppet, i, &token)))
            had[2 + i] = scene_did(scene, puppet, puppet_attach(puppet, 2 + i, &token));
    }
    for (unsigned i = 0; i < 4; i++)
        if (had[i])
            scene_did(scene, puppet, puppet_release(puppet, i));
    if (!is_host_only())
        scene_did(scene, puppet,
                  puppet_call(puppet, &(struct puppet_command){.verb = PUPPET_PAIR, .size = 2 * MIB}));
    scene_did(scene, puppet, puppet_do(puppet, PUPPET_CLOSE, 0));
}

/* The calls that worked before work again: at once, or when a growth that failed is tried again. */
static void expect_service(struct test_daemon *daemon) {
    struct puppet puppet;
    puppet_connect(&puppet, daemon);
    for (unsigned i = 0; i < (is_host_only() ? 1 : 2); i++) {
        unsigned kind = i == 0 ? GPUPOOL_POOL_HOST : GPUPOOL_POOL_DEVICE;
        WAIT_UNTIL(puppet_acquire(&puppet, i, kind, MIB, GPUPOOL_FOREVER, 0) == 0);
        PUPPET_MUST(&puppet, puppet_fill(&puppet, i, 3));
        PUPPET_MUST(&puppet, puppet_check(&puppet, i, 3));
        PUPPET_MUST(&puppet, puppet_release(&puppet, i));
    }
    puppet_quit(&puppet);
}

static bool is_at_rest(struct test_daemon *daemon) {
    return daemon_number(daemon, "sessions") == 0 && daemon_sum(daemon, "leases") == 0 &&
           daemon_sum(daemon, "quarantined_bytes") == 0 && daemon_sum(daemon, "waiters") == 0;
}

static bool is_trimmed(struct test_daemon *daemon) {
    cJSON_Delete(daemon_ask(daemon, "{\"command\":\"trim\"}"));
    return daemon_sum(daemon, "reserved_bytes") == 0;
}

/* --- the daemon --- */

static const struct fault daemon_faults[] = {
    {CALL_ACCEPT4, EMFILE},
    {CALL_ACCEPT4, ECONNABORTED},
    {CALL_ACCEPT4, ENOMEM},
    {CALL_CALLOC, ENOMEM},
    {CALL_EVENTFD, EMFILE},
    {CALL_FCNTL, EPERM},
    {CALL_FTRUNCATE, ENOSPC},
    {CALL_GETRANDOM, EAGAIN},
    {CALL_GETSOCKOPT, EMFILE},
    {CALL_MADVISE, ENOMEM},
    {CALL_MALLOC, ENOMEM},
    {CALL_MEMFD_CREATE, EMFILE},
    {CALL_MMAP, ENOMEM},
    {CALL_OPEN, EMFILE},
    {CALL_PTHREAD_CREATE, EAGAIN},
    {CALL_READ, EIO},
    {CALL_REALLOC, ENOMEM},
    {CALL_RECV, ENOMEM},
    {CALL_RECV, EINTR},
    {CALL_RECVMSG, ENOMEM},
    {CALL_SENDMSG, EINTR},
    {CALL_SENDMSG, EPIPE},
    {CALL_SENDMSG, ETOOMANYREFS, 5},
    {CALL_SETSOCKOPT, EINVAL},
    {CALL_SOCKET, EMFILE},
    {CALL_TIMERFD_CREATE, EMFILE},
};

/* Not malloc(): the CUDA runtime calls it before main() and does not look at what it gets. */
static const struct fault start_faults[] = {
    {CALL_CALLOC, ENOMEM},  {CALL_EPOLL_CREATE1, EMFILE},
    {CALL_EVENTFD, EMFILE}, {CALL_FCNTL, EINVAL},
    {CALL_FSTAT, EIO},      {CALL_LISTEN, EADDRINUSE},
    {CALL_OPEN, EMFILE},    {CALL_PTHREAD_CREATE, EAGAIN},
    {CALL_READ, EIO},       {CALL_REALLOC, ENOMEM},
    {CALL_SOCKET, EMFILE},
};

static void any_failing_call_of_a_daemon_that_serves_hurts_one_client_at_most(void **state) {
    struct test_daemon daemon;
    unsigned descriptors = 0, rounds = 0;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = CONFIG, .environment = environment()});
    expect_service(&daemon);
    for (unsigned i = 0; i < sizeof daemon_faults / sizeof *daemon_faults; i++) {
        const struct fault *fault = &daemon_faults[i];
        uint32_t hits = 1;
        print_message("%s %s\n", call_names[fault->kind], strerrorname_np(fault->error));
        for (unsigned n = 1; hits > 0; n = fault->step > 0 ? n + fault->step : next_call(n, i), rounds++) {
            struct scene scene = {0};
            struct puppet puppet;
            assert_true(n < CALLS_MAX);
            WAIT_UNTIL(is_at_rest(&daemon) && is_trimmed(&daemon));
            if (descriptors == 0)
                descriptors = daemon_descriptors_at_rest(&daemon);
            WAIT_UNTIL(daemon_descriptors(&daemon) == descriptors);
            start_puppet(&puppet, &daemon, NULL);
            arm(fault->kind, fault->error, n, 0);
            scene_play(&scene, &puppet, n % 2 == 0 ? GPUPOOL_OPEN_NO_CACHE : 0);
            hits = disarm();
            if (hits == 0 && scene.failures > 0)
                fail_msg("%s never failed, and a client's call did", call_names[fault->kind]);
            puppet_quit(&puppet);
            if (test_has_ended(daemon.pid)) {
                _cleanup_(freep) char *log = daemon_log(&daemon);
                fail_msg("the daemon ended when call %u of %s failed with %s:\n%s", n,
                         call_names[fault->kind], strerrorname_np(fault->error), log);
            }
            expect_service(&daemon);
        }
    }
    print_message("%u rounds\n", rounds);
    daemon_stop(&daemon);
}

/* Whether the daemon has said in its log that it serves without one of its pools. With descriptors as
 * segments, the daemon asks the driver before it serves whether it can export memory. The simulated driver
 * starts its exporter then. If a call fails there, the daemon says why and keeps the pool closed. */
static bool lacks_a_pool(const char *log) {
    return strstr(log, "gets no pool") != NULL || strstr(log, "the pool stays closed") != NULL;
}

static void any_failing_call_of_a_daemon_that_starts_is_said_or_survived(void **state) {
    unsigned refused = 0, served = 0;

    (void)state;
    for (unsigned i = 0; i < sizeof start_faults / sizeof *start_faults; i++) {
        const struct fault *fault = &start_faults[i];
        uint32_t hits = 1;
        print_message("%s %s\n", call_names[fault->kind], strerrorname_np(fault->error));
        for (unsigned n = 1; hits > 0; n = next_call(n, i)) {
            struct test_daemon daemon;
            assert_true(n < CALLS_MAX);
            arm(fault->kind, fault->error, n, 0);
            daemon_start(&daemon, &(struct daemon_options){
                                      .config = CONFIG, .environment = environment(), .unready = true});
            WAIT_UNTIL(test_has_ended(daemon.pid) || daemon_logged(&daemon, "serving "));
            hits = disarm();
            _cleanup_(freep) char *log = daemon_log(&daemon);
            if (test_has_ended(daemon.pid)) {
                int status = daemon_wait(&daemon);
                if (!WIFEXITED(status) || WEXITSTATUS(status) == 0 || log[0] == '\0')
                    fail_msg("status 0x%x when call %u of %s failed with %s:\n%s", (unsigned)status, n,
                             call_names[fault->kind], strerrorname_np(fault->error), log);
                assert_int_not_equal(access(daemon.socket, F_OK), 0);
                daemon_remove(&daemon);
                refused++;
            } else {
                if (!lacks_a_pool(log))
                    expect_service(&daemon);
                daemon_stop(&daemon);
                served++;
            }
        }
    }
    print_message("%u did not start and said why, %u served\n", refused, served);
    assert_true(refused > 10 && served > 0);
}

static void interrupted_calls_of_the_daemon_are_repeated(void **state) {
    static const enum call_kind kinds[] = {CALL_ACCEPT4, CALL_READ,    CALL_RECV,
                                           CALL_RECVMSG, CALL_SENDMSG, CALL_POLL};
    struct test_daemon daemon;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = CONFIG, .environment = environment()});
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        arm(kinds[i], EINTR, 0, 2);
        for (unsigned round = 0; round < 5; round++) {
            struct scene scene = {0};
            struct puppet puppet;
            puppet_start(&puppet, &daemon);
            scene_play(&scene, &puppet, 0);
            puppet_quit(&puppet);
            if (scene.failures > 0)
                fail_msg("an interrupted %s was an error: %s", call_names[kinds[i]], scene.text);
        }
        disarm();
    }
    WAIT_UNTIL(is_at_rest(&daemon));
    daemon_stop(&daemon);
}

/* --- the client --- */

static const struct fault client_faults[] = {
    {CALL_CALLOC, ENOMEM},
    {CALL_CONNECT, ECONNREFUSED},
    {CALL_CONNECT, EAGAIN},
    {CALL_FCNTL, EPERM},
    {CALL_FSTAT, EIO},
    {CALL_GETRANDOM, EAGAIN},
    {CALL_GETSOCKOPT, EIO},
    {CALL_MADVISE, EINVAL},
    {CALL_MALLOC, ENOMEM},
    {CALL_MMAP, ENOMEM},
    {CALL_OPEN, EMFILE},
    {CALL_POLL, ENOMEM},
    {CALL_PTHREAD_CREATE, EAGAIN},
    {CALL_READ, EIO},
    {CALL_REALLOC, ENOMEM},
    {CALL_RECV, ENOMEM},
    {CALL_RECVMSG, ENOMEM},
    {CALL_RECVMSG, EMFILE},
    {CALL_SEND, ENOBUFS},
    {CALL_SEND, EPIPE},
    {CALL_SENDMSG, ENOBUFS},
    {CALL_SETSOCKOPT, EINVAL},
    {CALL_SOCKET, EMFILE},
};

/* On a real GPU only the CUDA runtime, which is part of the program, calls malloc() in the scene, and it does
 * not survive each failure (runtime 13.0). */
static bool is_runtimes_own(enum call_kind kind) {
    return kind == CALL_MALLOC && !test_is_simulated();
}

static unsigned descriptors_of(pid_t pid) {
    const struct test_daemon as_if = {.pid = pid};
    return daemon_descriptors(&as_if);
}

/* After everything is closed, and then once more with nothing that fails. Returns the descriptors left. */
static unsigned play_twice(struct test_daemon *daemon, struct puppet *puppet, uint32_t flags,
                           struct scene *scene) {
    struct scene second = {0};

    (void)daemon;
    scene_play(scene, puppet, flags);
    disarm();
    scene_play(&second, puppet, flags);
    if (second.failures > 0)
        fail_msg("what failed once fails again: %s", second.text);
    return descriptors_of(puppet->pid);
}

static void any_failing_call_of_a_client_is_said_and_leaves_nothing_behind(void **state) {
    unsigned descriptors[2], rounds = 0, failures = 0;
    struct test_daemon daemon;
    struct puppet puppet;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = CONFIG});
    for (unsigned cached = 0; cached < 2; cached++) {
        struct scene scene = {0};
        puppet_start_as(&puppet, &daemon, environment(), 0);
        descriptors[cached] = play_twice(&daemon, &puppet, cached ? 0 : GPUPOOL_OPEN_NO_CACHE, &scene);
        assert_int_equal(scene.failures, 0);
        puppet_quit(&puppet);
    }
    for (unsigned i = 0; i < sizeof client_faults / sizeof *client_faults; i++) {
        const struct fault *fault = &client_faults[i];
        uint32_t hits[2] = {1, 1};
        if (is_runtimes_own(fault->kind))
            continue;
        print_message("%s %s\n", call_names[fault->kind], strerrorname_np(fault->error));
        for (unsigned n = 1; hits[0] + hits[1] > 0; n = next_call(n, i))
            for (unsigned cached = 0; cached < 2; cached++) {
                struct scene scene = {0};
                assert_true(n < CALLS_MAX);
                if (hits[cached] == 0)
                    continue;
                start_puppet(&puppet, &daemon, environment());
                arm(fault->kind, fault->error, n, 0);
                unsigned left = play_twice(&daemon, &puppet, cached ? 0 : GPUPOOL_OPEN_NO_CACHE, &scene);
                hits[cached] = atomic_load(&faults->hits);
                if (left > descriptors[cached])
                    fail_msg("%u descriptors instead of %u after call %u of %s failed with %s", left,
                             descriptors[cached], n, call_names[fault->kind], strerrorname_np(fault->error));
                puppet_quit(&puppet);
                WAIT_UNTIL(is_at_rest(&daemon));
                failures += scene.failures;
                rounds++;
            }
    }
    print_message("%u rounds, %u failures\n", rounds, failures);
    assert_true(failures > 20);
    daemon_stop(&daemon);
}

static void interrupted_calls_of_a_client_are_repeated(void **state) {
    static const enum call_kind kinds[] = {CALL_CONNECT, CALL_POLL, CALL_READ,   CALL_RECV,
                                           CALL_RECVMSG, CALL_SEND, CALL_SENDMSG};
    struct test_daemon daemon;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = CONFIG});
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (unsigned cached = 0; cached < 2; cached++) {
            struct scene scene = {0};
            struct puppet puppet;
            start_puppet(&puppet, &daemon, environment());
            arm(kinds[i], EINTR, 0, 2);
            scene_play(&scene, &puppet, cached ? 0 : GPUPOOL_OPEN_NO_CACHE);
            disarm();
            if (scene.failures > 0)
                fail_msg("an interrupted %s was an error: %s", call_names[kinds[i]], scene.text);
            puppet_quit(&puppet);
        }
    daemon_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_failing_call_of_a_daemon_that_serves_hurts_one_client_at_most),
        cmocka_unit_test(any_failing_call_of_a_daemon_that_starts_is_said_or_survived),
        cmocka_unit_test(interrupted_calls_of_the_daemon_are_repeated),
        cmocka_unit_test(any_failing_call_of_a_client_is_said_and_leaves_nothing_behind),
        cmocka_unit_test(interrupted_calls_of_a_client_are_repeated),
    };
    if (!has_call_faults())
        return 77;
    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, make_faults, drop_faults));
}
