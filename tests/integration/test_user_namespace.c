/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon in a user namespace that maps root alone: to it all other users have the same uid. It serves none
 * of them. Takes root, and leave to make namespaces. */
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/harness.h"
#include "tests/raw_client.h"

#define STRANGER 1001u

static char script[] = "/tmp/gpupool-test-daemon-XXXXXX";
static struct test_daemon daemon_;

static int start(void **state) {
    (void)state;
    test_run_daemon_by(script, "unshare --user --map-root-user");
    daemon_start(&daemon_, &(struct daemon_options){.for_all_users = true});
    return 0;
}

static int stop(void **state) {
    (void)state;
    daemon_stop(&daemon_);
    unlink(script);
    return 0;
}

/* Says HELLO as a user. Returns 0 when it is let in, 1 when it is told why not, 2 otherwise. */
static int greet_as(uid_t uid) {
    pid_t pid = fork();
    if (pid == 0) {
        struct proto_message message = {.hello = RAW_CLIENT_HELLO};
        uint8_t packet[PROTO_PACKET_MAX];

        if (!test_become(uid))
            _exit(3);
        int fd = raw_client_connect(daemon_.socket, SOCK_SEQPACKET, TEST_WAIT_NS);
        size_t size = raw_client_encode(&message, PROTO_HELLO, 1, packet);
        if (fd < 0 || send(fd, packet, size, MSG_NOSIGNAL) < 0)
            _exit(2);
        ssize_t n = recv(fd, packet, sizeof packet, 0);
        if (n <= 0 || proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &message, NULL) != 0)
            _exit(2);
        if (message.header.operation == PROTO_HELLO_REPLY)
            _exit(0);
        _exit(
            message.header.operation == PROTO_ERROR &&
                    strstr(message.failure.text, "user namespace in which this process's user has no number")
                ? 1
                : 2);
    }
    int status = test_wait(pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void users_without_a_number_are_refused_and_told_why(void **state) {
    (void)state;
    assert_int_equal(greet_as(0), 0);
    assert_int_equal(greet_as(STRANGER), 1);
    assert_int_equal(greet_as(STRANGER + 1), 1);
    assert_int_equal(greet_as(65534), 1); /* the number that all of them seem to have */
    assert_int_equal(greet_as(0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(users_without_a_number_are_refused_and_told_why),
    };
    if (geteuid() != 0 || system("unshare --user --map-root-user true 2>/dev/null") != 0) {
        print_message("needs root, and leave to make user namespaces\n");
        return 77;
    }
    return test_finish(cmocka_run_group_tests(tests, start, stop));
}
