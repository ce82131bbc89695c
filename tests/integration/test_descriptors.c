/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon with few descriptors, all of which clients use up: its operator can still look. */
#include <grp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/loop/descriptors.h"
#include "tests/integration/harness.h"
#include "tests/raw_client.h"

#define DESCRIPTORS 128u /* CUDA opens about 48 of its own */
#define STRANGER    1001u

/* Whether a user's question on the admin socket is answered. */
static bool is_answered_as(const struct test_daemon *daemon, uid_t uid) {
    static const char ping[] = "{\"command\":\"ping\"}\n";

    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        if (!test_become(uid))
            _exit(2);
        int fd = raw_client_connect(daemon->admin_socket, SOCK_STREAM, TEST_WAIT_NS);
        if (fd < 0)
            _exit(2);
        (void)send(fd, ping, sizeof ping - 1, MSG_NOSIGNAL);
        _exit(recv(fd, &byte, 1, 0) == 1 ? 0 : 1);
    }
    int status = test_wait(pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 0;
}

/* Whether all numbers of descriptors are in use but those that are kept for the operator. */
static bool only_the_kept_are_left(const struct test_daemon *daemon) {
    char path[64];

    for (unsigned fd = 0; fd < DESCRIPTORS - DESCRIPTORS_KEPT; fd++) {
        struct stat status;
        snprintf(path, sizeof path, "/proc/%d/fd/%u", (int)daemon->pid, fd);
        if (lstat(path, &status) < 0)
            return false;
    }
    return true;
}

static void the_operator_is_answered_when_clients_have_used_up_all_descriptors(void **state) {
    struct test_daemon daemon;
    int fds[DESCRIPTORS]; /* sessions have fewer: these say nothing */
    unsigned n = 0;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.descriptors = DESCRIPTORS, .for_all_users = true});
    assert_true(is_answered_as(&daemon, 0));
    while (n < DESCRIPTORS) {
        fds[n] = raw_client_connect(daemon.socket, SOCK_SEQPACKET, TEST_WAIT_NS);
        assert_true(fds[n++] >= 0);
    }
    WAIT_UNTIL(only_the_kept_are_left(&daemon));
    WAIT_UNTIL(daemon_logged(&daemon, "no descriptors are left")); /* with the next client that it refuses */
    for (unsigned i = 0; i < 3; i++)
        assert_true(is_answered_as(&daemon, geteuid()));
    if (geteuid() == 0)
        assert_false(is_answered_as(&daemon, STRANGER));
    while (n > 0)
        close_fd(fds[--n]);
    WAIT_UNTIL(raw_client_is_let_in(daemon.socket, TEST_WAIT_NS));
    daemon_stop(&daemon);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_operator_is_answered_when_clients_have_used_up_all_descriptors),
    };
    return test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
