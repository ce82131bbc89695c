/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_WIRE_PEER_H
#define TESTS_INTEGRATION_WIRE_PEER_H
/*
 * A session of the test's own process, in packets made by hand. Whatever the daemon does not answer as the
 * protocol has it fails the test, and so does an answer that does not come in TEST_WAIT_NS. It asks for host
 * memory and maps none of it.
 */
#include "proto/page.h"
#include "proto/proto.h"
#include "tests/integration/harness.h"

struct peer {
    int fd, event_fd; /* -1: it was given none */
    uint32_t pool;    /* the host pool's id */
    uint64_t last_request;
};

/* Connects, says HELLO with these flags, and finds the host pool. */
void peer_open(const struct test_daemon *daemon, struct peer *peer, uint32_t flags);
/* Says farewell: everything returns. */
void peer_close(struct peer *peer);

/* Sends a message; fills in its header. Returns the request's id. */
uint64_t peer_send(struct peer *peer, unsigned operation, struct proto_message *message);
/* Receives one message with exactly the descriptor that belongs to it (-1: none). */
void peer_receive(struct peer *peer, struct proto_message *message, int *ret_fd);
/* Receives the reply to a request, which has to be of that kind; confirms a segment's descriptor, which is of
 * no more use here. */
void peer_await(struct peer *peer, uint64_t request, unsigned operation, struct proto_message *reply);
/* Sends and awaits, in the same message. */
void peer_ask(struct peer *peer, unsigned operation, struct proto_message *message, unsigned wanted);

uint64_t peer_send_acquire(struct peer *peer, uint64_t size, uint64_t timeout_ns);
/* Waits for ever. */
struct proto_lease peer_acquire(struct peer *peer, uint64_t size);

/* SPLIT or RELEASE of a part (of size 0: the whole). Return the error, 0 for none. */
unsigned peer_dispose(struct peer *peer, unsigned operation, const struct proto_lease *lease, uint64_t offset,
                      uint64_t size, struct proto_lease *ret_part);
unsigned peer_release(struct peer *peer, const struct proto_lease *lease);
unsigned peer_release_behind(struct peer *peer, const struct proto_lease *lease, uint64_t offset,
                             uint64_t size, uint32_t word, uint64_t value);

/* One-way: no answer comes. */
void peer_release_one_way(struct peer *peer, const struct proto_lease *lease, uint64_t offset, uint64_t size);
void peer_merge_one_way(struct peer *peer, const struct proto_lease *lease, const struct proto_lease *other);

/* Asks for the page and maps it; the caller's to unmap. */
struct proto_page *peer_ask_page(struct peer *peer);

/* Whether there is something to read, now or within so many milliseconds. */
bool peer_is_readable(int fd, int timeout_ms);

#endif
