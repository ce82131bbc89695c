/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that know the protocol and mean harm: what they do to the page, the fences and the line of messages
 * that have no answer. Each attacker is a process of its own that goes on until it is killed; beside it a
 * well-behaved client takes, divides and gives back all the time and never sees an error. After each, nothing
 * is leased, fenced or quarantined any more, and the daemon has as many descriptors as before.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/harness.h"
#include "tests/integration/wire_peer.h"

#define POOL_MIB 32u
#define GRANULE  512u
#define ROUNDS   50u /* of the well-behaved client, beside each attacker */
#define LEASES   600u

static char config[TEST_CONFIG_SIZE];
static struct test_daemon daemon_;

static int start_daemon(void **state) {
    size_t used = strlen(test_config(config, POOL_MIB, POOL_MIB));
    (void)state;
    snprintf(config + used, sizeof config - used, "[daemon]\nsession_leases_limit = %u\n", LEASES);
    daemon_start(&daemon_, &(struct daemon_options){.config = config});
    /* Descriptors that the daemon opens once and keeps, such as that of the driver's list of processes, are
     * not to be counted later. */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct peer peer;
        peer_open(&daemon_, &peer, 0);
        peer_acquire(&peer, MIB);
        _exit(0); /* without a farewell */
    }
    test_wait(pid);
    WAIT_UNTIL(daemon_sum(&daemon_, "quarantined_bytes") == 0 && daemon_sum(&daemon_, "leases") == 0);
    return 0;
}

static int stop_daemon(void **state) {
    (void)state;
    daemon_stop(&daemon_);
    return 0;
}

/* A condition that must hold in an attacker, where an assertion of cmocka's would not be seen. */
static void must(bool holds) {
    if (!holds)
        _exit(1);
}

/* Asks for the page, and keeps its descriptor. */
static struct proto_page *ask_page(struct peer *peer, int *ret_fd) {
    struct proto_message message = {0};
    peer_send(peer, PROTO_ASK_PAGE, &message);
    peer_receive(peer, &message, ret_fd);
    must(message.header.operation == PROTO_PAGE);
    struct proto_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
    must(page != MAP_FAILED);
    return page;
}

/* As many packets as there is room for in the socket, without looking at an answer. */
static bool send_blindly(const struct peer *peer, struct proto_message *message, uint64_t request) {
    uint8_t packet[PROTO_PACKET_MAX];
    message->header.request = request;
    ssize_t n = send(peer->fd, packet, proto_encode(message, packet), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n >= 0 || errno == EAGAIN;
}

/* --- attackers: each begins, tells so through ready, and goes on for ever --- */

static void tell(int ready) {
    must(write(ready, "", 1) == 1);
}

static void *flap_main(void *argument) {
    struct proto_page *page = argument;
    for (uint64_t value = 0;; value++) /* there and back, by everything that 64 bits can say */
        for (unsigned word = 0; word < PROTO_PAGE_FENCES; word++)
            atomic_store(&page->fences[word], value % 3 == 0 ? 0 : value % 3 == 1 ? INT64_MAX : UINT64_MAX);
    return NULL;
}

/* Words that come and go while parts wait behind all of them, and one in line to whom no word is enough. */
static void flap_words(struct peer *peer, int ready) {
    int fd;
    struct proto_page *page = ask_page(peer, &fd);
    struct proto_lease lease = peer_acquire(peer, 8 * MIB);
    struct proto_message message = {0};
    pthread_t thread;

    peer_send_acquire(peer, POOL_MIB * MIB, NS_FOREVER);
    must(pthread_create(&thread, NULL, flap_main, page) == 0);
    for (uint64_t i = 0;; i++) {
        message.header.operation = PROTO_RELEASE;
        message.release = (struct proto_release){.lease = lease.lease,
                                                 .generation = lease.generation,
                                                 .offset_bytes = i * 3 * GRANULE % (8 * MIB),
                                                 .size_bytes = GRANULE,
                                                 .fence = 1 + (uint32_t)(i % PROTO_PAGE_FENCES),
                                                 .fence_value = i * 7};
        must(send_blindly(peer, &message, 0));
        if (i == 2000)
            tell(ready);
    }
}

/* The page comes again, but only when all replies are read: its descriptors do not pile up. */
static void ask_for_pages(struct peer *peer) {
    struct proto_message message = {.header.operation = PROTO_ASK_PAGE};
    int fd = -1, unread;

    must(send_blindly(peer, &message, 101) && send_blindly(peer, &message, 102));
    do
        must(ioctl(peer->fd, SIOCOUTQ, &unread) == 0);
    while (unread > 0);
    (void)daemon_sum(&daemon_, "leases"); /* a turn of the loop after that of the second question */
    peer_receive(peer, &message, &fd);
    must(message.header.operation == PROTO_PAGE && fd >= 0 && close(fd) == 0);
    peer_receive(peer, &message, &fd);
    must(message.header.operation == PROTO_ERROR && message.failure.error == PROTO_E_EXHAUSTED);
}

/* The page's file under the daemon's mapping: neither its size nor its seals change; holes may be punched. */
static void mistreat_page(struct peer *peer, int ready) {
    int fd;
    struct proto_page *page = ask_page(peer, &fd);
    struct proto_lease lease = peer_acquire(peer, MIB);

    must(ftruncate(fd, 0) < 0 && errno == EPERM);
    must(ftruncate(fd, 2 * PROTO_PAGE_BYTES) < 0 && errno == EPERM);
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EPERM);
    ask_for_pages(peer);
    for (unsigned i = 0; i < 64; i++)
        must(peer_release_behind(peer, &lease, 2 * i * GRANULE, GRANULE, 8 * i, 1) == 0);
    for (uint64_t i = 0;; i++) {
        if (i % 2 == 0)
            memset(page, (int)(i / 2 % 256), sizeof *page); /* counters of garbage, too */
        else
            must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PROTO_PAGE_BYTES) == 0);
        if (i == 10)
            tell(ready);
    }
}

