/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon at its socket, in packets made by hand: what the client library does for its user without being
 * asked, and what it would never do. Host memory only, so that no driver is needed on this side.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/page.h"
#include "proto/proto.h"
#include "tests/integration/harness.h"

#define POOL_MIB 16u

static char config[TEST_CONFIG_SIZE];
static struct test_daemon daemon_;

/* One session of this process. */
struct peer {
    int fd, event_fd; /* -1: it was given none */
    uint32_t pool;    /* the host pool's id */
    uint64_t last_request;
};

static int start_daemon(void **state) {
    (void)state;
    daemon_start(&daemon_, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB)});
    return 0;
}

static int stop_daemon(void **state) {
    (void)state;
    daemon_stop(&daemon_);
    return 0;
}

static uint64_t peer_send(struct peer *peer, unsigned operation, struct proto_message *message) {
    uint8_t packet[PROTO_PACKET_MAX];
    message->header = (struct proto_header){.operation = (uint16_t)operation};
    if (operation != PROTO_OPENED)
        message->header.request = ++peer->last_request;
    size_t size = proto_encode(message, packet);
    assert_int_equal(send(peer->fd, packet, size, MSG_NOSIGNAL), size);
    return message->header.request;
}

/* Receives one message with exactly the descriptor that belongs to it (-1: none). */
static void peer_receive(struct peer *peer, struct proto_message *message, int *ret_fd) {
    uint8_t packet[PROTO_PACKET_MAX];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec vector = {packet, sizeof packet};
    struct msghdr header = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    const char *reason = "";

    *ret_fd = -1;
    ssize_t n = recvmsg(peer->fd, &header, MSG_CMSG_CLOEXEC);
    assert_true(n > 0 && !(header.msg_flags & (MSG_CTRUNC | MSG_TRUNC)));
    const struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    if (rights != NULL) {
        assert_int_equal(rights->cmsg_type, SCM_RIGHTS);
        assert_int_equal(rights->cmsg_len, CMSG_LEN(sizeof(int)));
        memcpy(ret_fd, CMSG_DATA(rights), sizeof *ret_fd);
    }
    if (proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, message, &reason) != 0)
        fail_msg("the daemon sent what does not check out: %s", reason);
    assert_int_equal(proto_message_fds(message), *ret_fd >= 0);
}

