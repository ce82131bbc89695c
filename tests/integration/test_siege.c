/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon under each attack of tests/bench/attacks.h, beside a client that behaves: that one is served, and
 * afterwards the daemon has the descriptors that it had, and memory that does not grow from round to round.
 * Where a control group can be made, what the kernel keeps for the daemon counts, too.
 *
 * GPUPOOL_TEST_SIEGE_MS is the length of each attack in each round, 60 by default.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/bench/attacks.h"
#include "tests/integration/wire_peer.h"

#define ROUNDS      4u
#define POOL_MIB    64u
#define SLACK_BYTES (6 * MIB)

static char group[96]; /* the daemon's control group; "": there is none */

static bool write_to(const char *name, const char *text) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", group, name);
    _cleanup_(fclosep) FILE *file = fopen(path, "we");
    return file != NULL && fputs(text, file) >= 0 && fflush(file) == 0;
}

static uint64_t read_from(const char *name) {
    char path[160];
    unsigned long long value = 0;
    snprintf(path, sizeof path, "%s/%s", group, name);
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    return file != NULL && fscanf(file, "%llu", &value) == 1 ? value : 0;
}

/* Puts the daemon into a control group of its own, of version 1 or 2. */
static void make_group(const struct test_daemon *daemon) {
    static const char *const roots[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    char pid[16];

    snprintf(pid, sizeof pid, "%d", (int)daemon->pid);
    for (unsigned i = 0; i < 2; i++) {
        snprintf(group, sizeof group, "%s/gpupool-siege-%d", roots[i], (int)getpid());
        if (mkdir(group, 0755) == 0 && write_to("cgroup.procs", pid) &&
            (read_from("memory.usage_in_bytes") > 0 || read_from("memory.current") > 0 || i == 0))
            return;
        rmdir(group);
    }
    group[0] = '\0';
}

/* The memory of the daemon, and of the kernel for it. Pages that back the pools are trimmed before. */
static uint64_t memory_of(struct test_daemon *daemon) {
    uint64_t bytes = daemon_private_bytes(daemon);

    if (group[0] != '\0') {
        write_to("memory.force_empty", "0");
        uint64_t all = read_from("memory.usage_in_bytes");
        bytes += all > 0 ? all : read_from("memory.current");
    }
    return bytes;
}

static void attack_for(const struct test_daemon *daemon, struct peer *peer, const struct attack *attack,
                       uint64_t duration_ns, const char *socket_path) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("GPUPOOL_SOCKET", socket_path, 1);
        setenv("GPUPOOL_ADMIN_SOCKET", daemon->admin_socket, 1);
        attack->run();
        _exit(0);
    }
    assert_true(pid > 0);
    for (uint64_t end_ns = clock_now_ns() + duration_ns; clock_now_ns() < end_ns;) {
        const struct proto_lease lease = peer_acquire(peer, 4096);
        assert_int_equal(peer_release(peer, &lease), 0);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    TEST_REAP(pid, NULL);
}

static bool is_alone(struct test_daemon *daemon) {
    return daemon_sessions(daemon, "active") == 0 && daemon_sessions(daemon, "quarantined") == 0 &&
           daemon_number(daemon, "lingering_sockets") == 0;
}

/* Whether the pool has nothing, and nothing is being made for it. */
static bool is_trimmed(struct test_daemon *daemon) {
    cJSON_Delete(daemon_ask(daemon, "{\"command\":\"trim\"}"));
    return daemon_pool(daemon, "host", 0, "reserved_bytes") == 0 &&
           daemon_pool(daemon, "host", 0, "growing_bytes") == 0;
}

static void attacks_leave_the_daemon_as_it_was(void **state) {
    const uint64_t duration_ns = test_number("GPUPOOL_TEST_SIEGE_MS", 60) * NS_PER_MS;
    char text[TEST_CONFIG_SIZE], scope[TEST_PATH_SIZE];
    struct test_daemon daemon;
    struct peer peer;
    uint64_t before_bytes = 0, after_bytes = 0;
    (void)state;

    alarm((unsigned)(ROUNDS * ATTACKS * duration_ns / NS_PER_S) + TEST_LIMIT_S);
    daemon_start(&daemon, &(struct daemon_options){.gpu = "none",
                                                   .config = test_config(text, POOL_MIB, POOL_MIB),
                                                   .for_all_users = true});
    make_group(&daemon);
    cJSON *reply = daemon_ask(&daemon, "{\"command\":\"scope-add\",\"scope\":\"attacker\"}");
    snprintf(scope, sizeof scope, "%s",
             cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(reply, "socket")));
    cJSON_Delete(reply);
    print_message("control group: %s\n", group[0] != '\0' ? group : "none can be made");
    unsigned descriptors = daemon_descriptors_at_rest(&daemon);
    for (unsigned round = 0; round < ROUNDS; round++) {
        peer_open(&daemon, &peer, 0);
        /* in every other round as the same user of a scope */
        for (unsigned i = 0; i < ATTACKS; i++)
            attack_for(&daemon, &peer, &attacks[i], duration_ns, round % 2 == 1 ? scope : daemon.socket);
        peer_close(&peer);
        daemon.admin_fd =
            close_fd(daemon.admin_fd); /* it was silent for long, and may have made room for others */
        WAIT_UNTIL(is_alone(&daemon));
        WAIT_UNTIL(is_trimmed(&daemon));
        /* Questions of admin clients that are gone wait for their user's budget. */
        WAIT_UNTIL(daemon_descriptors_at_rest(&daemon) <= descriptors + 2);
        after_bytes = memory_of(&daemon);
        print_message("round %u: %s\n", round, BYTES_TEXT(after_bytes));
        if (round == 0) /* what any daemon has after some use */
            before_bytes = after_bytes;
    }
    if (!test_is_sanitized())
        assert_in_range(after_bytes, 1, before_bytes + SLACK_BYTES);
    daemon_stop(&daemon);
    rmdir(group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attacks_leave_the_daemon_as_it_was),
    };
    return test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