/* One-way messages without end, stale and not, of parts and of the whole, and it never reads. */
static void flood_one_way(struct peer *peer, int ready) {
    struct proto_lease lease = peer_acquire(peer, 8 * MIB);
    struct proto_message message = {.header.operation = PROTO_RELEASE};

    for (uint64_t i = 0;; i++) {
        message.release = (struct proto_release){.lease = lease.lease,
                                                 .generation = lease.generation + i % 2,
                                                 .offset_bytes = i * GRANULE % (8 * MIB),
                                                 .size_bytes = GRANULE};
        must(send_blindly(peer, &message, 0));
        if (i == 20000)
            tell(ready);
    }
}

/* One granule in two comes back, from the low end, so that what is left is searched from the far end. */
static void crumble(struct peer *peer, int ready) {
    struct proto_lease lease = peer_acquire(peer, 20 * MIB);
    unsigned error = 0;

    for (uint64_t offset = 0; error == 0; offset += 2 * GRANULE)
        error = peer_dispose(peer, PROTO_RELEASE, &lease, offset, GRANULE, NULL);
    must(error == PROTO_E_LIMIT);
    tell(ready);
    for (uint64_t i = 0;; i++) {
        struct proto_lease part;
        error = peer_dispose(peer, PROTO_SPLIT, &lease, 19 * MIB + i * 2 * GRANULE % MIB, GRANULE, &part);
        must(error == PROTO_E_LIMIT);
    }
}

/* Behind fences that never arrive: the whole of what others are attached to, and parts of what is shared. */
static void share_behind_fences(struct peer *peer, int ready) {
    struct proto_message message = {0};
    struct proto_lease part;
    struct peer other = {.pool = peer->pool};
    int fd;

    peer_open(&daemon_, &other, 0);
    (void)ask_page(peer, &fd);
    for (unsigned i = 0; i < 16; i++) {
        struct proto_lease lease = peer_acquire(peer, 256 * KIB);
        must(peer_release_behind(peer, &lease, 192 * KIB, 64 * KIB, i, 1) == 0);
        message.share = (struct proto_share){
            .lease = lease.lease, .generation = lease.generation, .size_bytes = UINT64_C(1) << 40};
        peer_ask(peer, PROTO_SHARE, &message, PROTO_ERROR);
        message.share =
            (struct proto_share){.lease = lease.lease, .generation = lease.generation, .size_bytes = 100};
        peer_ask(peer, PROTO_SHARE, &message, PROTO_TOKEN);
        struct proto_token token = message.token.token;
        message.attach = token;
        peer_await(&other, peer_send(&other, PROTO_ATTACH, &message), PROTO_LEASE, &message);
        must(peer_dispose(peer, PROTO_SPLIT, &lease, 128 * KIB, 512, &part) == PROTO_E_SHARED);
        must(peer_release_behind(peer, &lease, 128 * KIB, 512, i, 1) == PROTO_E_SHARED);
        must(peer_release_behind(peer, &lease, 0, 0, i, 1) == 0);
        must(peer_dispose(peer, PROTO_SPLIT, &lease, 128 * KIB, 512, &part) == PROTO_E_STALE);
        if (i % 2 == 0) { /* only a fenced lease is left: no session may join it */
            must(peer_release(&other, &message.lease) == 0);
            message.attach = token;
            peer_await(&other, peer_send(&other, PROTO_ATTACH, &message), PROTO_ERROR, &message);
            must(message.failure.error == PROTO_E_NO_TOKEN);
        }
    }
    tell(ready);
    close(peer->fd); /* lost, with the other still attached */
    pause();
}

