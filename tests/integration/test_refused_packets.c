/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets that end their session: the client is told by an ERROR which field was wrong, and the log has a
 * line. Other sessions go on.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/harness.h"
#include "tests/integration/wire_peer.h"
#include "tests/raw_client.h"

#define POOL_MIB 16u

#include "tests/integration/daemon_fixture.h"

static void send_bytes(int fd, const void *packet, size_t size) {
    assert_int_equal(send(fd, packet, size, MSG_NOSIGNAL), size);
}

static void send_message(int fd, unsigned operation, uint64_t request, struct proto_message *message) {
    uint8_t packet[PROTO_PACKET_MAX];
    send_bytes(fd, packet, raw_client_encode(message, operation, request, packet));
}

/* Whether the daemon has ended the session. A socket that is closed before all was read from it says so once
 * by ECONNRESET; data that was sent before the end can still be read then. */
static bool has_ended(int fd) {
    uint8_t byte;
    ssize_t n = recv(fd, &byte, sizeof byte, 0);
    if (n < 0 && errno == ECONNRESET)
        n = recv(fd, &byte, sizeof byte, 0);
    return n == 0;
}

/* The next message is an ERROR with this request id that names the field, and is the session's last. */
static void expect_rejection(int fd, uint64_t request, unsigned error, const char *field) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message;
    const char *reason = "";

    ssize_t n = recv(fd, packet, sizeof packet, 0);
    if (n < 0 && errno == ECONNRESET)
        n = recv(fd, packet, sizeof packet, 0);
    if (n <= 0)
        fail_msg("the session ended without a word about %s", field);
    if (proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &message, &reason) < 0)
        fail_msg("the daemon sent what does not check out: %s", reason);
    assert_int_equal(message.header.operation, PROTO_ERROR);
    if (strncmp(message.failure.text, field, strlen(field)) != 0)
        fail_msg("not %s is named, but: %s", field, message.failure.text);
    assert_int_equal(message.header.request, request);
    assert_int_equal(message.failure.error, error);
    assert_non_null(strstr(message.failure.text, "the session ends"));
    assert_true(has_ended(fd));
}

static int connect_raw(void) {
    int fd = raw_client_connect(daemon_.socket, SOCK_SEQPACKET, TEST_WAIT_NS);
    assert_true(fd >= 0);
    return fd;
}

static int greet_raw(void) {
    int fd = connect_raw();
    assert_true(raw_client_greet(fd));
    return fd;
}

