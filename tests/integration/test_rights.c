/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that clients attach to messages: on kernels that refuse them, and as on those that do not. The
 * descriptor is that of a TCP socket that lingers: a process that drops its last reference waits for longer
 * than any test.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/packet.h"
#include "daemon/loop/rights.h"
#include "tests/integration/faults_fixture.h"
#include "tests/integration/puppet.h"
#include "tests/lingering_socket.h"
#include "tests/raw_client.h"

#define PING     "{\"command\":\"ping\"}"
#define LINGER_S 600

static struct { int socket, peer; } lingering;

static void make_lingering(void) {
    lingering.socket = lingering_socket(LINGER_S, &lingering.peer);
    assert_true(lingering.socket >= 0);
}

static void ping(struct test_daemon *daemon) {
    cJSON_Delete(daemon_ask(daemon, PING));
}

static void stop(pid_t pid) {
    int status;
    assert_int_equal(kill(pid, SIGSTOP), 0);
    WAIT_UNTIL(waitpid(pid, &status, WUNTRACED | WNOHANG) == pid);
    assert_true(WIFSTOPPED(status));
}

/* Sends it over a connection that is accepted or not, and closes it before the daemon, which is stopped
 * meanwhile, looks at what came: the last reference is in the message. Returns what sendmsg() did. */
static ssize_t send_lingering(struct test_daemon *daemon, bool to_admin, bool is_accepted) {
    const char *path = to_admin ? daemon->admin_socket : daemon->socket;
    int type = to_admin ? SOCK_STREAM : SOCK_SEQPACKET;
    _cleanup_(close_fdp) int fd = is_accepted ? raw_client_connect(path, type, TEST_WAIT_NS) : -1;

    if (is_accepted)
        ping(daemon);
    stop(daemon->pid);
    if (!is_accepted)
        fd = raw_client_connect(path, type, TEST_WAIT_NS);
    assert_true(fd >= 0);
    ssize_t n = send_with_fds(fd, "{", 1, &lingering.socket, 1, MSG_NOSIGNAL);
    int error = errno;
    lingering.socket = close_fd(lingering.socket);
    assert_int_equal(kill(daemon->pid, SIGCONT), 0);
    errno = error;
    return n;
}

/* The daemon answers, and serves new clients. */
static void must_be_well(struct test_daemon *daemon) {
    struct puppet puppet;

    ping(daemon);
    puppet_connect(&puppet, daemon);
    puppet_quit(&puppet);
}

/* Linux 6.16. */
static bool kernel_refuses_descriptors(void) {
    _cleanup_(close_fdp) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int off = 0;
    return setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off) == 0;
}

static void the_kernel_refuses_descriptors_before_a_connection_is_accepted_and_afterwards(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!kernel_refuses_descriptors()) {
        print_message("this kernel cannot refuse descriptors\n");
        skip();
    }
    daemon_start(&daemon, &(struct daemon_options){0});
    for (unsigned i = 0; i < 4; i++) {
        lingering.socket = open("/dev/null", O_RDONLY | O_CLOEXEC); /* it comes back */
        assert_int_equal(send_lingering(&daemon, i % 2 == 1, i < 2), -1);
        assert_int_equal(errno, EPERM);
        must_be_well(&daemon);
    }
    daemon_stop(&daemon);
}

/* A daemon as before Linux 6.16: its setsockopt() fails. */
static void start_on_old_kernel(struct test_daemon *daemon) {
    arm(CALL_SETSOCKOPT, ENOPROTOOPT, 1, 1);
    daemon_start(daemon, &(struct daemon_options){.environment = environment()});
}

static void stop_on_old_kernel(struct test_daemon *daemon) {
    assert_true(disarm() > 0);
    daemon_stop(daemon);
}

static void where_descriptors_arrive_the_loop_does_not_wait_for_them(void **state) {
    struct test_daemon daemon;
    int peers[4];

    (void)state;
    start_on_old_kernel(&daemon);
    for (unsigned i = 0; i < 4; i++) {
        make_lingering();
        assert_int_equal(send_lingering(&daemon, i % 2 == 1, i < 2), 1);
        peers[i] = lingering.peer;
        must_be_well(&daemon);
    }
    assert_true(daemon_logged(&daemon, "with a descriptor, which clients may not send"));
    for (unsigned i = 0; i < 4; i++)
        close_fd(peers[i]);
    must_be_well(&daemon);
    stop_on_old_kernel(&daemon);
}

