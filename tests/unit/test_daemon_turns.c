/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the time that one client's questions wait while others do their worst. The time is counted in
 * turns of the others, on a daemon's real code (tests/fuzz/stage.h), so that nothing depends on the machine.
 */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/core/core.h"
#include "daemon/data/client.h"
#include "tests/entries.h"
#include "tests/fuzz/stage.h"
#include "tests/unit/unit.h"

#define SOCKETS  16u
#define QUEUED   20u
#define VICTIM   0u
#define ATTACKER 1u
#define ANNA     STAGE_UID
#define BEN      (STAGE_UID + 2)

#define HOST_POOL 2u

static struct stage *stage;
static int sockets[SOCKETS];

static int set_up(void **state) {
    static const char *const settings[] = {"daemon.sessions_limit=600", "quota.replies=1MiB", NULL};
    (void)state;
    stage = stage_new(settings);
    while (stage_run_any_job(stage)) {
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    stage_check(stage);
    stage_free(stage);
    return 0;
}

static void say(int fd, unsigned operation, uint64_t request, struct proto_message *message) {
    uint8_t packet[PROTO_PACKET_MAX];
    message->header = (struct proto_header){.operation = (uint16_t)operation, .request = request};
    size_t size = proto_encode(message, packet);
    assert_int_equal(send(fd, packet, size, MSG_NOSIGNAL), size);
}

static void ask(int fd, uint64_t request) {
    struct proto_message message = {0};
    say(fd, PROTO_LIST_POOLS, request, &message);
}

/* Takes one reply that is there. Returns its operation, or 0. */
static unsigned hear(int fd) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message;
    ssize_t n = recv(fd, packet, sizeof packet, MSG_DONTWAIT);
    if (n <= 0)
        return 0;
    assert_int_equal(proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &message, NULL), 0);
    return message.header.operation;
}

static unsigned hear_all(const int *fds, unsigned count) {
    unsigned n = 0;
    for (unsigned i = 0; i < count; i++)
        while (hear(fds[i]) != 0)
            n++;
    return n;
}

static void greet(int fd) {
    struct proto_message hello = {
        .hello = {.magic = PROTO_MAGIC, .version_min = PROTO_VERSION_MIN, .version_max = PROTO_VERSION_MAX}};
    say(fd, PROTO_HELLO, 1, &hello);
}

static int come(unsigned number, uid_t uid) {
    if (stage->processes[number].pid == 0)
        stage_begin_process(stage, number, uid);
    int fd = stage_connect(stage, &stage->processes[number]);
    greet(fd);
    stage_turn(stage);
    assert_int_equal(hear(fd), PROTO_HELLO_REPLY);
    return fd;
}

static void turn_once(void) {
    uv_run(&stage->daemon->loop, UV_RUN_NOWAIT);
}

/* One question of the victim's, and the others' replies until it is answered. */
static unsigned replies_before_mine(int fd, uint64_t request) {
    unsigned n = 0, turns = 0;

    (void)hear_all(sockets, SOCKETS);
    ask(fd, request);
    for (;;) {
        turn_once();
        unsigned operation = hear(fd);
        n += hear_all(sockets, SOCKETS);
        if (operation == PROTO_POOLS)
            return n;
        assert_int_equal(operation, 0);
        assert_true(++turns < 1000);
    }
}

/* Attackers are connected; they ask on all their sockets without end, and the victim now and then. */
static void flood_beside(int victim) {
    uint64_t request = 10;

    for (unsigned round = 0; round < 60; round++) {
        for (unsigned i = 0; i < SOCKETS; i++)
            for (unsigned n = 0; n < (round == 0 ? QUEUED : 2); n++)
                ask(sockets[i], request++);
        for (unsigned n = 0; n < round % 7; n++)
            turn_once();
        assert_true(replies_before_mine(victim, request++) <= 1);
    }
    assert_false(scheduler_is_idle(&stage->daemon->scheduler)); /* it was a flood to the end */
    for (unsigned turns = 0; !scheduler_is_idle(&stage->daemon->scheduler); turns++) {
        assert_true(turns < 1000);
        stage_turn(stage);
        (void)hear_all(sockets, SOCKETS);
    }
    for (unsigned i = 0; i < SOCKETS; i++)
        close(sockets[i]);
    close(victim);
    stage_turn(stage);
}

static void one_question_waits_for_one_turn_of_a_flood(void **state) {
    (void)state;
    int victim = come(VICTIM, ANNA);
    for (unsigned i = 0; i < SOCKETS; i++)
        sockets[i] = come(ATTACKER, ANNA);
    flood_beside(victim);
}

static void one_question_waits_for_one_turn_of_another_users_processes(void **state) {
    (void)state;
    int victim = come(VICTIM, ANNA);
    for (unsigned i = 0; i < SOCKETS; i++)
        sockets[i] = come(ATTACKER + i % (STAGE_PROCESSES - 1), BEN);
    flood_beside(victim);
}

