/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_FENCE_H
#define DAEMON_CORE_FENCE_H
/*
 * A fence queue: the leases that one session released behind one word of its page, in one pool, in order of
 * arrival.
 *
 * A session can release memory that its stream still uses: behind a fence, which is a word of the session's
 * page and the value that the word reaches when the stream is done (proto/page.h). Such a lease is fenced. No
 * client can name it any more, and its memory is neither leased nor free. No message tells the daemon when
 * the word reaches the value. The daemon polls fences when it needs memory or leases (collect.h).
 *
 * A stream writes its word in ascending order, so only the head of a queue is polled: a client may have very
 * many fenced leases, and other clients must not pay for them. A release can overtake an earlier one of the
 * same stream (two threads of a client). It then comes back together with the one in front of it.
 *
 * A part that comes back and is withheld (lease_withhold()) waits for its word with its lease. Of these the
 * queue remembers the last value alone, however many they are.
 *
 * A session makes a queue when a word is first used, and keeps it to its end. While a queue has leases, it is
 * in the lists of its session and of its tenant's heap.
 *
 * The client writes the word, and the daemon believes it. A wrong word harms memory of the client's own
 * tenant at most, which the client could overwrite in any case. A word that never arrives keeps the memory
 * until the session ends.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* Whether the word of the session's page has reached the value. The session is ACTIVE and has a page. */
bool fence_is_ready(const struct session *session, uint32_t word, uint64_t value);

/* Finds or makes the queue of a word in a pool in which the session's tenant has a heap. Returns 0 or
 * -ENOMEM; the session owns the queue. */
int fence_queue_get(struct session *session, struct pool *pool, uint32_t word,
                    struct fence_queue **ret_queue);

/* Puts a lease at the end. lease.c keeps the sums. */
void fence_queue_add(struct fence_queue *queue, struct lease *lease, uint64_t value);

/* Takes a lease out of its queue, from any place in it. lease.c keeps the sums. */
void fence_queue_remove(struct lease *lease);

/* A part of a lease waits for the word of the queue, beside what waits for it already. The queue need not
 * have leases. */
void fence_queue_withhold(struct fence_queue *queue, uint64_t value);

/* The session's first queue in the pool, from a word on, for which parts of leases wait that are not ready.
 * NULL: there is none. Linear in the session's words. */
struct fence_queue *fence_queue_next_withheld(const struct session *session, const struct pool *pool,
                                              uint32_t word);

/* Frees the session's queues, which are empty. */
void fences_free(struct session *session);

#endif
