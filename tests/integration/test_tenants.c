/* SPDX-License-Identifier: Apache-2.0 */
/* Two users of one daemon: nothing of the one ever reaches the other. Needs root, to be them. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/puppet.h"

#define POOL_MIB           16u
#define MOST               (12 * MIB)
#define ALICE              65534u
#define BOB                65533u
#define TEST_FOR_ALL_USERS true

#include "tests/integration/daemon_fixture.h"

static void connect_both(struct puppet *alice, struct puppet *bob) {
    puppet_connect_as(alice, &daemon_, NULL, ALICE);
    puppet_connect_as(bob, &daemon_, NULL, BOB);
}

static bool is_root(void) {
    return geteuid() == 0;
}

/* Plays with memory of each kind. The puppets are connected; the play ends them. */
static void for_two_users(void (*play)(unsigned kind, struct puppet *alice, struct puppet *bob)) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    if (!is_root())
        skip();
    for (unsigned i = 0; i < count; i++) {
        struct puppet alice, bob;
        connect_both(&alice, &bob);
        play(kinds[i], &alice, &bob);
    }
}

static void attach_as_others(unsigned kind, struct puppet *alice, struct puppet *bob) {
    struct gpupool_token token;
    struct puppet sister;
    puppet_connect_as(&sister, &daemon_, NULL, ALICE);
    PUPPET_MUST(alice, puppet_acquire(alice, 0, kind, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(alice, puppet_share(alice, 0, &token));
    PUPPET_MUST_BE(bob, puppet_attach(bob, 0, &token), GPUPOOL_E_NO_TOKEN);
    PUPPET_MUST(&sister, puppet_attach(&sister, 0, &token)); /* of the same user: it is a good token */
    /* not even root's: isolation is by user, and root is one */
    struct puppet root;
    puppet_connect(&root, &daemon_);
    PUPPET_MUST_BE(&root, puppet_attach(&root, 0, &token), GPUPOOL_E_NO_TOKEN);
    puppet_quit(&root);
    puppet_quit(alice);
    puppet_quit(&sister);
    puppet_quit(bob);
}

static void a_token_is_worth_nothing_to_another_user(void **state) {
    (void)state;
    for_two_users(attach_as_others);
}

static void take_small_buffers(unsigned kind, struct puppet *alice, struct puppet *bob) {
    uint64_t segments[2];
    /* small buffers: a segment would have room for both */
    PUPPET_MUST(alice, puppet_acquire(alice, 0, kind, 4096, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(bob, puppet_acquire(bob, 0, kind, 4096, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(alice, puppet_query(alice, 0));
    PUPPET_MUST(bob, puppet_query(bob, 0));
    segments[0] = alice->answer.info.segment;
    segments[1] = bob->answer.info.segment;
    assert_int_not_equal(segments[0], segments[1]);
    /* also after both gave back and took again */
    PUPPET_MUST(alice, puppet_release(alice, 0));
    PUPPET_MUST(bob, puppet_release(bob, 0));
    PUPPET_MUST(bob, puppet_acquire(bob, 0, kind, 4096, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(bob, puppet_query(bob, 0));
    assert_int_equal(bob->answer.info.segment, segments[1]);
    puppet_quit(alice);
    puppet_quit(bob);
}

static void two_users_are_never_in_one_segment(void **state) {
    (void)state;
    for_two_users(take_small_buffers);
}

static void wait_for_idle_memory(unsigned kind, struct puppet *alice, struct puppet *bob) {
    const char *name = puppet_kind_name(kind);
    PUPPET_MUST(alice, puppet_acquire(alice, 0, kind, MOST, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(alice, puppet_fill(alice, 0, 0xa11ce));
    PUPPET_MUST(alice, puppet_release(alice, 0));
    /* Free, but alice still has it mapped: bob waits. */
    uint64_t retires = daemon_pool(&daemon_, name, 0, "retires");
    puppet_send_acquire(bob, 0, kind, MOST, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_pool(&daemon_, name, 0, "waiters") == 1);
    PUPPET_MUST(alice, puppet_acquire(alice, 1, kind, MOST, GPUPOOL_NOW, 0)); /* hers she has at once */
    PUPPET_MUST(alice, puppet_release(alice, 1));
    assert_false(puppet_has_answered(bob));
    puppet_quit(alice);
    PUPPET_MUST(bob, puppet_receive(bob));
    assert_true(daemon_pool(&daemon_, name, 0, "retires") > retires);
    PUPPET_MUST(bob, puppet_check(bob, 0, 0)); /* zeros were not asked for, and there is nothing of alice's */
    puppet_quit(bob);
}

static void at_the_limit_the_idle_memory_of_another_user_makes_room_and_is_zero(void **state) {
    (void)state;
    for_two_users(wait_for_idle_memory);
}

static void wait_together(unsigned kind, struct puppet *alice, struct puppet *bob) {
    const char *name = puppet_kind_name(kind);
    struct puppet root;
    puppet_connect(&root, &daemon_);
    PUPPET_MUST(alice, puppet_acquire(alice, 0, kind, 8 * MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(bob, puppet_acquire(bob, 0, kind, 4 * MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&root, puppet_acquire(&root, 0, kind, 4 * MIB, GPUPOOL_FOREVER, 0));
    puppet_send_acquire(alice, 1, kind, 4 * MIB, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_pool(&daemon_, name, 0, "waiters") == 1);
    puppet_send_acquire(bob, 1, kind, 4 * MIB, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_pool(&daemon_, name, 0, "waiters") == 2);
    puppet_quit(&root); /* there is room for one of them */
    PUPPET_MUST(bob, puppet_receive(bob));
    assert_int_equal(daemon_pool(&daemon_, name, 0, "waiters"), 1);
    assert_false(puppet_has_answered(alice));
    puppet_quit(bob);
    PUPPET_MUST(alice, puppet_receive(alice));
    puppet_quit(alice);
}

static void the_user_with_less_is_served_first_although_it_came_later(void **state) {
    (void)state;
    for_two_users(wait_together);
}

static void kill_and_check(unsigned kind, struct puppet *alice, struct puppet *bob) {
    PUPPET_MUST(alice, puppet_acquire(alice, 0, kind, MOST, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(alice, puppet_fill(alice, 0, 0xdead));
    puppet_send_acquire(bob, 0, kind, MOST, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_pool(&daemon_, puppet_kind_name(kind), 0, "waiters") == 1);
    puppet_kill(alice);
    PUPPET_MUST(bob, puppet_receive(bob));
    PUPPET_MUST(bob, puppet_check(bob, 0, 0));
    puppet_quit(bob);
    WAIT_UNTIL(daemon_sum(&daemon_, "leases") == 0);
}

static void a_killed_users_memory_does_not_serve_another_before_it_is_new(void **state) {
    (void)state;
    for_two_users(kill_and_check);
}

static void a_refusal_does_not_name_another_users_processes(void **state) {
    struct puppet alice, bob;
    char who[32];

    (void)state;
    if (!is_root())
        skip();
    connect_both(&alice, &bob);
    PUPPET_MUST(&alice, puppet_acquire(&alice, 0, GPUPOOL_POOL_HOST, MOST, GPUPOOL_FOREVER, 0));
    PUPPET_MUST_BE(&bob, puppet_acquire(&bob, 0, GPUPOOL_POOL_HOST, MOST, 10 * NS_PER_MS, 0),
                   GPUPOOL_E_EXHAUSTED);
    snprintf(who, sizeof who, "pid %d", (int)alice.pid);
    assert_null(strstr(bob.answer.text, who));
    PUPPET_SAID(&bob, "other users");
    puppet_quit(&alice);
    puppet_quit(&bob);
}

static void who_may_not_connect_is_told_why(void **state) {
    struct puppet alice;

    (void)state;
    if (!is_root())
        skip();
    assert_int_equal(chmod(daemon_.socket, 0660), 0);
    puppet_start_as(&alice, &daemon_, NULL, ALICE);
    PUPPET_MUST_BE(&alice, puppet_open(&alice, ""), GPUPOOL_E_CONNECT);
    PUPPET_SAID(&alice, "has to be in the group");
    assert_int_equal(chmod(daemon_.socket, 0666), 0);
    PUPPET_MUST(&alice, puppet_open(&alice, ""));
    puppet_quit(&alice);
}

/* Asks as another user; writes the answer to standard output. */
static int play_admin(int fd, const char *argument) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char answer[65536];

    if (setgid(BOB) < 0 || setuid(BOB) < 0)
        return 1;
    int admin = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", argument);
    if (admin < 0 || connect(admin, (struct sockaddr *)&address, sizeof address) < 0)
        return 2;
    for (unsigned i = 0; i < 2; i++) {
        const char *request = i == 0 ? "{\"command\":\"trim\"}\n" : "{\"command\":\"ping\"}\n";
        if (send(admin, request, strlen(request), MSG_NOSIGNAL) < 0)
            return 3;
        ssize_t n = recv(admin, answer, sizeof answer, 0);
        if (n <= 0 || send(fd, answer, (size_t)n, MSG_NOSIGNAL) != n)
            return 4;
    }
    close(admin);
    return 0;
}

static void trim_is_refused_to_them(void **state) {
    struct puppet process;
    char answer[65536];

    (void)state;
    if (!is_root())
        skip();
    puppet_start_role(&process, &daemon_, "admin", daemon_.admin_socket);
    ssize_t n = recv(process.fd, answer, sizeof answer - 1, 0);
    assert_true(n > 0);
    answer[n] = '\0';
    assert_non_null(strstr(answer, "permission-denied"));
    n = recv(process.fd, answer, sizeof answer - 1, 0);
    assert_true(n > 0);
    answer[n] = '\0';
    assert_non_null(strstr(answer, "\"pid\"")); /* asking is free */
    assert_int_equal(test_wait(process.pid), 0);
    close_fd(process.fd);
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {{"admin", play_admin}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_is_worth_nothing_to_another_user),
        cmocka_unit_test(two_users_are_never_in_one_segment),
        cmocka_unit_test(at_the_limit_the_idle_memory_of_another_user_makes_room_and_is_zero),
        cmocka_unit_test(the_user_with_less_is_served_first_although_it_came_later),
        cmocka_unit_test(a_killed_users_memory_does_not_serve_another_before_it_is_new),
        cmocka_unit_test(a_refusal_does_not_name_another_users_processes),
        cmocka_unit_test(who_may_not_connect_is_told_why),
        cmocka_unit_test(trim_is_refused_to_them),
    };
    int status = puppet_main(argc, argv, roles);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