/* Replies that wait for OPENED may all become sendable at once. */
static void kept_replies_that_may_go_hold_nobody_up(void **state) {
    static struct proto_message message, lease;
    uint8_t packet[PROTO_PACKET_MAX];
    (void)state;

    int victim = come(VICTIM, ANNA);
    for (unsigned i = 0; i < SOCKETS; i++) {
        sockets[i] = come(ATTACKER, ANNA);
        message.acquire =
            (struct proto_acquire){.pool = HOST_POOL, .size_bytes = 512, .timeout_ns = UINT64_MAX};
        say(sockets[i], PROTO_ACQUIRE, 2, &message);
        stage_turn(stage);
        while (stage_run_any_job(stage))
            stage_turn(stage);
        for (unsigned n = 0; n < QUEUED; n++)
            ask(sockets[i], 3 + n);
        stage_turn(stage);
    }
    for (unsigned i = 0; i < SOCKETS; i++) {
        ssize_t n = recv(sockets[i], packet, sizeof packet, MSG_DONTWAIT);
        assert_true(n > 0);
        assert_int_equal(proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &lease, NULL), 0);
        assert_int_equal(lease.header.operation, PROTO_LEASE);
        assert_int_equal(hear(sockets[i]), 0); /* nothing more, before */
        message.opened.segment = lease.lease.segment;
        say(sockets[i], PROTO_OPENED, 0, &message);
    }
    for (unsigned round = 0; round < 3 * SOCKETS; round++)
        assert_true(replies_before_mine(victim, 2 + round) <= OUTBOX_WRITES_PER_TURN);
    unsigned n = 0;
    list_for_each_entry(const struct client, client, &stage->daemon->clients.all, link) {
        n += client->connection.outbox.n_replies;
    }
    assert_true(n > 0); /* they went on to the end */
    for (unsigned i = 0; i < SOCKETS; i++)
        close(sockets[i]);
    close(victim);
    stage_kill(&stage->processes[ATTACKER]);
    stage_unlist(&stage->processes[ATTACKER]);
    for (unsigned round = 0; round < 10; round++) {
        stage_turn(stage);
        while (stage_run_any_job(stage))
            stage_turn(stage);
        stage_pass(stage, NS_PER_S);
    }
}

/* The farewell is behind more than is dealt with in a turn, and the process is gone when its turn comes. */
static void a_dead_processs_farewell_counts(void **state) {
    struct proto_message message = {0};
    (void)state;
    int fd = come(VICTIM, ANNA);
    message.acquire = (struct proto_acquire){.pool = 1, .size_bytes = 4096, .timeout_ns = UINT64_MAX};
    say(fd, PROTO_ACQUIRE, 2, &message);
    stage_turn(stage);
    while (stage_run_any_job(stage)) {
    }
    stage_turn(stage);
    assert_int_equal(hear(fd), PROTO_LEASE);
    for (unsigned n = 0; n < QUEUED; n++)
        ask(fd, 3 + n);
    say(fd, PROTO_BYE, 99, &message);
    stage_kill(&stage->processes[VICTIM]);
    stage_turn(stage);
    assert_int_equal(stage->daemon->core->n_sessions,
                     0); /* else it were in quarantine: NVML lists it still */
    unsigned last = 0;
    for (unsigned operation = hear(fd); operation != 0; operation = hear(fd))
        last = operation;
    assert_int_equal(last, PROTO_OK);
    close(fd);
}

/* The holder of the socket is not the process that connected. */
static void nobody_greets_for_a_dead_process(void **state) {
    (void)state;
    stage_begin_process(stage, VICTIM, ANNA);
    int fd = stage_connect(stage, &stage->processes[VICTIM]);
    stage_turn(stage);
    stage_kill(&stage->processes[VICTIM]);
    greet(fd);
    stage_turn(stage);
    assert_int_equal(hear(fd), 0);
    assert_int_equal(stage->daemon->clients.n_clients, 0);
    close(fd);
}

static void who_says_nothing_costs_one_descriptor(void **state) {
    int fds[10];
    (void)state;
    close(come(VICTIM, ANNA)); /* what is opened once */
    stage_turn(stage);
    unsigned before = count_entries("/proc/self/fd");
    for (unsigned i = 0; i < 10; i++)
        fds[i] = stage_connect(stage, &stage->processes[VICTIM]);
    stage_turn(stage);
    assert_int_equal(count_entries("/proc/self/fd"), before + 10 + 10); /* its end, and the daemon's */
    for (unsigned i = 0; i < 10; i++)
        close(fds[i]);
    stage_turn(stage);
    assert_int_equal(count_entries("/proc/self/fd"), before);
}

