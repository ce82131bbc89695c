/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon at its socket, in packets made by hand: what the client library does for its user without being
 * asked, and what it would never do. Host memory only, so that no driver is needed on this side.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/harness.h"
#include "tests/integration/wire_peer.h"

#define POOL_MIB 16u

#include "tests/integration/daemon_fixture.h"

static void a_part_becomes_a_lease_of_its_own(void **state) {
    struct proto_lease part, rest;
    struct peer peer;

    (void)state;
    peer_open(&daemon_, &peer, 0);
    struct proto_lease lease = peer_acquire(&peer, 4 * MIB);
    assert_int_equal(peer_dispose(&peer, PROTO_SPLIT, &lease, MIB, 512, &part), 0);
    assert_int_equal(part.segment, lease.segment);
    assert_int_equal(part.offset_bytes, lease.offset_bytes + MIB);
    assert_int_equal(part.size_bytes, 512);
    assert_int_equal(part.capacity_bytes, 512);
    assert_int_equal(part.description.kind, 0);
    assert_int_equal(host_pool("leased_bytes"), 4 * MIB);
    assert_int_equal(host_pool("leases"), 2);
    assert_int_equal(peer_dispose(&peer, PROTO_SPLIT, &lease, MIB, 512, NULL), PROTO_E_INVALID);
    assert_int_equal(peer_dispose(&peer, PROTO_SPLIT, &lease, 4 * MIB, 512, NULL), PROTO_E_INVALID);
    assert_int_equal(peer_release(&peer, &lease), 0);
    assert_int_equal(host_pool("leased_bytes"), 512);
    assert_int_equal(peer_dispose(&peer, PROTO_SPLIT, &lease, 0, 512, NULL), PROTO_E_STALE);
    assert_int_equal(peer_dispose(&peer, PROTO_SPLIT, &part, 0, 512, &rest), 0); /* all of it */
    assert_int_equal(peer_release(&peer, &part), PROTO_E_STALE);
    struct proto_message message = {.share = {.lease = rest.lease, .generation = rest.generation}};
    peer_ask(&peer, PROTO_SHARE, &message, PROTO_TOKEN);
    assert_int_equal(peer_dispose(&peer, PROTO_SPLIT, &rest, 0, 512, NULL), PROTO_E_SHARED);
    assert_int_equal(peer_release(&peer, &rest), 0);
    assert_int_equal(host_pool("leased_bytes"), 0);
    peer_close(&peer);
}

