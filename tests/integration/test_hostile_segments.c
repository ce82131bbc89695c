/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions that ask for several segments, and offer some, as they may and as they may not, in packets made by
 * hand. A refusal ends its request, or its session, and nothing else; all memory comes back.
 */
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/puppet.h"
#include "tests/integration/wire_peer.h"
#include "tests/raw_client.h"

#define SEGMENTS      70u /* in two messages */
#define SEGMENT_BYTES (2 * MIB)
#define LIMIT_TEXT    "160MiB"
#define LIMIT_BYTES   (160 * MIB)
#define HOST          "[host]\nlimit = 32MiB\nstep = 4MiB\n"
#define VMM           "[device]\nexport = vmm\nlimit = " LIMIT_TEXT "\nstep = 2MiB\n" HOST
#define LEGACY        "[device]\nexport = ipc\nlimit = " LIMIT_TEXT "\nstep = 2MiB\n" HOST

static struct test_daemon daemon_;

static void start(const char *config) {
    if (!test_has_device())
        skip();
    daemon_start(&daemon_, &(struct daemon_options){.config = config, .sim_gpus = 1});
}

/* Everything has come back. */
static void stop(void) {
    WAIT_UNTIL(daemon_number(&daemon_, "sessions") == 0 && daemon_sum(&daemon_, "leases") == 0 &&
               daemon_sum(&daemon_, "quarantined_bytes") == 0 && daemon_sum(&daemon_, "waiters") == 0);
    daemon_stop(&daemon_);
}

/* A session, and the id of a pool of a kind. */
static uint32_t open_peer(struct peer *peer, unsigned kind) {
    struct proto_message message = {0};

    peer_open(&daemon_, peer, 0);
    peer_ask(peer, PROTO_LIST_POOLS, &message, PROTO_POOLS);
    for (uint32_t i = 0; i < message.pools.count; i++)
        if (message.pools.pools[i].kind == kind)
            return message.pools.pools[i].id;
    fail_msg("no pool of kind %u", kind);
    return 0;
}

static uint64_t send_request(struct peer *peer, uint32_t pool, uint32_t count, uint64_t segment_bytes) {
    struct proto_message message = {
        .acquire_segments = {
            .pool = pool, .segment_bytes = segment_bytes, .count = count, .timeout_ns = NS_FOREVER}};
    return peer_send(peer, PROTO_ACQUIRE_SEGMENTS, &message);
}

/* Receives the next message of an answer, with its descriptors. */
static void receive_leases(struct peer *peer, uint64_t request, struct proto_message *message) {
    uint8_t packet[PROTO_PACKET_MAX];
    int fds[PROTO_LEASES_PER_MESSAGE];
    const char *reason = "";
    unsigned count;

    ssize_t n = raw_client_receive_fds(peer->fd, packet, 0, fds, &count);
    assert_true(n > 0);
    if (proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, message, &reason) != 0)
        fail_msg("the daemon sent what does not check out: %s", reason);
    if (message->header.operation != PROTO_LEASES)
        fail_msg("%s instead of LEASES: %s", proto_operation_name(message->header.operation),
                 message->header.operation == PROTO_ERROR ? message->failure.text : "");
    assert_int_equal(message->header.request, request);
    assert_int_equal(count, message->leases.n_described);
    while (count > 0)
        close_fd(fds[--count]);
}

static void say_opened(struct peer *peer, uint64_t segment) {
    struct proto_message opened = {.opened.segment = segment};
    peer_send(peer, PROTO_OPENED, &opened);
}

/* Asks for SEGMENTS segments. */
static void take_all(struct peer *peer, uint32_t pool, struct proto_segment_lease ret_leases[SEGMENTS]) {
    struct proto_message message;
    uint32_t got = 0;

    uint64_t request = send_request(peer, pool, SEGMENTS, SEGMENT_BYTES);
    do {
        receive_leases(peer, request, &message);
        assert_int_equal(message.leases.pool, pool);
        assert_int_equal(message.leases.segment_bytes, SEGMENT_BYTES);
        assert_int_equal(got + message.leases.count + message.leases.n_left, SEGMENTS);
        memcpy(&ret_leases[got], message.leases.leases, message.leases.count * sizeof *ret_leases);
        got += message.leases.count;
        if (message.leases.n_described > 0)
            say_opened(peer, message.leases.leases[0].segment);
    } while (message.leases.n_left > 0);
}

static void release_one_way(struct peer *peer, const struct proto_segment_lease *lease) {
    peer_release_one_way(peer, &(struct proto_lease){.lease = lease->lease, .generation = lease->generation},
                         0, 0);
}

static uint64_t send_offer(struct peer *peer, uint32_t pool, const uint64_t *ids, uint32_t count) {
    struct proto_message message = {.offer = {.pool = pool, .count = count}};
    memcpy(message.offer.ids, ids, count * sizeof *ids);
    return peer_send(peer, PROTO_OFFER, &message);
}