static void who_sent_a_descriptor_is_told_before_the_session_ends(void **state) {
    struct test_daemon daemon;
    struct proto_message message = {0};
    uint8_t packet[PROTO_PACKET_MAX];

    (void)state;
    start_on_old_kernel(&daemon);
    _cleanup_(close_fdp) int fd = raw_client_connect(daemon.socket, SOCK_SEQPACKET, TEST_WAIT_NS);
    assert_true(fd >= 0 && raw_client_greet(fd));
    size_t size = raw_client_encode(&message, PROTO_LIST_POOLS, 2, packet);
    assert_int_equal(send_with_fds(fd, packet, size, &fd, 1, MSG_NOSIGNAL), size);
    ssize_t n = recv(fd, packet, sizeof packet, 0);
    if (n < 0 && errno == ECONNRESET) /* said once of a socket that was closed before all was read */
        n = recv(fd, packet, sizeof packet, 0);
    assert_true(n > 0);
    assert_int_equal(proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &message, NULL), 0);
    assert_int_equal(message.header.operation, PROTO_ERROR);
    assert_int_equal(message.header.request, 0);
    assert_non_null(strstr(message.failure.text, "with a descriptor, which clients may not send"));
    stop_on_old_kernel(&daemon);
}

static void who_cannot_be_told_of_a_broken_packet_is_in_the_log(void **state) {
    struct test_daemon daemon;
    uint8_t byte = 0;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.environment = environment()});
    /* The first connection has the descriptor on which no call fails. */
    _cleanup_(close_fdp) int first = raw_client_connect(daemon.socket, SOCK_SEQPACKET, TEST_WAIT_NS);
    assert_true(first >= 0 && raw_client_greet(first));
    _cleanup_(close_fdp) int fd = raw_client_connect(daemon.socket, SOCK_SEQPACKET, TEST_WAIT_NS);
    assert_true(fd >= 0 && raw_client_greet(fd));
    arm(CALL_SENDMSG, EAGAIN, 1, 1); /* as if its socket were full */
    assert_int_equal(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
    ssize_t n = recv(fd, &byte, 1, 0);
    assert_true(n == 0 || (n < 0 && errno == ECONNRESET));
    assert_true(disarm() > 0);
    WAIT_UNTIL(daemon_logged(&daemon,
                             "packet: shorter than the 16 bytes of a header; its session ends, and it "
                             "could not be told why"));
    must_be_well(&daemon);
    daemon_stop(&daemon);
}

/* Nothing else of the daemon's work depends on it. */
static void commands_in_pieces_are_read_where_descriptors_may_arrive(void **state) {
    struct test_daemon daemon;
    char reply[256];

    (void)state;
    start_on_old_kernel(&daemon);
    _cleanup_(close_fdp) int fd = raw_client_connect(daemon.admin_socket, SOCK_STREAM, TEST_WAIT_NS);
    assert_true(fd >= 0);
    for (const char *byte = PING "\n"; *byte != '\0'; byte++) {
        assert_int_equal(send(fd, byte, 1, MSG_NOSIGNAL), 1);
        ping(&daemon); /* it has read the byte */
    }
    assert_true(recv(fd, reply, sizeof reply, 0) > 0);
    stop_on_old_kernel(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernel_refuses_descriptors_before_a_connection_is_accepted_and_afterwards),
        cmocka_unit_test(where_descriptors_arrive_the_loop_does_not_wait_for_them),
        cmocka_unit_test(who_sent_a_descriptor_is_told_before_the_session_ends),
        cmocka_unit_test(who_cannot_be_told_of_a_broken_packet_is_in_the_log),
        cmocka_unit_test(commands_in_pieces_are_read_where_descriptors_may_arrive),
    };
    if (!has_call_faults())
        return 77;
    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, make_faults, drop_faults));
}