static void the_field_of_a_broken_packet_is_named_before_the_session_ends(void **state) {
    static const struct {
        unsigned operation;
        size_t offset, width; /* from the packet's beginning */
        uint64_t value;
        const char *field;
    } cases[] = {
        {PROTO_ACQUIRE, 0, 2, 99, "header.operation"},
        {PROTO_ACQUIRE, 0, 2, PROTO_POOLS, "header.operation"},
        {PROTO_ACQUIRE, 2, 2, 1, "header.flags"},
        {PROTO_ACQUIRE, 4, 4, 47, "header.length"},
        {PROTO_ACQUIRE, 8, 8, 0, "header.request"},
        {PROTO_ACQUIRE, 20, 4, PROTO_ACQUIRE_FLAGS + 1, "ACQUIRE.flags"},
        {PROTO_ACQUIRE, 24, 8, 0, "ACQUIRE.size_bytes"},
        {PROTO_ACQUIRE, 32, 8, 4097, "ACQUIRE.least_bytes"},
        {PROTO_RELEASE, 48, 4, 513, "RELEASE.fence"},
        {PROTO_RELEASE, 52, 4, PROTO_BOARD_WORDS + 1, "RELEASE.board_word"},
        {PROTO_RELEASE, 64, 8, 1, "RELEASE.board_value"},
        {PROTO_RELEASE, 56, 8, 1, "RELEASE.fence_value"},
        {PROTO_SPLIT, 40, 8, 0, "SPLIT.size_bytes"},
        {PROTO_SHARE, 32, 8, 512, "SHARE.offset_bytes"},
        {PROTO_SHARE, 48, 8, UINT64_MAX, "SHARE.size_bytes"},
        {PROTO_IDLE, 20, 4, 2, "IDLE.flags"},
        {PROTO_CLOSED, 16, 8, 0, "CLOSED.segment"},
        {PROTO_ASK_PARTS, 32, 4, 4096, "ASK_PARTS.part"},
        {PROTO_DESCRIBE, 36, 4, 2, "DESCRIBE.flags"},
        {PROTO_ACQUIRE_SEGMENTS, 24, 8, MIB, "ACQUIRE_SEGMENTS.segment_bytes"},
        {PROTO_ACQUIRE_SEGMENTS, 24, 8, PROTO_SIZE_MAX, "ACQUIRE_SEGMENTS.segment_bytes * count"},
        {PROTO_ACQUIRE_SEGMENTS, 32, 4, PROTO_LEASES_MAX + 1, "ACQUIRE_SEGMENTS.count"},
        {PROTO_ACQUIRE_SEGMENTS, 36, 4, 1, "ACQUIRE_SEGMENTS.reserved"},
        {PROTO_WRITE_DIRECTORY, 16, 4, PROTO_DIRECTORY_BYTES_MAX, "WRITE_DIRECTORY.offset_bytes"},
        {PROTO_WRITE_DIRECTORY, 20, 4, 2, "WRITE_DIRECTORY.n_bytes"},
        {PROTO_PUBLISH, 16, 1, 0, "PUBLISH.name"},
        {PROTO_PUBLISH, 148, 4, PROTO_NAME_BUFFERS_MAX + 1, "PUBLISH.count"},
        {PROTO_PUBLISH, 208, 4, 2, "PUBLISH.buffers.has_fence"},
        {PROTO_UNPUBLISH, 152, 4, 2, "UNPUBLISH.flags"},
        {PROTO_OPEN_NAME, 160, 4, 3, "OPEN_NAME.flags"},
        {PROTO_READ_DIRECTORY, 156, 4, 1, "READ_DIRECTORY.reserved"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        _cleanup_(close_fdp) int fd = greet_raw();
        struct proto_message message = {0};
        uint8_t packet[PROTO_PACKET_MAX];
        switch (cases[i].operation) {
        case PROTO_ACQUIRE:
            message.acquire = (struct proto_acquire){.pool = 1, .size_bytes = 4096};
            break;
        case PROTO_SPLIT:
            message.split.size_bytes = 512;
            break;
        case PROTO_ACQUIRE_SEGMENTS:
            message.acquire_segments =
                (struct proto_acquire_segments){.pool = 1, .segment_bytes = 2 * MIB, .count = 2};
            break;
        case PROTO_CLOSED:
            message.closed.segment = 1;
            break;
        case PROTO_WRITE_DIRECTORY:
            message.write_directory = (struct proto_directory_part){0, 3, {1, 2, 3}};
            break;
        case PROTO_PUBLISH:
            message.publish =
                (struct proto_publish){.name = "name", .count = 1, .buffers = {{.size_bytes = 1}}};
            break;
        case PROTO_UNPUBLISH:
            message.unpublish.name[0] = 'n';
            break;
        case PROTO_OPEN_NAME:
            message.open_name.name[0] = 'n';
            break;
        case PROTO_READ_DIRECTORY:
            message.read_directory.name[0] = 'n';
            break;
        default:
            break;
        }
        size_t size = raw_client_encode(&message, cases[i].operation, 77, packet);
        memcpy(packet + cases[i].offset, &cases[i].value, cases[i].width);
        send_bytes(fd, packet, size);
        expect_rejection(fd, cases[i].offset == 8 ? 0 : 77, PROTO_E_INVALID, cases[i].field);
    }
}

static void a_packet_that_has_no_header_is_answered_too(void **state) {
    static const uint8_t zeros[PROTO_PACKET_MAX + 1];
    static const size_t sizes[] = {1, 8, 15};
    struct proto_message message = {0};
    uint8_t packet[PROTO_PACKET_MAX + 1] = {0};
    (void)state;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        _cleanup_(close_fdp) int fd = i == 0 ? connect_raw() : greet_raw();
        send_bytes(fd, zeros, sizes[i]);
        expect_rejection(fd, 0, PROTO_E_INVALID, "packet: shorter");
    }
    _cleanup_(close_fdp) int fd = greet_raw();
    (void)raw_client_encode(&message, PROTO_LIST_POOLS, 5, packet);
    send_bytes(fd, packet, sizeof packet);
    expect_rejection(fd, 5, PROTO_E_INVALID, "packet: longer");
}

