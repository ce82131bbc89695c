/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a client released behind a fence, over the wire: the test is the client, its page is the real
 * one, and it writes the words itself, where a stream would.
 */
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/harness.h"
#include "tests/integration/wire_peer.h"

#define POOL_MIB 16u

#include "tests/integration/daemon_fixture.h"

static void arrive(struct proto_page *page, uint32_t word, uint64_t value) {
    atomic_store(&page->fences[word], value);
}

static void expect_exhausted(struct peer *peer, uint64_t size) {
    struct proto_message reply;
    peer_await(peer, peer_send_acquire(peer, size, 0), PROTO_ERROR, &reply);
    assert_int_equal(reply.failure.error, PROTO_E_EXHAUSTED);
}

static void memory_behind_a_word_goes_to_nobody_before_it_arrives(void **state) {
    struct proto_message reply;
    struct peer one, other;
    (void)state;

    peer_open(&daemon_, &one, 0);
    peer_open(&daemon_, &other, 0);
    struct proto_page *page = peer_ask_page(&one);
    struct proto_lease lease = peer_acquire(&one, POOL_MIB * MIB);
    assert_int_equal(peer_release_behind(&one, &lease, 0, 0, 5, 10), 0);
    assert_int_equal(peer_release(&one, &lease), PROTO_E_STALE);
    assert_int_equal(host_pool("leased_bytes"), 0);
    assert_int_equal(host_pool("fenced_bytes"), POOL_MIB * MIB);
    assert_int_equal(host_pool("free_bytes"), 0);
    expect_exhausted(&other, MIB);
    expect_exhausted(&one, MIB);
    arrive(page, 5, 9);
    expect_exhausted(&other, MIB);

    arrive(page, 5, 10);
    peer_await(&other, peer_send_acquire(&other, POOL_MIB * MIB, 0), PROTO_LEASE, &reply);
    assert_int_equal(reply.lease.segment, lease.segment);
    assert_int_equal(host_pool("fenced_bytes"), 0);
    munmap(page, sizeof *page);
    peer_close(&one);
    peer_close(&other);
}

static void who_waits_gets_it_when_the_word_arrives(void **state) {
    struct proto_message reply;
    struct peer one, other;
    (void)state;

    peer_open(&daemon_, &one, 0);
    peer_open(&daemon_, &other, 0);
    struct proto_page *page = peer_ask_page(&one);
    struct proto_lease lease = peer_acquire(&one, POOL_MIB * MIB);
    assert_int_equal(peer_release_behind(&one, &lease, 4 * MIB, 4 * MIB, 0, 1), 0); /* a part */
    uint64_t request = peer_send_acquire(&other, 2 * MIB, NS_FOREVER);
    WAIT_UNTIL(host_pool("waiters") == 1);
    assert_false(peer_is_readable(other.fd, 0));
    arrive(page, 0, 1); /* and no message: the daemon looks by itself */
    peer_await(&other, request, PROTO_LEASE, &reply);
    assert_int_equal(reply.lease.offset_bytes, lease.offset_bytes + 4 * MIB);

    request = peer_send_acquire(&other, 4 * MIB, NS_FOREVER); /* who waits already when the release comes */
    WAIT_UNTIL(host_pool("waiters") == 1);
    assert_int_equal(peer_release_behind(&one, &lease, 0, 0, 0, 2), 0);
    assert_false(peer_is_readable(other.fd, 0));
    arrive(page, 0, 2);
    peer_await(&other, request, PROTO_LEASE, &reply);
    munmap(page, sizeof *page);
    peer_close(&one);
    peer_close(&other);
}