/* How many of the segments the daemon wants to have closed. */
static uint32_t offer(struct peer *peer, uint32_t pool, const uint64_t *ids, uint32_t count) {
    struct proto_message message;
    peer_await(peer, send_offer(peer, pool, ids, count), PROTO_SEGMENTS, &message);
    return message.segments.count;
}

static unsigned close_segment(struct peer *peer, uint64_t id) {
    struct proto_message message = {.closed.segment = id};
    int fd;

    peer_send(peer, PROTO_CLOSED, &message);
    peer_receive(peer, &message, &fd);
    return message.header.operation == PROTO_ERROR ? message.failure.error : 0;
}

static unsigned ask_error(struct peer *peer, uint32_t pool, uint32_t count, uint64_t segment_bytes) {
    struct proto_message message;
    peer_await(peer, send_request(peer, pool, count, segment_bytes), PROTO_ERROR, &message);
    return message.failure.error;
}

static void segments_are_lent_offered_and_closed(void **state) {
    struct proto_segment_lease leases[SEGMENTS];
    struct peer peer;

    (void)state;
    start(VMM);
    uint32_t pool = open_peer(&peer, PROTO_POOL_DEVICE);
    for (unsigned round = 0; round < 3; round++) {
        take_all(&peer, pool, leases);
        for (unsigned i = 0; i < SEGMENTS; i++)
            release_one_way(&peer, &leases[i]);
        for (unsigned i = 0; i < SEGMENTS; i++) {
            assert_int_equal(offer(&peer, pool, &leases[i].segment, 1), 1);
            assert_int_equal(offer(&peer, pool, &leases[i].segment, 1), 0); /* it was named */
            assert_int_equal(close_segment(&peer, leases[i].segment), 0);
            assert_int_equal(close_segment(&peer, leases[i].segment), PROTO_E_INVALID);
        }
    }
    peer_close(&peer);
    stop();
}

static void a_request_that_may_not_be_is_refused_alone(void **state) {
    struct proto_segment_lease leases[SEGMENTS];
    struct peer peer;

    (void)state;
    start(VMM);
    uint32_t pool = open_peer(&peer, PROTO_POOL_DEVICE);
    assert_int_equal(ask_error(&peer, peer.pool, 2, SEGMENT_BYTES), PROTO_E_INVALID); /* of the host */
    assert_int_equal(ask_error(&peer, 60, 2, SEGMENT_BYTES), PROTO_E_NO_POOL);
    assert_int_equal(ask_error(&peer, pool, 1, 2 * LIMIT_BYTES), PROTO_E_TOO_LARGE);
    assert_int_equal(ask_error(&peer, pool, PROTO_LEASES_MAX, SEGMENT_BYTES), PROTO_E_TOO_LARGE);
    take_all(&peer, pool, leases);
    peer_close(&peer);
    stop();

    start(LEGACY);
    pool = open_peer(&peer, PROTO_POOL_DEVICE);
    assert_int_equal(ask_error(&peer, pool, 2, SEGMENT_BYTES), PROTO_E_INVALID);
    assert_int_equal(offer(&peer, pool, (const uint64_t[]){1}, 1), 0);
    peer_acquire(&peer, MIB);
    peer_close(&peer);
    stop();
}

/* Of what it leases, of what another session has, of what is not there, and in other pools. */
static void an_offer_of_what_is_not_idle_names_nothing(void **state) {
    struct proto_segment_lease leases[SEGMENTS], others[SEGMENTS];
    struct peer peer, other;
    uint64_t ids[PROTO_CLOSE_MAX];

    (void)state;
    start(VMM);
    uint32_t pool = open_peer(&peer, PROTO_POOL_DEVICE);
    (void)open_peer(&other, PROTO_POOL_DEVICE);
    take_all(&peer, pool, leases);
    for (unsigned i = 0; i < PROTO_CLOSE_MAX; i++)
        ids[i] = leases[i].segment;
    assert_int_equal(offer(&peer, pool, ids, PROTO_CLOSE_MAX), 0);
    assert_int_equal(offer(&other, pool, ids, PROTO_CLOSE_MAX), 0);
    for (unsigned i = 0; i < SEGMENTS; i++)
        release_one_way(&peer, &leases[i]);
    assert_int_equal(offer(&other, pool, ids, PROTO_CLOSE_MAX), 0);
    assert_int_equal(offer(&peer, peer.pool, ids, PROTO_CLOSE_MAX), 0);
    take_all(&other, pool, others); /* the same segments, which both sessions have mapped now */
    for (unsigned i = 0; i < SEGMENTS; i++)
        release_one_way(&other, &others[i]);
    assert_int_equal(offer(&peer, pool, ids, PROTO_CLOSE_MAX), 0);
    for (unsigned i = 0; i < PROTO_CLOSE_MAX; i++)
        ids[i] = UINT64_MAX - i;
    assert_int_equal(offer(&peer, pool, ids, PROTO_CLOSE_MAX), 0);
    assert_int_equal(close_segment(&peer, leases[0].segment), PROTO_E_INVALID); /* it was not named */
    assert_int_equal(close_segment(&peer, ids[0]), PROTO_E_INVALID);
    struct proto_message message;
    peer_await(&peer, send_offer(&peer, 60, ids, 1), PROTO_ERROR, &message);
    assert_int_equal(message.failure.error, PROTO_E_NO_POOL);
    peer_close(&peer);
    peer_close(&other);
    stop();
}