/* The size of a segment's memfd and of a session's page is the daemon's: a client cannot add to it. */
static void must_be_closed_to_others(int fd) {
    struct stat status;
    assert_int_equal(fstat(fd, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
}

/* A growth ahead of demand may come in after a trim. */
static bool pool_is_trimmed(void) {
    cJSON_Delete(daemon_ask(&daemon_, "{\"command\":\"trim\"}"));
    return host_pool("reserved_bytes") == 0;
}

static void host_memory_that_a_client_keeps_after_its_farewell_goes_with_its_segment(void **state) {
    struct proto_message message;
    struct stat status;
    struct peer peer;
    int fd, page_fd;

    (void)state;
    WAIT_UNTIL(pool_is_trimmed());
    peer_open(&daemon_, &peer, 0);
    peer_send_acquire(&peer, 4 * MIB, NS_FOREVER);
    peer_receive(&peer, &message, &fd);
    assert_int_equal(message.header.operation, PROTO_LEASE);
    uint64_t size_bytes = message.lease.description.size_bytes;
    must_be_closed_to_others(fd);
    message.opened.segment = message.lease.segment;
    peer_send(&peer, PROTO_OPENED, &message);
    peer_send(&peer, PROTO_ASK_PAGE, &message);
    peer_receive(&peer, &message, &page_fd);
    must_be_closed_to_others(page_fd);
    close_fd(page_fd);
    char *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(memory != MAP_FAILED);
    memory[0] = 'x';
    assert_int_equal(fstat(fd, &status), 0);
    assert_int_equal((uint64_t)status.st_blocks * 512, size_bytes);
    peer_close(&peer);
    WAIT_UNTIL(pool_is_trimmed());
    assert_int_equal(fstat(fd, &status), 0);
    assert_int_equal(status.st_blocks, 0);
    assert_int_equal(memory[0], 0); /* a new page, this process's own */
    munmap(memory, size_bytes);
    close_fd(fd);
}

static void a_session_that_wants_it_is_asked_for_idle_memory_when_another_waits(void **state) {
    struct peer holder, silent, other;
    struct proto_message reply;
    uint64_t count = 0;

    (void)state;
    peer_open(&daemon_, &holder, PROTO_HELLO_RECLAIM);
    peer_open(&daemon_, &silent, 0);
    peer_open(&daemon_, &other, PROTO_HELLO_RECLAIM);
    assert_true(holder.event_fd >= 0 && other.event_fd >= 0);
    assert_int_equal(silent.event_fd, -1);
    assert_true(fcntl(holder.event_fd, F_GETFL) & O_NONBLOCK);
    assert_int_equal(read(holder.event_fd, &count, sizeof count), -1);
    assert_int_equal(errno, EAGAIN);

    struct proto_lease lease = peer_acquire(&holder, 10 * MIB);
    struct proto_lease grown =
        peer_acquire(&silent, 4 * MIB); /* other sessions are not asked for memory that growth can serve */
    assert_false(peer_is_readable(holder.event_fd, 0));

    uint64_t request = peer_send_acquire(&other, 8 * MIB, NS_FOREVER);
    assert_true(peer_is_readable(holder.event_fd, (int)(TEST_WAIT_NS / NS_PER_MS)));
    assert_int_equal(read(holder.event_fd, &count, sizeof count), sizeof count);
    assert_true(count > 0);
    assert_true(
        peer_is_readable(holder.event_fd, (int)(TEST_WAIT_NS / NS_PER_MS))); /* again while it waits */
    assert_false(peer_is_readable(other.event_fd, 0));                       /* it holds nothing */
    assert_false(peer_is_readable(other.fd, 0));
    assert_int_equal(peer_dispose(&holder, PROTO_RELEASE, &lease, 0, 8 * MIB, NULL), 0);
    peer_await(&other, request, PROTO_LEASE, &reply);
    assert_int_equal(peer_release(&silent, &grown), 0);

    peer_close(&holder);
    peer_close(&silent);
    peer_close(&other);
    assert_int_equal(host_pool("leased_bytes"), 0);
}

static void a_request_that_does_not_wait_has_others_asked_too(void **state) {
    struct peer holder, other;
    struct proto_message reply;

    (void)state;
    peer_open(&daemon_, &holder, PROTO_HELLO_RECLAIM);
    peer_open(&daemon_, &other, 0);
    struct proto_lease lease = peer_acquire(&holder, 12 * MIB);
    peer_await(&other, peer_send_acquire(&other, 8 * MIB, 0), PROTO_ERROR, &reply);
    assert_int_equal(reply.failure.error, PROTO_E_EXHAUSTED);
    assert_true(peer_is_readable(holder.event_fd, (int)(TEST_WAIT_NS / NS_PER_MS)));
    assert_int_equal(peer_release(&holder, &lease), 0);
    peer_await(&other, peer_send_acquire(&other, 8 * MIB, 0), PROTO_LEASE, &reply);
    peer_close(&holder);
    peer_close(&other);
}

static void what_is_released_one_way_is_there_for_the_next_request(void **state) {
    struct peer peer;

    (void)state;
    peer_open(&daemon_, &peer, 0);
    struct proto_lease lease = peer_acquire(&peer, 12 * MIB), again = lease;
    for (unsigned round = 0; round < 100; round++) {
        peer_release_one_way(&peer, &again, 4 * MIB, 8 * MIB);
        peer_release_one_way(&peer, &again, 0, 0);
        peer_release_one_way(&peer, &again, 0, 0); /* stale by now: no answer comes, and nothing happens */
        peer_release_one_way(&peer, &again, 512, 512);
        again = peer_acquire(&peer, 12 * MIB); /* no room for two; nor is there another reply on the way */
    }
    assert_true(again.generation != lease.generation);
    assert_int_equal(peer_release(&peer, &lease), PROTO_E_STALE);
    assert_int_equal(host_pool("leased_bytes"), 12 * MIB);
    peer_close(&peer);
    assert_int_equal(host_pool("leased_bytes"), 0);
}

static void a_misaligned_part_is_refused_and_the_session_goes_on(void **state) {
    static const uint64_t parts[][2] = {{1, 512}, {0, 511}, {513, 1024}, {MIB, MIB + 1}};
    struct peer peer;

    (void)state;
    peer_open(&daemon_, &peer, 0);
    struct proto_lease lease = peer_acquire(&peer, 4 * MIB);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint64_t offset = parts[i][0], size = parts[i][1];
        assert_int_equal(peer_dispose(&peer, PROTO_RELEASE, &lease, offset, size, NULL), PROTO_E_INVALID);
        assert_int_equal(peer_dispose(&peer, PROTO_SPLIT, &lease, offset, size, NULL), PROTO_E_INVALID);
        peer_release_one_way(&peer, &lease, offset, size); /* nothing happens */
    }
    assert_int_equal(host_pool("leased_bytes"), 4 * MIB);
    assert_int_equal(peer_dispose(&peer, PROTO_RELEASE, &lease, MIB, MIB, NULL), 0);
    assert_int_equal(host_pool("leased_bytes"), 3 * MIB);
    peer_close(&peer);
    assert_int_equal(host_pool("leased_bytes"), 0);
}

static void what_is_merged_one_way_is_one_lease(void **state) {
    struct peer peer;

    (void)state;
    peer_open(&daemon_, &peer, 0);
    struct proto_lease lower = peer_acquire(&peer, 2 * MIB), upper = peer_acquire(&peer, 2 * MIB);
    if (lower.offset_bytes > upper.offset_bytes) {
        struct proto_lease other = lower;
        lower = upper, upper = other;
    }
    peer_merge_one_way(&peer, &lower, &upper);
    assert_int_equal(peer_release(&peer, &upper), PROTO_E_STALE); /* it is the lower one's now */
    assert_int_equal(host_pool("leased_bytes"), 4 * MIB);
    peer_close(&peer);
    assert_int_equal(host_pool("leased_bytes"), 0);
}

/* The description behind a descriptor is its holders' in common, and one of them is not to be trusted. */
static void what_a_client_does_to_its_descriptor_harms_nobody(void **state) {
    struct peer holder, second, other;
    const struct itimerspec much_later = {.it_value = {.tv_sec = 1000000}};
    const uint64_t full = UINT64_MAX - 1;

    (void)state;
    peer_open(&daemon_, &holder, PROTO_HELLO_RECLAIM);
    peer_open(&daemon_, &second, PROTO_HELLO_RECLAIM);
    peer_open(&daemon_, &other, 0);
    peer_acquire(&holder, 6 * MIB);
    struct proto_lease lease = peer_acquire(&second, 6 * MIB);
    assert_int_equal(fcntl(holder.event_fd, F_SETFL, 0), 0); /* an eventfd would block its writers from now */
    assert_int_equal(write(holder.event_fd, &full, sizeof full), -1);
    timerfd_settime(holder.event_fd, 0, &much_later, NULL);
    uint64_t request = peer_send_acquire(&other, 6 * MIB, NS_FOREVER);
    assert_true(peer_is_readable(second.event_fd, (int)(TEST_WAIT_NS / NS_PER_MS)));
    second.event_fd =
        close_fd(second.event_fd); /* nor does it matter to the daemon that the client does not listen */
    assert_int_equal(peer_release(&second, &lease), 0);
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
    unsigned before = daemon_descriptors_at_rest(&daemon_);
    for (unsigned i = 0; i < 8; i++) {
        peer_open(&daemon_, &peers[i], PROTO_HELLO_RECLAIM);
        WAIT_UNTIL(daemon_descriptors(&daemon_) == before + 3 * (i + 1));
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

/* A figure of this process's first session in the stats; -1: null. */
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

static void what_a_client_counts_is_in_the_stats_and_nothing_else_changes(void **state) {
    struct peer peer, other;
    (void)state;

    peer_open(&daemon_, &peer, 0);
    peer_open(&daemon_, &other, 0);
    peer_acquire(&peer, 2 * MIB);
    struct proto_page *page = peer_ask_page(&peer);
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
    assert_true(session_member("in_use_bytes") == 0.75 * (double)MIB);
    assert_true(session_member("cached_bytes") == 1.25 * (double)MIB);
    assert_true(session_member("hit_ratio") == 0.75);

    for (unsigned round = 0; round < 20; round++) { /* any bytes at all, and every line of some pool */
        for (size_t at = 0; at < sizeof *page; at += 256)
            assert_int_equal(getrandom((char *)page + at, 256, 0), 256);
        for (unsigned i = 0; i < PROTO_PAGE_COUNTERS && round > 0; i++)
            atomic_store(&page->counters[i].pool, 1 + i % (peer.pool + 1));
        assert_int_equal(host_pool("in_use_bytes") + host_pool("cached_bytes"), host_pool("leased_bytes"));
        assert_true(host_pool("cached_bytes") <= 2 * MIB);
        struct proto_lease lease = peer_acquire(&other, MIB);
        assert_int_equal(host_pool("leased_bytes"), 3 * MIB);
        assert_int_equal(peer_release(&other, &lease), 0);
    }
    munmap(page, sizeof *page);
    peer_close(&peer);
    peer_close(&other);
    assert_int_equal(host_pool("cached_bytes"), 0);
}

int main(void) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_becomes_a_lease_of_its_own),
        cmocka_unit_test(host_memory_that_a_client_keeps_after_its_farewell_goes_with_its_segment),
        cmocka_unit_test(a_session_that_wants_it_is_asked_for_idle_memory_when_another_waits),
        cmocka_unit_test(a_request_that_does_not_wait_has_others_asked_too),
        cmocka_unit_test(what_is_released_one_way_is_there_for_the_next_request),
        cmocka_unit_test(a_misaligned_part_is_refused_and_the_session_goes_on),
        cmocka_unit_test(what_is_merged_one_way_is_one_lease),
        cmocka_unit_test(what_a_client_does_to_its_descriptor_harms_nobody),
        cmocka_unit_test(descriptors_for_asking_end_with_the_connection),
        cmocka_unit_test(what_a_client_counts_is_in_the_stats_and_nothing_else_changes),
    };
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
