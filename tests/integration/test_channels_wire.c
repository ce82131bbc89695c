/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels over the wire, by sessions that do not keep to the protocol: without a place, with pages that are not theirs, that
 * never read, and that make channels until the daemon refuses more. Others are served meanwhile.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/channel.h"
#include "tests/integration/harness.h"
#include "tests/integration/wire_peer.h"

#define POOL_MIB      64u
#define DESCRIPTORS   1024u /* of the daemon */
#define ROUNDS        200u
#define CHANNELS_MAKE 4096u /* as many as a user has names */

static char config[TEST_CONFIG_SIZE];
static struct test_daemon daemon_;

static int start_daemon(void **state) {
    (void)state;
    daemon_start(&daemon_, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB),
                                                    .descriptors = DESCRIPTORS});
    return 0;
}

static int stop_daemon(void **state) {
    (void)state;
    daemon_stop(&daemon_);
    return 0;
}

/* Sends a request. Returns its error, or 0; *ret_reply and *ret_fd may be NULL. */
static unsigned ask(struct peer *peer, unsigned operation, struct proto_message *message,
                    struct proto_message *ret_reply, int *ret_fd) {
    struct proto_message reply;
    int fd = -1;

    peer_send(peer, operation, message);
    peer_receive(peer, &reply, &fd);
    if (ret_fd != NULL)
        *ret_fd = fd;
    else
        close_fd(fd);
    if (ret_reply != NULL)
        *ret_reply = reply;
    return reply.header.operation == PROTO_ERROR ? reply.failure.error : 0;
}

static struct proto_message make_of(const char *name, const struct proto_lease *lease, uint64_t n_consumers) {
    struct proto_message message = {.make_channel = {.lease = lease->lease,
                                                     .generation = lease->generation,
                                                     .slot_bytes = 512,
                                                     .n_slots = 4,
                                                     .n_consumers = n_consumers,
                                                     .policy = PROTO_CHANNEL_FAIL}};

    strcpy(message.make_channel.name, name);
    return message;
}

static unsigned make(struct peer *peer, const char *name, const struct proto_lease *lease,
                     uint64_t n_consumers) {
    struct proto_message message = make_of(name, lease, n_consumers);
    return ask(peer, PROTO_MAKE_CHANNEL, &message, NULL, NULL);
}

static struct proto_message join_of(const char *name, uint32_t place, uint64_t timeout_ns) {
    struct proto_message message = {.join_channel = {.timeout_ns = timeout_ns, .place = place}};

    strcpy(message.join_channel.name, name);
    return message;
}

/* Takes a place that is free. Returns the channel's number. */
static uint64_t join(struct peer *peer, const char *name, uint32_t place) {
    struct proto_message message = join_of(name, place, 0), reply;

    assert_int_equal(ask(peer, PROTO_JOIN_CHANNEL, &message, &reply, NULL), 0);
    assert_int_equal(reply.header.operation, PROTO_CHANNEL);
    assert_int_equal(reply.channel.place, place);
    return reply.channel.channel;
}

static unsigned leave(struct peer *peer, uint64_t channel, uint32_t place) {
    struct proto_message message = {.leave_channel = {.channel = channel, .page = place}};
    return ask(peer, PROTO_LEAVE_CHANNEL, &message, NULL, NULL);
}

/* Asks for a page. Returns the error, or 0 and the page's descriptor. */
static unsigned ask_page(struct peer *peer, uint64_t channel, uint32_t page, int *ret_fd,
                         struct proto_channel_page_reply *ret_page) {
    struct proto_message message = {.ask_channel_memory = {.channel = channel, .page = page}}, reply;
    unsigned error = ask(peer, PROTO_ASK_CHANNEL_MEMORY, &message, &reply, ret_fd);

    if (error == 0)
        *ret_page = reply.channel_memory;
    return error;
}

static void unpublish(struct peer *peer, const char *name) {
    struct proto_message message = {0};

    strcpy(message.unpublish.name, name);
    peer_ask(peer, PROTO_UNPUBLISH, &message, PROTO_OK);
}

static void expect_rest(unsigned before) {
    WAIT_UNTIL(daemon_sum(&daemon_, "leases") == 0 && daemon_sum(&daemon_, "leased_bytes") == 0);
    WAIT_UNTIL(daemon_descriptors(&daemon_) - (unsigned)daemon_pool(&daemon_, "host", 0, "segments") ==
               before);
}

static unsigned descriptors(void) {
    unsigned segments = (unsigned)daemon_pool(&daemon_, "host", 0, "segments");
    return daemon_descriptors(&daemon_) - segments;
}