static bool is_open(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static void who_only_connects_shuts_out_himself(void **state) {
    static int many[700];
    int few[5];
    (void)state;
    stage_begin_process(stage, ATTACKER, BEN);
    stage_begin_process(stage, VICTIM, ANNA);
    for (unsigned i = 0; i < 700; i++) {
        if (i >= 200 && i % 100 == 0) /* while the attacker comes */
            few[i / 100 - 2] = stage_connect(stage, &stage->processes[VICTIM]);
        many[i] = stage_connect(stage, &stage->processes[ATTACKER]);
        if (stage->daemon->clients.n_greeting > CLIENT_GREETING_MAX)
            fail_msg("%u connections are about to greet", stage->daemon->clients.n_greeting);
        if (!is_open(many[i]))
            fail_msg("who came last was sent away");
        turn_once();    /* libuv closes */
        if (i >= 400) { /* long since sent away */
            assert_false(is_open(many[i - 400]));
            close(many[i - 400]);
        }
    }
    for (unsigned i = 0; i < 5; i++) {
        greet(few[i]);
        stage_turn(stage);
        assert_int_equal(hear(few[i]), PROTO_HELLO_REPLY);
        close(few[i]);
    }
    for (unsigned i = 300; i < 700; i++)
        close(many[i]);
    for (unsigned i = 0; i < 5; i++)
        stage_turn(stage);
    assert_int_equal(stage->daemon->clients.n_clients, 0);
    assert_int_equal(stage->daemon->clients.n_users_greeting, 0);
}

/* --- admin clients --- */

static void ask_stats(int fd) {
    static const char line[] = "{\"command\":\"ping\"}\n";
    assert_int_equal(write(fd, line, sizeof line - 1), sizeof line - 1);
}

static bool is_answered(int fd) {
    char answer[4096];
    return read(fd, answer, sizeof answer) > 0;
}

static void a_budget_is_a_fiftieth_after_a_first_piece(void **state) {
    struct admin_budget budget = {0};
    uint64_t now_ns = NS_PER_S, used_ns = 0;
    (void)state;

    while (admin_budget_next_ns(&budget, ANNA, now_ns) == now_ns) {
        assert_true(used_ns <= ADMIN_BUDGET_FIRST_NS);
        admin_budget_use(&budget, ANNA, NS_PER_MS, now_ns);
        used_ns += NS_PER_MS;
    }
    assert_int_equal(used_ns, ADMIN_BUDGET_FIRST_NS + NS_PER_MS);
    assert_int_equal(admin_budget_next_ns(&budget, BEN, now_ns), now_ns);
    for (unsigned i = 0; i < 1000; i++) { /* from then on */
        now_ns = admin_budget_next_ns(&budget, ANNA, now_ns);
        admin_budget_use(&budget, ANNA, NS_PER_MS, now_ns);
    }
    assert_int_equal(now_ns, NS_PER_S + 1000 * ADMIN_BUDGET_SHARE * NS_PER_MS);
    /* the user that owes most is not forgotten for others */
    for (unsigned i = 0; i < 2 * ADMIN_BUDGET_USERS; i++)
        admin_budget_use(&budget, BEN + i, NS_PER_MS, now_ns);
    assert_true(admin_budget_next_ns(&budget, ANNA, now_ns) > now_ns);
}

static void who_asks_for_stats_without_end_is_made_to_wait(void **state) {
    (void)state;
    stage_begin_process(stage, ATTACKER, ANNA);
    stage_begin_process(stage, VICTIM, BEN);
    int greedy = stage_connect_admin(stage, &stage->processes[ATTACKER]);
    int other = stage_connect_admin(stage, &stage->processes[VICTIM]);
    ask_stats(greedy);
    stage_turn(stage);
    assert_true(is_answered(greedy));
    admin_budget_use(&stage->daemon->admin.budget, ANNA, 2 * ADMIN_BUDGET_FIRST_NS, stage->now_ns);
    ask_stats(greedy);
    ask_stats(other);
    stage_turn(stage);
    assert_false(is_answered(greedy));
    assert_true(is_answered(other));
    stage_pass(stage, ADMIN_BUDGET_SHARE * ADMIN_BUDGET_FIRST_NS - NS_PER_S / 2);
    assert_false(is_answered(greedy));
    stage_pass(stage, NS_PER_S);
    assert_true(is_answered(greedy));
    /* and its connection may end meanwhile */
    admin_budget_use(&stage->daemon->admin.budget, ANNA, NS_PER_S, stage->now_ns);
    ask_stats(greedy);
    stage_turn(stage);
    close(greedy);
    close(other);
    stage_turn(stage);
    stage_pass(stage, 100 * NS_PER_S);
    assert_int_equal(stage->daemon->admin.n_clients, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(one_question_waits_for_one_turn_of_a_flood),
        TEST(one_question_waits_for_one_turn_of_another_users_processes),
        TEST(kept_replies_that_may_go_hold_nobody_up),
        TEST(a_dead_processs_farewell_counts),
        TEST(nobody_greets_for_a_dead_process),
        TEST(who_says_nothing_costs_one_descriptor),
        TEST(who_only_connects_shuts_out_himself),
        TEST(a_budget_is_a_fiftieth_after_a_first_piece),
        TEST(who_asks_for_stats_without_end_is_made_to_wait),
    };
    return cmocka_run_group_tests_name("daemon_turns", tests, NULL, NULL);
}