/* As many waiting words as there are, a long line, and questions whose answers are not read. */
static void ask_without_reading(struct peer *peer, int ready) {
    struct proto_message message = {0};
    int fd;

    (void)ask_page(peer, &fd);
    for (unsigned word = 0; word < PROTO_PAGE_FENCES; word++) {
        struct proto_lease lease = peer_acquire(peer, GRANULE);
        must(peer_release_behind(peer, &lease, 0, 0, word, 1) == 0);
    }
    for (unsigned i = 0; i < 1000; i++)
        peer_send_acquire(peer, POOL_MIB * MIB, NS_FOREVER);
    tell(ready);
    for (uint64_t i = 0;; i++) {
        message.header.operation = PROTO_LIST_POOLS;
        must(send_blindly(peer, &message, 1 + i));
    }
}

/* A client that is not told goes by what it asked for, so the session ends when that is not to be had. */
static void merge_what_cannot_be_merged(struct peer *peer, int ready) {
    struct proto_lease lease = peer_acquire(peer, 64 * KIB);
    char byte;

    peer_merge_one_way(peer, &lease, &lease);
    must(recv(peer->fd, &byte, sizeof byte, 0) > 0);  /* it is told why */
    must(recv(peer->fd, &byte, sizeof byte, 0) <= 0); /* it has ended, and what it had waits for this process */
    must(write(ready, "", 1) == 1);
    for (;;)
        pause();
}

/* More parts come back one-way than there is room for, at once and behind fences, and none is answered. */
static void release_too_many_parts(struct peer *peer, int ready) {
    struct proto_lease lease = peer_acquire(peer, 16 * MIB);
    struct proto_message message = {.header.operation = PROTO_RELEASE};
    uint8_t packet[PROTO_PACKET_MAX];

    peer_ask_page(peer);
    for (uint64_t i = 0; i < 16 * MIB / (2 * GRANULE); i++) {
        message.release =
            (struct proto_release){lease.lease, lease.generation, (2 * i + 1) * GRANULE, GRANULE};
        message.release.fence = (uint32_t)(i % 3 * (1 + i % 100));
        message.release.fence_value = message.release.fence > 0 ? i : 0;
        must(send(peer->fd, packet, proto_encode(&message, packet), MSG_NOSIGNAL) > 0);
    }
    must(peer_release_behind(peer, &lease, 0, GRANULE, 0, UINT64_C(1) << 40) == PROTO_E_LIMIT);
    must(daemon_sum(&daemon_, "leases") == LEASES);
    tell(ready);
    for (;;)
        pause();
}

/* --- beside them --- */

static void live_well(struct peer *peer) {
    struct proto_lease part;

    for (unsigned i = 0; i < ROUNDS; i++) {
        struct proto_lease lease = peer_acquire(peer, 64 * KIB);
        assert_int_equal(peer_dispose(peer, PROTO_SPLIT, &lease, 4096, 4096, &part), 0);
        assert_int_equal(peer_release_behind(peer, &lease, 0, 4096, i % 2, i), 0);
        assert_int_equal(peer_release_behind(peer, &lease, 0, 0, i % 2, i), 0);
        peer_release_one_way(peer, &part, 0, 0);
    }
    cJSON *stats = daemon_ask(&daemon_, "{\"command\":\"stats\"}");
    assert_non_null(stats);
    cJSON_Delete(stats);
    assert_true(daemon_sum(&daemon_, "in_use_bytes") + daemon_sum(&daemon_, "cached_bytes") <=
                POOL_MIB * MIB);
}

/* All but those of the host pool's segments. */
static unsigned descriptors(void) {
    unsigned segments = (unsigned)daemon_pool(&daemon_, "host", 0, "segments"); /* first: by a descriptor */
    return daemon_descriptors(&daemon_) - segments;
}