/* The first test: the log takes a few such lines only between two rounds of housekeeping. */
static void a_message_at_the_wrong_time_is_answered_and_logged(void **state) {
    static const char *const lines[] = {"not HELLO in the first", "a second HELLO", "OPENED.segment",
                                        "MERGE.other_lease"};
    struct proto_message message = {0};
    (void)state;

    _cleanup_(close_fdp) int before = connect_raw();
    send_message(before, PROTO_LIST_POOLS, 3, &message);
    expect_rejection(before, 3, PROTO_E_INVALID, "header.operation: not HELLO");

    _cleanup_(close_fdp) int twice = greet_raw();
    message.hello = (struct proto_hello)RAW_CLIENT_HELLO;
    send_message(twice, PROTO_HELLO, 4, &message);
    expect_rejection(twice, 4, PROTO_E_INVALID, "header.operation: a second HELLO");

    _cleanup_(close_fdp) int opened = greet_raw();
    message.opened.segment = 1;
    send_message(opened, PROTO_OPENED, 0, &message);
    expect_rejection(opened, 0, PROTO_E_INVALID, "OPENED.segment");

    _cleanup_(close_fdp) int merged = greet_raw();
    message.merge = (struct proto_merge){1, 1, 2, 1};
    send_message(merged, PROTO_MERGE, 0, &message);
    expect_rejection(merged, 0, PROTO_E_STALE, "MERGE.other_lease");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        WAIT_UNTIL(daemon_logged(&daemon_, lines[i]));
}

/* While a descriptor is not opened yet nothing else comes, but for what ends the session. */
static void the_last_error_does_not_wait_for_opened(void **state) {
    struct proto_message message, reply;
    struct peer peer;
    int memfd;
    (void)state;

    peer_open(&daemon_, &peer, 0);
    uint64_t request = peer_send_acquire(&peer, MIB, NS_FOREVER);
    peer_receive(&peer, &reply, &memfd);
    assert_int_equal(reply.header.request, request);
    assert_true(memfd >= 0);
    close_fd(memfd);
    peer_send(&peer, PROTO_LIST_POOLS, &message); /* its answer is kept */
    message.opened.segment = reply.lease.segment + 1;
    send_message(peer.fd, PROTO_OPENED, 0, &message);
    expect_rejection(peer.fd, 0, PROTO_E_INVALID, "OPENED.segment");
    close_fd(peer.fd);
}

static void other_sessions_go_on(void **state) {
    static const uint8_t zeros[64];
    struct peer peer;
    (void)state;

    peer_open(&daemon_, &peer, 0);
    struct proto_lease lease = peer_acquire(&peer, MIB);
    for (unsigned i = 0; i < 50; i++) {
        _cleanup_(close_fdp) int fd = greet_raw();
        send_bytes(fd, zeros, sizeof zeros);
        assert_false(has_ended(fd)); /* an ERROR comes first */
        assert_true(has_ended(fd));
    }
    assert_int_equal(peer_dispose(&peer, PROTO_RELEASE, &lease, 0, 512, NULL), 0);
    assert_int_equal(peer_release(&peer, &lease), 0);
    peer_close(&peer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_at_the_wrong_time_is_answered_and_logged),
        cmocka_unit_test(the_field_of_a_broken_packet_is_named_before_the_session_ends),
        cmocka_unit_test(a_packet_that_has_no_header_is_answered_too),
        cmocka_unit_test(the_last_error_does_not_wait_for_opened),
        cmocka_unit_test(other_sessions_go_on),
    };
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