/* The daemon sends the descriptor as long as the segment is the session's, so it must not be closed before. A
 * session can guess the names in a reply that it has not read: they are numbers that ascend. */
static void a_segment_is_not_closed_before_its_descriptor_is_sent(void **state) {
    struct proto_segment_lease last;
    struct proto_message message;
    struct peer peer;
    int fd;

    (void)state;
    start(VMM);
    uint32_t pool = open_peer(&peer, PROTO_POOL_DEVICE);
    uint64_t first_request = send_request(&peer, pool, SEGMENTS, SEGMENT_BYTES);
    receive_leases(&peer, first_request, &message);
    uint64_t opened = message.leases.leases[0].segment;
    unsigned count = message.leases.count;
    const struct proto_segment_lease *read = message.leases.leases;
    last = read[count - 1]; /* the one after it comes next */
    last.lease += read[count - 1].lease - read[count - 2].lease;
    last.generation += read[count - 1].generation - read[count - 2].generation;
    last.segment += read[count - 1].segment - read[count - 2].segment;
    release_one_way(&peer, &last);
    uint64_t offered = send_offer(&peer, pool, &last.segment, 1);
    message.closed = (struct proto_closed){.segment = last.segment};
    uint64_t closed = peer_send(&peer, PROTO_CLOSED, &message);
    say_opened(&peer, opened);
    receive_leases(&peer, first_request, &message);
    assert_int_equal(message.leases.count, count);
    bool is_there = false; /* the guess is right */
    for (unsigned i = 0; i < message.leases.count; i++)
        is_there |= memcmp(&message.leases.leases[i], &last, sizeof last) == 0;
    assert_true(is_there);
    say_opened(&peer, message.leases.leases[0].segment);
    while (message.leases.n_left > 0) {
        receive_leases(&peer, first_request, &message);
        say_opened(&peer, message.leases.leases[0].segment);
    }
    peer_await(&peer, offered, PROTO_SEGMENTS, &message);
    assert_int_equal(message.segments.count, 1);
    peer_receive(&peer, &message, &fd);
    assert_int_equal(message.header.request, closed);
    assert_int_equal(message.header.operation, PROTO_ERROR);
    assert_int_equal(message.failure.error, PROTO_E_INVALID);
    assert_int_equal(close_segment(&peer, last.segment), 0);
    peer_close(&peer);
    stop();
}

/* Whether the daemon ends the session because of an OPENED. */
static bool ends_the_session(struct peer *peer, uint64_t segment) {
    struct proto_message message;
    int fd;

    say_opened(peer, segment);
    peer_receive(peer, &message, &fd);
    bool ends = message.header.operation == PROTO_ERROR && message.header.request == 0;
    peer->fd = close_fd(peer->fd);
    return ends;
}

static void opened_is_said_for_the_first_segment_once(void **state) {
    struct proto_message message;
    struct peer peer, other;

    (void)state;
    start(VMM);
    uint32_t pool = open_peer(&peer, PROTO_POOL_DEVICE);
    receive_leases(&peer, send_request(&peer, pool, 3, SEGMENT_BYTES), &message);
    assert_true(ends_the_session(&peer, message.leases.leases[1].segment));
    (void)open_peer(&peer, PROTO_POOL_DEVICE);
    receive_leases(&peer, send_request(&peer, pool, 3, SEGMENT_BYTES), &message);
    say_opened(&peer, message.leases.leases[0].segment);
    assert_true(ends_the_session(&peer, message.leases.leases[1].segment));
    (void)open_peer(&other, PROTO_POOL_DEVICE); /* another session is served */
    peer_close(&other);
    /* This process lives: what the two sessions had is in quarantine until the daemon ends. */
    assert_int_equal(daemon_number(&daemon_, "sessions"), 2);
    assert_int_equal(daemon_sum(&daemon_, "quarantined_bytes"), 6 * SEGMENT_BYTES);
    daemon_stop(&daemon_);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_are_lent_offered_and_closed),
        cmocka_unit_test(a_request_that_may_not_be_is_refused_alone),
        cmocka_unit_test(an_offer_of_what_is_not_idle_names_nothing),
        cmocka_unit_test(a_segment_is_not_closed_before_its_descriptor_is_sent),
        cmocka_unit_test(opened_is_said_for_the_first_segment_once),
    };

    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