static void survive(void (*attack)(struct peer *, int ready)) {
    struct peer good;
    int pipe_fds[2];
    char byte;

    unsigned before = descriptors();
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct peer bad;
        peer_open(&daemon_, &bad, 0);
        attack(&bad, pipe_fds[1]);
        _exit(1);
    }
    close(pipe_fds[1]);
    if (!peer_is_readable(pipe_fds[0], (int)(TEST_WAIT_NS / NS_PER_MS)))
        fail_msg("the attack has not begun");
    assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
    close(pipe_fds[0]);

    peer_open(&daemon_, &good, 0);
    struct proto_page *page = peer_ask_page(&good);
    atomic_store(&page->fences[0], 1000);
    atomic_store(&page->fences[1], 1000);
    live_well(&good);
    assert_false(test_has_ended(pid));
    assert_int_equal(kill(pid, SIGKILL), 0);
    test_wait(pid);
    live_well(&good);
    peer_close(&good);
    munmap(page, sizeof *page);
    WAIT_UNTIL(daemon_sum(&daemon_, "quarantined_bytes") == 0 && daemon_sum(&daemon_, "leases") == 0);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    assert_int_equal(daemon_sum(&daemon_, "fenced_bytes"), 0);
    assert_int_equal(daemon_sum(&daemon_, "waiters"), 0);
    WAIT_UNTIL(descriptors() == before);
}

static void words_that_come_and_go_harm_nobody(void **state) {
    (void)state;
    survive(flap_words);
}

static void a_page_that_is_mistreated_harms_nobody(void **state) {
    (void)state;
    survive(mistreat_page);
}

static void a_flood_of_one_way_messages_harms_nobody(void **state) {
    (void)state;
    survive(flood_one_way);
}

static void who_merges_one_way_what_cannot_be_merged_is_ended(void **state) {
    (void)state;
    survive(merge_what_cannot_be_merged);
}

static void more_parts_one_way_than_there_is_room_for_harm_nobody(void **state) {
    (void)state;
    survive(release_too_many_parts);
}

static void a_lease_that_crumbles_harms_nobody(void **state) {
    (void)state;
    survive(crumble);
}

static void shared_blocks_behind_fences_come_back(void **state) {
    (void)state;
    survive(share_behind_fences);
}

static void who_never_reads_and_never_arrives_harms_nobody(void **state) {
    (void)state;
    survive(ask_without_reading);
}

/* No attack: who is at the limit and does not ask loses nothing. */
static void parts_that_come_back_one_way_at_the_limit_come_back(void **state) {
    struct proto_message message = {.header.operation = PROTO_RELEASE};
    struct peer peer;
    (void)state;

    peer_open(&daemon_, &peer, 0);
    struct proto_page *page = peer_ask_page(&peer);
    struct proto_lease lease = peer_acquire(&peer, MIB);
    for (unsigned i = 0; i < LEASES + 100; i++) {
        uint8_t packet[PROTO_PACKET_MAX];
        message.release =
            (struct proto_release){lease.lease, lease.generation, i * GRANULE, GRANULE, 1, 0, 1};
        size_t size = proto_encode(&message, packet);
        assert_int_equal(send(peer.fd, packet, size, MSG_NOSIGNAL), size);
    }
    assert_int_equal(peer_release_behind(&peer, &lease, MIB - GRANULE, GRANULE, 0, 1), PROTO_E_LIMIT);
    assert_int_equal(daemon_sum(&daemon_, "fenced_bytes"), (LEASES + 100) * GRANULE);
    atomic_store(&page->fences[0], 1);
    assert_int_equal(peer_release(&peer, &lease), 0);
    assert_int_equal(daemon_sum(&daemon_, "leases"), 0);
    peer_close(&peer);
    munmap(page, sizeof *page);
}

int main(void) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_that_come_and_go_harm_nobody),
        cmocka_unit_test(a_page_that_is_mistreated_harms_nobody),
        cmocka_unit_test(a_flood_of_one_way_messages_harms_nobody),
        cmocka_unit_test(who_merges_one_way_what_cannot_be_merged_is_ended),
        cmocka_unit_test(more_parts_one_way_than_there_is_room_for_harm_nobody),
        cmocka_unit_test(a_lease_that_crumbles_harms_nobody),
        cmocka_unit_test(shared_blocks_behind_fences_come_back),
        cmocka_unit_test(who_never_reads_and_never_arrives_harms_nobody),
        cmocka_unit_test(parts_that_come_back_one_way_at_the_limit_come_back),
    };
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