/* Receives the reply to a request; confirms a segment's descriptor, which is of no more use here. */
static void peer_await(struct peer *peer, uint64_t request, unsigned operation, struct proto_message *reply) {
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

static void peer_ask(struct peer *peer, unsigned operation, struct proto_message *message, unsigned wanted) {
    peer_await(peer, peer_send(peer, operation, message), wanted, message);
}

static void peer_open(struct peer *peer, uint32_t flags) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval timeout = {.tv_sec = (time_t)(TEST_WAIT_NS / NS_PER_S)};
    struct proto_message message = {.hello = {.magic = PROTO_MAGIC,
                                              .version_min = PROTO_VERSION_MIN,
                                              .version_max = PROTO_VERSION_MAX,
                                              .flags = flags}};

    *peer = (struct peer){.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), .event_fd = -1};
    assert_true(peer->fd >= 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", daemon_.socket);
    setsockopt(peer->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    assert_int_equal(connect(peer->fd, (struct sockaddr *)&address, sizeof address), 0);
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

/* Says farewell: everything returns. */
static void peer_close(struct peer *peer) {
    struct proto_message message = {0};
    peer_ask(peer, PROTO_BYE, &message, PROTO_OK);
    peer->fd = close_fd(peer->fd);
    peer->event_fd = close_fd(peer->event_fd);
}

static uint64_t send_acquire(struct peer *peer, uint64_t size, uint64_t timeout_ns) {
    struct proto_message message = {
        .acquire = {.pool = peer->pool, .size_bytes = size, .timeout_ns = timeout_ns}};
    return peer_send(peer, PROTO_ACQUIRE, &message);
}

static struct proto_lease acquire(struct peer *peer, uint64_t size) {
    struct proto_message message;
    peer_await(peer, send_acquire(peer, size, NS_FOREVER), PROTO_LEASE, &message);
    return message.lease;
}

/* SPLIT or RELEASE of a part (of size 0: the whole). Returns the error, 0 for none. */
static unsigned dispose(struct peer *peer, unsigned operation, const struct proto_lease *lease,
                        uint64_t offset, uint64_t size, struct proto_lease *ret_part) {
    struct proto_message message = {.release = {lease->lease, lease->generation, offset, size}};
    int fd;
    uint64_t request = peer_send(peer, operation, &message);
    peer_receive(peer, &message, &fd);
    assert_int_equal(message.header.request, request);
    assert_int_equal(fd, -1); /* the segment has been seen */
    if (message.header.operation == PROTO_ERROR)
        return message.failure.error;
    assert_int_equal(message.header.operation, operation == PROTO_SPLIT ? PROTO_LEASE : PROTO_OK);
    if (ret_part != NULL)
        *ret_part = message.lease;
    return 0;
}

static unsigned release(struct peer *peer, const struct proto_lease *lease) {
    return dispose(peer, PROTO_RELEASE, lease, 0, 0, NULL);
}

static bool is_readable(int fd, int timeout_ms) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int n = poll(&poll_fd, 1, timeout_ms);
    assert_true(n >= 0 && (n == 0 || poll_fd.revents == POLLIN));
    return n == 1;
}

static uint64_t host_pool(const char *member) {
    return daemon_pool(&daemon_, "host", 0, member);
}

static void a_part_becomes_a_lease_of_its_own(void **state) {
    struct proto_lease part, rest;
    struct peer peer;

    (void)state;
    peer_open(&peer, 0);
    struct proto_lease lease = acquire(&peer, 4 * MIB);
    assert_int_equal(dispose(&peer, PROTO_SPLIT, &lease, MIB, 512, &part), 0);
    assert_int_equal(part.segment, lease.segment);
    assert_int_equal(part.offset_bytes, lease.offset_bytes + MIB);
    assert_int_equal(part.size_bytes, 512);
    assert_int_equal(part.capacity_bytes, 512);
    assert_int_equal(part.description.kind, 0);
    assert_int_equal(host_pool("leased_bytes"), 4 * MIB);
    assert_int_equal(host_pool("leases"), 2);
    assert_int_equal(dispose(&peer, PROTO_SPLIT, &lease, MIB, 512, NULL), PROTO_E_INVALID);
    assert_int_equal(dispose(&peer, PROTO_SPLIT, &lease, 4 * MIB, 512, NULL), PROTO_E_INVALID);
    assert_int_equal(release(&peer, &lease), 0);
    assert_int_equal(host_pool("leased_bytes"), 512);
    assert_int_equal(dispose(&peer, PROTO_SPLIT, &lease, 0, 512, NULL), PROTO_E_STALE);
    assert_int_equal(dispose(&peer, PROTO_SPLIT, &part, 0, 512, &rest), 0); /* all of it */
    assert_int_equal(release(&peer, &part), PROTO_E_STALE);
    struct proto_message message = {.share = {rest.lease, rest.generation, 0}};
    peer_ask(&peer, PROTO_SHARE, &message, PROTO_TOKEN);
    assert_int_equal(dispose(&peer, PROTO_SPLIT, &rest, 0, 512, NULL), PROTO_E_SHARED);
    assert_int_equal(release(&peer, &rest), 0);
    assert_int_equal(host_pool("leased_bytes"), 0);
    peer_close(&peer);
}

static void a_session_that_wants_it_is_asked_for_idle_memory_when_another_waits(void **state) {
    struct peer holder, silent, other;
    struct proto_message reply;
    uint64_t count = 0;

    (void)state;
    peer_open(&holder, PROTO_HELLO_RECLAIM);
    peer_open(&silent, 0);
    peer_open(&other, PROTO_HELLO_RECLAIM);
    assert_true(holder.event_fd >= 0 && other.event_fd >= 0);
    assert_int_equal(silent.event_fd, -1);
    assert_true(fcntl(holder.event_fd, F_GETFL) & O_NONBLOCK);
    assert_int_equal(read(holder.event_fd, &count, sizeof count), -1);
    assert_int_equal(errno, EAGAIN);

    struct proto_lease lease = acquire(&holder, 10 * MIB);
    struct proto_lease grown = acquire(&silent, 4 * MIB); /* what growth can serve is nobody's business */
    assert_false(is_readable(holder.event_fd, 0));

    uint64_t request = send_acquire(&other, 8 * MIB, NS_FOREVER);
    assert_true(is_readable(holder.event_fd, (int)(TEST_WAIT_NS / NS_PER_MS)));
    assert_int_equal(read(holder.event_fd, &count, sizeof count), sizeof count);
    assert_true(count > 0);
    assert_true(is_readable(holder.event_fd, (int)(TEST_WAIT_NS / NS_PER_MS))); /* again while it waits */
    assert_false(is_readable(other.event_fd, 0));                               /* it holds nothing */
    assert_false(is_readable(other.fd, 0));
    assert_int_equal(dispose(&holder, PROTO_RELEASE, &lease, 0, 8 * MIB, NULL), 0);
    peer_await(&other, request, PROTO_LEASE, &reply);
    assert_int_equal(release(&silent, &grown), 0);

    peer_close(&holder);
    peer_close(&silent);
    peer_close(&other);
    assert_int_equal(host_pool("leased_bytes"), 0);
}

static void a_request_that_does_not_wait_has_others_asked_too(void **state) {
    struct peer holder, other;
    struct proto_message reply;

    (void)state;
    peer_open(&holder, PROTO_HELLO_RECLAIM);
    peer_open(&other, 0);
    struct proto_lease lease = acquire(&holder, 12 * MIB);
    peer_await(&other, send_acquire(&other, 8 * MIB, 0), PROTO_ERROR, &reply);
    assert_int_equal(reply.failure.error, PROTO_E_EXHAUSTED);
    assert_true(is_readable(holder.event_fd, (int)(TEST_WAIT_NS / NS_PER_MS)));
    assert_int_equal(release(&holder, &lease), 0);
    peer_await(&other, send_acquire(&other, 8 * MIB, 0), PROTO_LEASE, &reply);
    peer_close(&holder);
    peer_close(&other);
}

/* The description behind a descriptor is its holders' in common, and one of them is not to be trusted. */
static void what_a_client_does_to_its_descriptor_harms_nobody(void **state) {
    struct peer holder, second, other;
    const struct itimerspec much_later = {.it_value = {.tv_sec = 1000000}};
    const uint64_t full = UINT64_MAX - 1;

    (void)state;
    peer_open(&holder, PROTO_HELLO_RECLAIM);
    peer_open(&second, PROTO_HELLO_RECLAIM);
    peer_open(&other, 0);
    acquire(&holder, 6 * MIB);
    struct proto_lease lease = acquire(&second, 6 * MIB);
    assert_int_equal(fcntl(holder.event_fd, F_SETFL, 0), 0); /* an eventfd would block its writers from now */
    assert_int_equal(write(holder.event_fd, &full, sizeof full), -1);
    timerfd_settime(holder.event_fd, 0, &much_later, NULL);
    uint64_t request = send_acquire(&other, 6 * MIB, NS_FOREVER);
    assert_true(is_readable(second.event_fd, (int)(TEST_WAIT_NS / NS_PER_MS)));
    second.event_fd = close_fd(second.event_fd); /* nor does it matter to the daemon that nobody listens */
    assert_int_equal(release(&second, &lease), 0);
    struct proto_message reply;
    peer_await(&other, request, PROTO_LEASE, &reply);
    peer_close(&holder);
    peer_close(&second);
    peer_close(&other);
}

static void descriptors_for_asking_end_with_the_connection(void **state) {
    struct peer peers[8];

    (void)state;
    cJSON_Delete(daemon_ask(&daemon_, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(host_pool("reserved_bytes") == 0);
    unsigned before = daemon_descriptors(&daemon_);
    for (unsigned i = 0; i < 8; i++) {
        peer_open(&peers[i], PROTO_HELLO_RECLAIM);
        assert_int_equal(daemon_descriptors(&daemon_), before + 3 * (i + 1));
    }
    for (unsigned i = 0; i < 8; i++) {
        if (i % 2 == 0) {
            peer_close(&peers[i]);
            continue;
        }
        /* Without a farewell, but nothing was ever given to it that could be in use. */
        close_fd(peers[i].event_fd);
        close_fd(peers[i].fd);
    }
    WAIT_UNTIL(daemon_descriptors(&daemon_) == before);
    assert_int_equal(daemon_sessions(&daemon_, "quarantined"), 0);
}

/* What the stats say of this process's first session; -1: null. */
static double session_member(const char *member) {
    cJSON *reply = daemon_ask(&daemon_, "{\"command\":\"sessions\"}"), *session;
    double value = -2;

    cJSON_ArrayForEach(session, cJSON_GetObjectItemCaseSensitive(reply, "sessions")) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(session, member);
        if (value == -2 && cJSON_GetObjectItemCaseSensitive(session, "pid")->valuedouble == getpid())
            value = cJSON_IsNull(item) ? -1 : item->valuedouble;
    }
    cJSON_Delete(reply);
    return value;
}

/* Asks for the page and maps it. */
static struct proto_page *ask_page(struct peer *peer) {
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

static void what_a_client_counts_is_in_the_stats_and_nothing_else_changes(void **state) {
    struct peer peer, other;
    (void)state;

    peer_open(&peer, 0);
    peer_open(&other, 0);
    acquire(&peer, 2 * MIB);
    struct proto_page *page = ask_page(&peer);
    struct proto_counters *line = &page->counters[0];
    assert_true(session_member("hit_ratio") == -1);
    assert_int_equal(host_pool("cached_bytes"), 0);
    atomic_store(&line->hits, 3);
    atomic_store(&line->misses, 1);
    atomic_store(&line->taken_bytes, MIB);
    atomic_store(&line->given_bytes, MIB / 4);
    atomic_store(&line->pool, peer.pool);
    assert_int_equal(host_pool("in_use_bytes"), MIB * 3 / 4);
    assert_int_equal(host_pool("cached_bytes"), MIB * 5 / 4);
    assert_true(session_member("in_use_bytes") == MIB * 3 / 4);
    assert_true(session_member("cached_bytes") == MIB * 5 / 4);
    assert_true(session_member("hit_ratio") == 0.75);

    for (unsigned round = 0; round < 20; round++) { /* any bytes at all, and every line of some pool */
        for (size_t at = 0; at < sizeof *page; at += 256)
            assert_int_equal(getrandom((char *)page + at, 256, 0), 256);
        for (unsigned i = 0; i < PROTO_PAGE_COUNTERS && round > 0; i++)
            atomic_store(&page->counters[i].pool, 1 + i % (peer.pool + 1));
        assert_int_equal(host_pool("in_use_bytes") + host_pool("cached_bytes"), host_pool("leased_bytes"));
        assert_true(host_pool("cached_bytes") <= 2 * MIB);
        struct proto_lease lease = acquire(&other, MIB);
        assert_int_equal(host_pool("leased_bytes"), 3 * MIB);
        assert_int_equal(release(&other, &lease), 0);
    }
    munmap(page, sizeof *page);
    peer_close(&peer);
    peer_close(&other);
    assert_int_equal(host_pool("cached_bytes"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_becomes_a_lease_of_its_own),
        cmocka_unit_test(a_session_that_wants_it_is_asked_for_idle_memory_when_another_waits),
        cmocka_unit_test(a_request_that_does_not_wait_has_others_asked_too),
        cmocka_unit_test(what_a_client_does_to_its_descriptor_harms_nobody),
        cmocka_unit_test(descriptors_for_asking_end_with_the_connection),
        cmocka_unit_test(what_a_client_counts_is_in_the_stats_and_nothing_else_changes),
    };
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
