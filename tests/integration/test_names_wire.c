/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names over the wire, with publishers that are processes of their own and end in every way. The daemon tells by their
 * slots on the board whether the contents came. Kept names hold memory without a session, and the daemon ends with them.
 */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/board.h"
#include "tests/integration/harness.h"
#include "tests/integration/wire_peer.h"

#define POOL_MIB 32u
#define WORD     3u

static char config[TEST_CONFIG_SIZE];
static struct test_daemon daemon_;

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

/* Asks for the board and maps it. It stays mapped until the process ends. */
static struct proto_board_slot *ask_board(struct peer *peer, uint32_t *ret_slot) {
    struct proto_message message = {0};
    _cleanup_(close_fdp) int fd = -1;

    peer_send(peer, PROTO_ASK_BOARD, &message);
    peer_receive(peer, &message, &fd);
    assert_int_equal(message.header.operation, PROTO_BOARD);
    struct proto_board *board = mmap(NULL, PROTO_BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(board != MAP_FAILED);
    *ret_slot = message.board.slot;
    return &board->slots[message.board.slot];
}

static void publish(struct peer *peer, const char *name, const struct proto_lease *lease, uint32_t flags,
                    const struct proto_board_fence *fence) {
    struct proto_message message = {
        .publish = {.flags = flags,
                    .count = 1,
                    .buffers = {{lease->lease, lease->generation, lease->size_bytes, {0}, fence != NULL, 0}}}};

    strcpy(message.publish.name, name);
    if (fence != NULL)
        message.publish.buffers[0].fence = *fence;
    peer_ask(peer, PROTO_PUBLISH, &message, PROTO_PUBLISHED);
}

/* Returns the error, or 0. *ret_named: the answer. */
static unsigned open_name(struct peer *peer, const char *name, uint32_t flags, uint64_t generation,
                          uint64_t timeout_ns, struct proto_named *ret_named) {
    struct proto_message message = {
        .open_name = {.generation = generation, .timeout_ns = timeout_ns, .flags = flags}};
    int fd;

    strcpy(message.open_name.name, name);
    peer_send(peer, PROTO_OPEN_NAME, &message);
    peer_receive(peer, &message, &fd);
    if (message.header.operation == PROTO_ERROR)
        return message.failure.error;
    assert_int_equal(message.header.operation, PROTO_NAMED);
    *ret_named = message.named;
    return 0;
}

static void unpublish(struct peer *peer, const char *name) {
    struct proto_message message = {0};

    strcpy(message.unpublish.name, name);
    peer_ask(peer, PROTO_UNPUBLISH, &message, PROTO_OK);
}

/* How a publisher ends. */
enum end {
    END_BYE,     /* it says farewell, before its word has come so far */
    END_REACHED, /* it dies behind its fence */
    END_BEFORE,  /* it dies before its fence */
};

/* A process publishes under "kept", with KEEP and behind a fence, and ends. */
static void publish_and_end(enum end how) {
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct peer peer;
        uint32_t slot;
        peer_open(&daemon_, &peer, PROTO_HELLO_NO_GPU);
        struct proto_lease lease = peer_acquire(&peer, MIB);
        struct proto_board_slot *words = ask_board(&peer, &slot);
        uint64_t value = atomic_load(&words->words[WORD]) + 5;
        publish(&peer, "kept", &lease, PROTO_PUBLISH_KEEP, &(struct proto_board_fence){slot, WORD, value});
        atomic_store(&words->words[WORD], how == END_REACHED ? value : value - 1);
        if (how == END_BYE)
            peer_close(&peer);
        _exit(0);
    }
    test_wait(pid);
}

static void contents_that_came_outlive_their_publisher(void **state) {
    struct proto_named named = {0};
    struct peer reader;
    (void)state;

    peer_open(&daemon_, &reader, PROTO_HELLO_NO_GPU);
    for (unsigned how = END_BYE; how <= END_REACHED; how++) {
        publish_and_end(how);
        WAIT_UNTIL(daemon_sum(&daemon_, "quarantined_bytes") == 0);
        WAIT_UNTIL(open_name(&reader, "kept", 0, 0, 0, &named) == 0 && named.buffers[0].has_fence == 0);
        struct proto_message message = {.attach = named.buffers[0].token};
        peer_ask(&reader, PROTO_ATTACH, &message, PROTO_LEASE);
        assert_int_equal(message.lease.size_bytes, MIB);
        const struct proto_lease lease = message.lease;
        unpublish(&reader, "kept");
        assert_int_equal(open_name(&reader, "kept", 0, 0, 0, &named), PROTO_E_NO_NAME);
        assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), MIB); /* the reader's */
        assert_int_equal(peer_release(&reader, &lease), 0);
        assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    }
    peer_close(&reader);
}

/* A reader that waits for a change learns of it. */
static void contents_that_did_not_come_end_with_their_publisher(void **state) {
    struct proto_named named = {0};
    struct peer reader;
    (void)state;

    peer_open(&daemon_, &reader, PROTO_HELLO_NO_GPU);
    publish_and_end(END_BEFORE);
    unsigned error = open_name(&reader, "kept", 0, 0, 0, &named); /* unless it has gone already */
    if (error == 0) {
        assert_int_equal(open_name(&reader, "kept", PROTO_OPEN_NAME_CHANGE, named.generation, NS_FOREVER, &named),
                         0);
        assert_int_equal(named.state, PROTO_NAME_GONE);
    }
    assert_int_equal(open_name(&reader, "kept", 0, 0, 0, &named), PROTO_E_NO_NAME);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0 && daemon_sum(&daemon_, "quarantined_bytes") == 0);
    peer_close(&reader);
}

/* Processes that start together: one is told to build, and dies before it has. */
static void another_process_builds_when_a_builder_dies(void **state) {
    struct proto_named named = {0};
    struct peer builder;
    int told[2];
    char byte;
    (void)state;

    assert_int_equal(pipe(told), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct peer peer;
        peer_open(&daemon_, &peer, PROTO_HELLO_NO_GPU);
        if (open_name(&peer, "built", PROTO_OPEN_NAME_BUILD, 0, 0, &named) != 0 || named.state != PROTO_NAME_BUILD)
            _exit(1);
        (void)!write(told[1], "x", 1);
        for (;;)
            pause();
    }
    close(told[1]);
    assert_int_equal(read(told[0], &byte, 1), 1);
    close(told[0]);
    peer_open(&daemon_, &builder, PROTO_HELLO_NO_GPU);
    assert_int_equal(open_name(&builder, "built", PROTO_OPEN_NAME_BUILD, 0, 0, &named), PROTO_E_NO_NAME);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(open_name(&builder, "built", PROTO_OPEN_NAME_BUILD, 0, NS_FOREVER, &named), 0);
    assert_int_equal(named.state, PROTO_NAME_BUILD);
    int status;
    assert_int_equal(test_reap(pid, &status), 0);
    peer_close(&builder);
}

/* The last test: a kept name is there when the daemon ends. */
static void the_daemon_ends_with_names(void **state) {
    struct proto_named named = {0};
    struct peer reader;
    (void)state;

    publish_and_end(END_BYE);
    peer_open(&daemon_, &reader, PROTO_HELLO_NO_GPU);
    assert_int_equal(open_name(&reader, "kept", 0, 0, 0, &named), 0);
    peer_close(&reader);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), MIB);
}

int main(void) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contents_that_came_outlive_their_publisher),
        cmocka_unit_test(contents_that_did_not_come_end_with_their_publisher),
        cmocka_unit_test(another_process_builds_when_a_builder_dies),
        cmocka_unit_test(the_daemon_ends_with_names),
    };
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