static void the_stats_and_the_list_of_pools_know_of_words_that_arrived(void **state) {
    struct proto_message message = {0};
    struct peer peer;
    (void)state;

    peer_open(&daemon_, &peer, 0);
    struct proto_page *page = peer_ask_page(&peer);
    struct proto_lease lease = peer_acquire(&peer, MIB);
    assert_int_equal(peer_release_behind(&peer, &lease, 0, 0, 0, 1), 0);
    assert_int_equal(host_pool("fenced_bytes"), MIB);
    arrive(page, 0, 1);
    assert_int_equal(host_pool("fenced_bytes"), 0);
    lease = peer_acquire(&peer, MIB);
    assert_int_equal(peer_release_behind(&peer, &lease, 0, 0, 0, 2), 0);
    arrive(page, 0, 2);
    peer_ask(&peer, PROTO_LIST_POOLS, &message, PROTO_POOLS);
    for (uint32_t i = 0; i < message.pools.count; i++)
        assert_int_equal(message.pools.pools[i].free_bytes, message.pools.pools[i].reserved_bytes);
    munmap(page, sizeof *page);
    peer_close(&peer);
}

static void a_session_without_a_page_has_no_fences(void **state) {
    struct peer peer;
    (void)state;

    peer_open(&daemon_, &peer, 0);
    struct proto_lease lease = peer_acquire(&peer, MIB);
    assert_int_equal(peer_release_behind(&peer, &lease, 0, 0, 0, 0), PROTO_E_INVALID);
    assert_int_equal(peer_release(&peer, &lease), 0);
    peer_close(&peer);
}

static void a_farewell_returns_what_is_behind_fences(void **state) {
    struct peer peer;
    (void)state;

    peer_open(&daemon_, &peer, 0);
    struct proto_page *page = peer_ask_page(&peer);
    struct proto_lease lease = peer_acquire(&peer, MIB);
    assert_int_equal(peer_release_behind(&peer, &lease, 0, 0, PROTO_PAGE_FENCES - 1, 1), 0);
    assert_int_equal(host_pool("fenced_bytes"), MIB);
    peer_close(&peer);
    assert_int_equal(host_pool("fenced_bytes"), 0);
    assert_int_equal(host_pool("leases"), 0);
    munmap(page, sizeof *page);
}

/* A process of its own: the daemon watches the processes of its sessions. */
static void the_memory_of_who_was_killed_is_not_handed_on_by_its_words(void **state) {
    int sockets[2];
    char byte = 0;
    struct peer other;
    (void)state;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct peer peer;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves no process behind */
        peer_open(&daemon_, &peer, 0);
        struct proto_page *page = peer_ask_page(&peer);
        struct proto_lease lease = peer_acquire(&peer, POOL_MIB * MIB);
        if (peer_release_behind(&peer, &lease, 0, 0, 0, 1) != 0)
            _exit(1);
        close(peer.fd); /* the connection ends and the process goes on, as one does whose GPU work hangs */
        if (write(sockets[1], &byte, 1) != 1 || read(sockets[1], &byte, 1) != 1)
            _exit(1);
        arrive(page, 0, 1);
        if (write(sockets[1], &byte, 1) != 1)
            _exit(1);
        pause();
        _exit(1);
    }
    close(sockets[1]);
    assert_int_equal(read(sockets[0], &byte, 1), 1);
    /* Before the daemon has seen the end of the connection, a word is its session's. */
    WAIT_UNTIL(host_pool("quarantined_bytes") == POOL_MIB * MIB);
    assert_int_equal(write(sockets[0], &byte, 1), 1);
    assert_int_equal(read(sockets[0], &byte, 1), 1);
    close(sockets[0]);
    assert_int_equal(host_pool("quarantined_bytes"), POOL_MIB * MIB);
    assert_int_equal(host_pool("fenced_bytes"), 0);
    peer_open(&daemon_, &other, 0);
    expect_exhausted(&other, MIB);
    assert_int_equal(kill(pid, SIGKILL), 0);
    test_wait(pid);
    struct proto_lease lease = peer_acquire(&other, POOL_MIB * MIB);
    assert_int_equal(peer_release(&other, &lease), 0);
    peer_close(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_behind_a_word_goes_to_nobody_before_it_arrives),
        cmocka_unit_test(who_waits_gets_it_when_the_word_arrives),
        cmocka_unit_test(the_stats_and_the_list_of_pools_know_of_words_that_arrived),
        cmocka_unit_test(a_session_without_a_page_has_no_fences),
        cmocka_unit_test(a_farewell_returns_what_is_behind_fences),
        cmocka_unit_test(the_memory_of_who_was_killed_is_not_handed_on_by_its_words),
    };
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
