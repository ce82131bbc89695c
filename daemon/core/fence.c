/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/fence.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/lease.h"
#include "daemon/core/limits.h"
#include "daemon/core/pool.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "proto/page.h"

bool fence_is_ready(const struct session *session, uint32_t word, uint64_t value) {
    assert(session->state == SESSION_ACTIVE && session->page != NULL && word < PROTO_PAGE_FENCES);
    return proto_fence_is_ready(atomic_load_explicit(&session->page->fences[word], memory_order_acquire),
                                value);
}

/* Makes room for the word in the session's table. Clients number their streams from 0, so the table is as
 * long as the highest word asks for. */
static int fences_reserve(struct session *session, uint32_t word) {
    uint32_t count = session->n_fence_words == 0 ? 8 : session->n_fence_words;
    if (word < session->n_fence_words)
        return 0;
    while (count <= word)
        count *= 2;
    struct fence_queue **queues = realloc(session->fence_queues, count * sizeof *queues);
    if (queues == NULL)
        return -ENOMEM;
    memset(queues + session->n_fence_words, 0, (count - session->n_fence_words) * sizeof *queues);
    session->fence_queues = queues;
    session->n_fence_words = count;
    return 0;
}

int fence_queue_get(struct session *session, struct pool *pool, uint32_t word,
                    struct fence_queue **ret_queue) {
    assert(word < PROTO_PAGE_FENCES);
    int r = fences_reserve(session, word);
    if (r < 0)
        return r;
    struct fence_queue *queue = session->fence_queues[word];
    while (queue != NULL && queue->heap->pool != pool)
        queue = queue->next;
    if (queue == NULL) {
        queue = calloc(1, sizeof *queue);
        if (queue == NULL)
            return -ENOMEM;
        queue->session = session;
        queue->heap = tenant_heap_find(session->tenant, pool);
        queue->word = word;
        list_init(&queue->leases);
        list_init(&queue->session_link);
        list_init(&queue->heap_link);
        queue->next = session->fence_queues[word];
        session->fence_queues[word] = queue;
    }
    *ret_queue = queue;
    return 0;
}

void fence_queue_add(struct fence_queue *queue, struct lease *lease, uint64_t value) {
    assert(lease->fence == NULL && lease->session == queue->session);
    if (list_is_empty(&queue->leases)) {
        list_append(&queue->session->fenced, &queue->session_link);
        list_append(&queue->heap->fenced, &queue->heap_link);
    }
    lease->fence = queue;
    lease->fence_value = value;
    list_append(&queue->leases, &lease->fence_link);
}

void fence_queue_remove(struct lease *lease) {
    struct fence_queue *queue = lease->fence;
    list_remove(&lease->fence_link);
    lease->fence = NULL;
    if (list_is_empty(&queue->leases)) {
        list_remove(&queue->session_link);
        list_remove(&queue->heap_link);
    }
}

static unsigned queue_collect(struct fence_queue *queue, unsigned most) {
    struct pool *pool = queue->heap->pool;
    unsigned closed = 0;
    struct lease *head;

    while (closed < most && (head = list_first(&queue->leases, struct lease, fence_link)) != NULL &&
           fence_is_ready(queue->session, queue->word, head->fence_value)) {
        if (lease_close(head) != NULL && pool->n_waiters > 0)
            pool->returned = true;
        closed++;
    }
    return closed;
}

bool fence_queue_collect(struct fence_queue *queue, unsigned most) {
    return queue_collect(queue, most) > 0;
}

/* Goes through a list of queues once at most, and leaves it turned: who was looked at stands at its end. */
static bool fences_collect(struct list *queues, size_t link_offset) {
    const struct list *last = queues->previous;
    unsigned looks = FENCES_LOOKED_AT_MAX, closed = 0;
    bool round_over = false;

    while (!list_is_empty(queues) && !round_over && looks-- > 0 && closed < FENCES_COLLECTED_MAX) {
        struct list *link = queues->next;
        struct fence_queue *queue = (void *)((char *)link - link_offset);
        round_over = link == last;
        closed += queue_collect(queue, FENCES_COLLECTED_MAX - closed);
        if (list_is_empty(&queue->leases))
            continue;
        list_remove(link);
        list_append(queues, link);
    }
    return closed > 0;
}

bool fences_collect_heap(struct tenant_heap *heap) {
    return fences_collect(&heap->fenced, offsetof(struct fence_queue, heap_link));
}

bool fences_collect_session(struct session *session) {
    return fences_collect(&session->fenced, offsetof(struct fence_queue, session_link));
}

void fences_free(struct session *session) {
    assert(list_is_empty(&session->fenced));
    for (uint32_t word = 0; word < session->n_fence_words; word++)
        while (session->fence_queues[word] != NULL) {
            struct fence_queue *queue = session->fence_queues[word];
            session->fence_queues[word] = queue->next;
            free(queue);
        }
    free(session->fence_queues);
    session->fence_queues = NULL;
    session->n_fence_words = 0;
}

bool fence_queue_is_valid(const struct fence_queue *queue) {
    const struct session *session = queue->session;
    bool found = false;

    if (queue->word >= session->n_fence_words || queue->heap->tenant != session->tenant ||
        list_is_empty(&queue->leases) != list_is_empty(&queue->heap_link) ||
        list_is_empty(&queue->leases) != list_is_empty(&queue->session_link))
        return false;
    for (const struct fence_queue *other = session->fence_queues[queue->word]; other != NULL;
         other = other->next)
        found = found || other == queue;
    list_for_each(position, &queue->leases) {
        const struct lease *lease = container_of(position, struct lease, fence_link);
        if (lease->fence != queue || lease->session != session ||
            lease->block->segment->owner != queue->heap || session->state != SESSION_ACTIVE)
            return false;
    }
    return found;
}
