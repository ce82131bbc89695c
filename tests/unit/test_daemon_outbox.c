/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's outbox where there is an estate: what a successor finds of messages that a client does not read. */
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/data/kept_data.h"
#include "daemon/data/outbox.h"
#include "daemon/loop/desk.h"
#include "tests/unit/unit.h"

#define MEMORY_BYTES (DESK_BYTES + 8 * ESTATE_CHUNK_BYTES)
#define OWN_KIND     1u /* the client's record: none of its members matters here */
#define SESSION      7u
#define OTHER        8u
#define SOCKET_BYTES 4096

static _Alignas(64) char memory[MEMORY_BYTES], copy[MEMORY_BYTES];
static struct estate_kind kinds[ESTATE_KINDS_MAX];
static struct estate estate;
static struct desk desk;
static struct outbox outbox;
static int near_fd, far_fd;

static int grow(void *argument, size_t size_bytes) {
    (void)argument;
    return size_bytes <= MEMORY_BYTES - DESK_BYTES ? 0 : -1;
}

static const struct estate_owner owner = {.grow = grow};

static void write_own(const void *object, void *payload) {
    (void)object, (void)payload;
}

static int set_up(void **state) {
    static const uint8_t identity[PROTO_IDENTITY_BYTES];
    int fds[2], size = SOCKET_BYTES;
    uint32_t record;

    (void)state;
    memset(memory, 0, sizeof memory);
    kept_data_kinds(kinds);
    kinds[OWN_KIND] = (struct estate_kind){.size_bytes = 8, .write = write_own};
    if (estate_make(&estate, memory + DESK_BYTES, kinds, KEPT_DATA_KINDS - 1, &owner) < 0 ||
        estate_add(&estate, OWN_KIND, &outbox, &record) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0 ||
        setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size) < 0)
        return -1;
    desk_make(&desk, memory, &estate, identity);
    desk_end_step(&desk);
    near_fd = fds[0];
    far_fd = fds[1];
    outbox_init(&outbox, near_fd, &desk);
    outbox_begin_session(&outbox, SESSION, record);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    outbox_drop(&outbox, NULL);
    estate_deinit(&estate);
    near_fd = close_fd(near_fd);
    far_fd = close_fd(far_fd);
    return 0;
}
#define OUTBOX_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static void send_ok(uint64_t request) {
    const struct proto_message message = {.header = {.operation = PROTO_OK, .request = request}};
    assert_int_equal(outbox_send(&outbox, NULL, &message, NULL, 0), 0);
}

/* Sends until a message is kept. Returns its request. */
static uint64_t fill(void) {
    uint64_t request = 0;

    while (outbox.n_replies == 0)
        send_ok(++request);
    return request;
}

static bool is_request(const uint8_t *bytes, uint64_t request) {
    struct proto_header header;

    memcpy(&header, bytes, sizeof header);
    return header.request == request;
}

/* Whether a successor of a daemon that dies now sends the message. */
static bool is_found(uint64_t request) {
    struct estate heir;
    struct desk its_desk;
    struct estate_found found = {0};
    struct kept_reply reply;
    const uint8_t *bytes;
    const char *reason;
    uint64_t session;
    bool any = false;

    memcpy(copy, memory, sizeof copy);
    assert_int_equal(estate_open(&heir, copy + DESK_BYTES, sizeof copy - DESK_BYTES, kinds,
                                 KEPT_DATA_KINDS - 1, &owner, &reason),
                     0);
    assert_int_equal(desk_open(&its_desk, copy, &heir), 0);
    while (estate_next(&heir, KEPT_REPLY, found.record, &found)) {
        estate_read(&heir, &found, &reply);
        any = any || (reply.session == SESSION && is_request(reply.bytes, request));
    }
    if (desk_find_message(&its_desk, &session, &bytes) > 0)
        any = any || (session == SESSION && is_request(bytes, request));
    estate_deinit(&heir);
    return any;
}

/* A message to another session is about to take the place on the desk. */
static void begin_another(void) {
    uint8_t own[PROTO_PACKET_MAX];

    assert_ptr_not_equal(desk_message(&desk, OTHER, own), own);
}

static void a_message_that_was_sent_is_not_sent_again(void **state) {
    (void)state;
    send_ok(1);
    assert_false(is_found(1));
}

static void a_message_that_the_socket_did_not_take_outlives_the_next_one(void **state) {
    (void)state;
    uint64_t request = fill();

    assert_true(is_found(request));
    begin_another();
    assert_true(is_found(request));
}

static void so_does_one_that_it_did_not_take_again(void **state) {
    (void)state;
    uint64_t request = fill();

    assert_int_equal(outbox_flush(&outbox, NULL), 0);
    assert_int_equal(outbox.n_replies, 1);
    begin_another();
    assert_true(is_found(request));
}

static void messages_behind_it_are_found_with_the_end_of_their_step(void **state) {
    (void)state;
    uint64_t request = fill();

    send_ok(request + 1);
    desk_end_step(&desk);
    begin_another();
    assert_true(is_found(request));
    assert_true(is_found(request + 1));
    assert_false(is_found(request + 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OUTBOX_TEST(a_message_that_was_sent_is_not_sent_again),
        OUTBOX_TEST(a_message_that_the_socket_did_not_take_outlives_the_next_one),
        OUTBOX_TEST(so_does_one_that_it_did_not_take_again),
        OUTBOX_TEST(messages_behind_it_are_found_with_the_end_of_their_step),
    };
    return cmocka_run_group_tests_name("daemon_outbox", tests, NULL, NULL);
}
