/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/integration/wire_peer.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/raw_client.h"

uint64_t peer_send(struct peer *peer, unsigned operation, struct proto_message *message) {
    uint8_t packet[PROTO_PACKET_MAX];
    message->header = (struct proto_header){.operation = (uint16_t)operation};
    if (operation != PROTO_OPENED && operation != PROTO_CANCEL && operation != PROTO_RECLAIMED &&
        operation != PROTO_NAME)
        message->header.request = ++peer->last_request;
    size_t size = proto_encode(message, packet);
    assert_int_equal(send(peer->fd, packet, size, MSG_NOSIGNAL), size);
    return message->header.request;
}

void peer_receive(struct peer *peer, struct proto_message *message, int *ret_fd) {
    uint8_t packet[PROTO_PACKET_MAX];
    const char *reason = "";

    ssize_t n = raw_client_receive(peer->fd, packet, 0, ret_fd);
    assert_true(n > 0);
    if (proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, message, &reason) != 0)
        fail_msg("the daemon sent what does not check out: %s", reason);
    assert_int_equal(proto_message_fds(message), *ret_fd >= 0);
}

void peer_await(struct peer *peer, uint64_t request, unsigned operation, struct proto_message *reply) {
    _cleanup_(close_fdp) int fd = -1;
    peer_receive(peer, reply, &fd);
    if (reply->header.operation != operation)
        fail_msg("%s instead of %s: %s", proto_operation_name(reply->header.operation),
                 proto_operation_name(operation),
                 reply->header.operation == PROTO_ERROR ? reply->failure.text : "");
    assert_int_equal(reply->header.request, request);
    if (fd >= 0) {
        struct proto_message opened = {.opened.segment = reply->lease.segment};
        peer_send(peer, PROTO_OPENED, &opened);
    }
}

void peer_ask(struct peer *peer, unsigned operation, struct proto_message *message, unsigned wanted) {
    peer_await(peer, peer_send(peer, operation, message), wanted, message);
}

void peer_open(const struct test_daemon *daemon, struct peer *peer, uint32_t flags) {
    struct proto_message message = {.hello = RAW_CLIENT_HELLO};

    message.hello.flags = flags;
    *peer =
        (struct peer){.fd = raw_client_connect(daemon->socket, SOCK_SEQPACKET, TEST_WAIT_NS), .event_fd = -1};
    assert_true(peer->fd >= 0);
    uint64_t request = peer_send(peer, PROTO_HELLO, &message);
    peer_receive(peer, &message, &peer->event_fd);
    assert_int_equal(message.header.operation, PROTO_HELLO_REPLY);
    assert_int_equal(message.header.request, request);

    peer_ask(peer, PROTO_LIST_POOLS, &message, PROTO_POOLS);
    for (uint32_t i = 0; i < message.pools.count && peer->pool == 0; i++)
        if (message.pools.pools[i].kind == PROTO_POOL_HOST)
            peer->pool = message.pools.pools[i].id;
    assert_true(peer->pool != 0);
}

void peer_close(struct peer *peer) {
    struct proto_message message = {0};
    peer_ask(peer, PROTO_BYE, &message, PROTO_OK);
    peer->fd = close_fd(peer->fd);
    peer->event_fd = close_fd(peer->event_fd);
}

uint64_t peer_send_acquire(struct peer *peer, uint64_t size, uint64_t timeout_ns) {
    struct proto_message message = {
        .acquire = {.pool = peer->pool, .size_bytes = size, .timeout_ns = timeout_ns}};
    return peer_send(peer, PROTO_ACQUIRE, &message);
}

struct proto_lease peer_acquire(struct peer *peer, uint64_t size) {
    struct proto_message message;
    peer_await(peer, peer_send_acquire(peer, size, NS_FOREVER), PROTO_LEASE, &message);
    return message.lease;
}

static unsigned peer_send_off(struct peer *peer, unsigned operation, struct proto_message *message,
                              struct proto_lease *ret_part) {
    int fd;
    uint64_t request = peer_send(peer, operation, message);
    peer_receive(peer, message, &fd);
    assert_int_equal(message->header.request, request);
    assert_int_equal(fd, -1); /* the segment has been seen */
    if (message->header.operation == PROTO_ERROR)
        return message->failure.error;
    assert_int_equal(message->header.operation, operation == PROTO_SPLIT ? PROTO_LEASE : PROTO_OK);
    if (ret_part != NULL)
        *ret_part = message->lease;
    return 0;
}

unsigned peer_dispose(struct peer *peer, unsigned operation, const struct proto_lease *lease, uint64_t offset,
                      uint64_t size, struct proto_lease *ret_part) {
    struct proto_message message = {.release = {lease->lease, lease->generation, offset, size}};
    return peer_send_off(peer, operation, &message, ret_part);
}

unsigned peer_release_behind(struct peer *peer, const struct proto_lease *lease, uint64_t offset,
                             uint64_t size, uint32_t word, uint64_t value) {
    struct proto_message message = {.release = {.lease = lease->lease,
                                                .generation = lease->generation,
                                                .offset_bytes = offset,
                                                .size_bytes = size,
                                                .fence = word + 1,
                                                .fence_value = value}};
    return peer_send_off(peer, PROTO_RELEASE, &message, NULL);
}
void peer_release_one_way(struct peer *peer, const struct proto_lease *lease, uint64_t offset,
                          uint64_t size) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message = {.header.operation = PROTO_RELEASE,
                                    .release = {lease->lease, lease->generation, offset, size}};
    size_t bytes = proto_encode(&message, packet);
    assert_int_equal(send(peer->fd, packet, bytes, MSG_NOSIGNAL), bytes);
}

void peer_merge_one_way(struct peer *peer, const struct proto_lease *lease, const struct proto_lease *other) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message = {
        .header.operation = PROTO_MERGE,
        .merge = {lease->lease, lease->generation, other->lease, other->generation}};
    size_t bytes = proto_encode(&message, packet);
    assert_int_equal(send(peer->fd, packet, bytes, MSG_NOSIGNAL), bytes);
}

unsigned peer_release(struct peer *peer, const struct proto_lease *lease) {
    return peer_dispose(peer, PROTO_RELEASE, lease, 0, 0, NULL);
}

bool peer_is_readable(int fd, int timeout_ms) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int n = poll(&poll_fd, 1, timeout_ms);
    assert_true(n >= 0 && (n == 0 || poll_fd.revents == POLLIN));
    return n == 1;
}

struct proto_page *peer_ask_page(struct peer *peer) {
    _cleanup_(close_fdp) int fd = -1;
    struct proto_message message = {0};
    uint64_t request = peer_send(peer, PROTO_ASK_PAGE, &message);
    peer_receive(peer, &message, &fd);
    assert_int_equal(message.header.operation, PROTO_PAGE);
    assert_int_equal(message.header.request, request);
    struct proto_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(page != MAP_FAILED);
    return page;
}