static void a_session_without_a_place_gets_nothing(void **state) {
    unsigned before = descriptors();
    struct proto_channel_page_reply page;
    struct peer maker, stranger;
    int fd;

    (void)state;
    peer_open(&daemon_, &maker, PROTO_HELLO_NO_GPU);
    peer_open(&daemon_, &stranger, PROTO_HELLO_NO_GPU);
    struct proto_lease lease = peer_acquire(&maker, 4096);
    assert_int_equal(make(&maker, "ring", &lease, 2), 0);
    uint64_t channel = join(&maker, "ring", 1);
    for (uint32_t i = 0; i <= PROTO_CHANNEL_PLACES; i++) {
        assert_int_equal(ask_page(&stranger, channel, i, &fd, &page), PROTO_E_STALE);
        assert_int_equal(fd, -1);
        if (i < PROTO_CHANNEL_PLACES)
            assert_int_equal(leave(&stranger, channel, i), PROTO_E_STALE);
    }
    assert_int_equal(leave(&maker, channel, 0), PROTO_E_STALE);
    assert_int_equal(ask_page(&maker, channel + 1, 0, &fd, &page), PROTO_E_STALE);
    assert_int_equal(ask_page(&maker, channel, 4, &fd, &page), PROTO_E_INVALID);
    assert_int_equal(make(&stranger, "theirs", &lease, 1), PROTO_E_STALE);
    assert_int_equal(make(&maker, "ring", &lease, 1), PROTO_E_INVALID);
    struct proto_message large = make_of("large", &lease, 1);
    large.make_channel.slot_bytes = UINT64_C(1) << 40;
    assert_int_equal(ask(&maker, PROTO_MAKE_CHANNEL, &large, NULL, NULL), PROTO_E_INVALID);
    assert_int_equal(leave(&maker, channel, 1), 0);
    assert_int_equal(ask_page(&maker, channel, 0, &fd, &page), PROTO_E_STALE);
    peer_close(&stranger);
    peer_close(&maker);
    expect_rest(before);
}

static void a_page_is_written_by_its_own_place_alone(void **state) {
    unsigned before = descriptors();
    struct proto_channel_page_reply page;
    struct peer peer;

    (void)state;
    peer_open(&daemon_, &peer, PROTO_HELLO_NO_GPU);
    struct proto_lease lease = peer_acquire(&peer, 4096);
    assert_int_equal(make(&peer, "ring", &lease, 2), 0);
    uint64_t channel = join(&peer, "ring", 1);
    for (uint32_t i = 0; i < 4; i++) {
        _cleanup_(close_fdp) int fd = -1;
        char path[64];
        bool is_own = i == 2;
        assert_int_equal(ask_page(&peer, channel, i, &fd, &page), 0);
        assert_int_equal(page.is_own, is_own);
        void *memory = mmap(NULL, page.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_int_equal(memory != MAP_FAILED, is_own);
        if (is_own)
            munmap(memory, page.size_bytes);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd); /* not by this way either, but for root */
        int again = open(path, O_RDWR | O_CLOEXEC);
        assert_true(again < 0 || geteuid() == 0);
        close_fd(again);
        assert_int_equal(ftruncate(fd, 0), -1);
    }
    peer_close(&peer);
    expect_rest(before);
}

/* A session joins, asks for pages and reads nothing. It stays with its one place; others join and get pages. */
static void a_session_that_never_reads_harms_no_other(void **state) {
    unsigned before = descriptors();
    struct proto_channel_page_reply page;
    struct peer maker, deaf;

    (void)state;
    peer_open(&daemon_, &maker, PROTO_HELLO_NO_GPU);
    peer_open(&daemon_, &deaf, PROTO_HELLO_NO_GPU);
    struct proto_lease lease = peer_acquire(&maker, 4096);
    assert_int_equal(make(&maker, "ring", &lease, 2), 0);
    uint64_t channel = join(&maker, "ring", 1);
    join(&deaf, "ring", 2);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct proto_message message = {.ask_channel_memory = {.channel = channel, .page = i % 4}};
        peer_send(&deaf, PROTO_ASK_CHANNEL_MEMORY, &message);
        message = join_of("ring", 0, 0);
        peer_send(&deaf, PROTO_JOIN_CHANNEL, &message);
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        _cleanup_(close_fdp) int fd = -1;
        assert_int_equal(ask_page(&maker, channel, i % 4, &fd, &page), 0);
    }
    assert_int_equal(leave(&maker, channel, 1), 0);
    assert_int_equal(join(&maker, "ring", 1), channel);
    close_fd(deaf.fd); /* without a farewell */
    close_fd(deaf.event_fd);
    peer_close(&maker);
    expect_rest(before);
}

/* Channels until the daemon refuses more. Sessions come and go then as before, and segments are lent. */
static void channels_without_end_leave_descriptors_to_others(void **state) {
    unsigned before = descriptors(), n = 0;
    struct peer greedy, good;
    char name[32];
    unsigned error = 0;

    (void)state;
    peer_open(&daemon_, &greedy, PROTO_HELLO_NO_GPU);
    struct proto_lease lease = peer_acquire(&greedy, 4096);
    for (; n < CHANNELS_MAKE && error == 0; n += error == 0) {
        snprintf(name, sizeof name, "ring-%u", n);
        error = make(&greedy, name, &lease, 1);
    }
    assert_int_equal(error, PROTO_E_LIMIT);
    assert_true(n > 0 && n * 6 < DESCRIPTORS / 8);
    struct proto_message message = make_of("one-more", &lease, 1), reply;
    assert_int_equal(ask(&greedy, PROTO_MAKE_CHANNEL, &message, &reply, NULL), PROTO_E_LIMIT);
    assert_non_null(strstr(reply.failure.text, "as many as the daemon has descriptors for"));
    for (unsigned i = 0; i < ROUNDS; i++) { /* they are used again */
        unpublish(&greedy, "ring-0");
        assert_int_equal(make(&greedy, "ring-0", &lease, 1), 0);
    }
    for (unsigned i = 0; i < 8; i++) {
        peer_open(&daemon_, &good, PROTO_HELLO_NO_GPU);
        peer_acquire(&good, MIB);
        peer_close(&good);
    }
    peer_close(&greedy);
    expect_rest(before);
}

int main(void) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_without_a_place_gets_nothing),
        cmocka_unit_test(a_page_is_written_by_its_own_place_alone),
        cmocka_unit_test(a_session_that_never_reads_harms_no_other),
        cmocka_unit_test(channels_without_end_leave_descriptors_to_others),
    };
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
