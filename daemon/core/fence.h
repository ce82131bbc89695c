/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_FENCE_H
#define DAEMON_CORE_FENCE_H
/*
 * What came back behind a fence: the session has given it up, but its stream may still use it, until a word
 * of the session's page has reached a value (proto/page.h). Such a lease is fenced: nobody can name it any
 * more, and its memory is neither leased nor free. Nothing tells the daemon when the word arrives: it looks
 * when it needs memory, or another lease of a session that has as many as it may.
 *
 * A queue is what waits behind one word of one session in one pool, in order of arrival. A stream writes its
 * word in ascending order, so only the queue's head is looked at: a client may have very many fenced leases,
 * and others are not to pay for them. A release that overtook an earlier one (two threads of a client, one
 * stream) comes back a little later than it could, with the one in front of it.
 *
 * A queue belongs to its session, which makes it when the word is first used and keeps it to the end. While
 * anything is in it, it is in the lists of its session and of its tenant's heap; whoever looks goes through
 * such a list in turns, a bounded number of queues at a time.
 *
 * The word is the client's to write, and what it writes is believed: it harms memory of its own tenant at
 * most, who could write there in any case. A word that never arrives keeps the memory until the session ends.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

struct lease;
struct pool;
struct session;
struct tenant_heap;

struct fence_queue {
    struct session *session;
    struct tenant_heap *heap;
    uint32_t word;
    struct list leases;                  /* lease.fence_link, in order of arrival */
    struct list session_link, heap_link; /* in session->fenced and heap->fenced while leases is not empty */
    struct fence_queue *next;            /* of the same word, in another pool */
};

/* Whether the word of the session's page has reached the value. The session is ACTIVE and has a page. */
bool fence_is_ready(const struct session *session, uint32_t word, uint64_t value);

/* The queue of a word in a pool in which the session's tenant has a heap. Returns 0 or -ENOMEM; the session
 * owns the queue. */
int fence_queue_get(struct session *session, struct pool *pool, uint32_t word,
                    struct fence_queue **ret_queue);

/* Puts a lease at the end. / Takes it out, wherever it is. For lease.c, which keeps the sums. */
void fence_queue_add(struct fence_queue *queue, struct lease *lease, uint64_t value);
void fence_queue_remove(struct lease *lease);

/* Close those leases whose fence is ready: of one queue, so many at most; of a tenant in a pool; of a session
 * in all pools. Pools that got memory while somebody waits there are marked (pool->returned), for pool_tick()
 * or pool_serve(). Return whether any lease was closed. The session is ACTIVE. */
bool fence_queue_collect(struct fence_queue *queue, unsigned most);
bool fences_collect_heap(struct tenant_heap *heap);
bool fences_collect_session(struct session *session);

/* Frees the session's queues, which are empty. */
void fences_free(struct session *session);

bool fence_queue_is_valid(const struct fence_queue *queue);

#endif
