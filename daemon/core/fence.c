/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/fence.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/kept.h"
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
        if (queue == NULL || kept_add(session->core, KEPT_FENCES, queue, &queue->record) < 0) {
            free(queue);
            return -ENOMEM;
        }
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
    kept_change(lease->session->core, lease->record);
    list_append(&queue->leases, &lease->fence_link);
}

void fence_queue_remove(struct lease *lease) {
    struct fence_queue *queue = lease->fence;
    list_remove(&lease->fence_link);
    lease->fence = NULL;
    kept_change(lease->session->core, lease->record);
    if (list_is_empty(&queue->leases)) {
        list_remove(&queue->session_link);
        list_remove(&queue->heap_link);
    }
}

void fence_queue_withhold(struct fence_queue *queue, uint64_t value) {
    if (!queue->withholds || (int64_t)(value - queue->withheld_value) > 0)
        queue->withheld_value = value;
    queue->withholds = true;
    kept_change(queue->session->core, queue->record);
}

struct fence_queue *fence_queue_next_withheld(const struct session *session, const struct pool *pool,
                                              uint32_t word) {
    for (; word < session->n_fence_words; word++)
        for (struct fence_queue *queue = session->fence_queues[word]; queue != NULL; queue = queue->next) {
            if (!queue->withholds || queue->heap->pool != pool)
                continue;
            if (!fence_is_ready(session, word, queue->withheld_value))
                return queue;
            queue->withholds = false;
            kept_change(session->core, queue->record);
        }
    return NULL;
}

void fences_free(struct session *session) {
    assert(list_is_empty(&session->fenced));
    for (uint32_t word = 0; word < session->n_fence_words; word++)
        while (session->fence_queues[word] != NULL) {
            struct fence_queue *queue = session->fence_queues[word];
            session->fence_queues[word] = queue->next;
            kept_end(session->core, &queue->record);
            free(queue);
        }
    free(session->fence_queues);
    session->fence_queues = NULL;
    session->n_fence_words = 0;
}
