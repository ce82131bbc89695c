/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/collect.h"

#include <stddef.h>

#include "daemon/core/fence.h"
#include "daemon/core/lease.h"
#include "daemon/core/pool.h"
#include "daemon/core/tenant.h"

unsigned collect_queue(struct fence_queue *queue, unsigned most) {
    unsigned passed = 0;
    struct lease *head;

    while (passed < most && (head = list_first(&queue->leases, struct lease, fence_link)) != NULL &&
           fence_is_ready(queue->session, queue->word, head->fence_value)) {
        lease_pass_fence(head);
        passed++;
    }
    return passed;
}

/* Goes through a list of queues once at most. The queues that were polled move to its end. */
static bool collect_in_turns(struct list *queues, size_t link_offset) {
    const struct list *last = queues->previous;
    unsigned looks = FENCES_POLLED_MAX, closed = 0;
    bool round_over = false;

    while (!list_is_empty(queues) && !round_over && looks-- > 0 && closed < FENCES_COLLECTED_MAX) {
        struct list *link = queues->next;
        struct fence_queue *queue = (void *)((char *)link - link_offset);
        round_over = link == last;
        closed += collect_queue(queue, FENCES_COLLECTED_MAX - closed);
        if (list_is_empty(&queue->leases))
            continue;
        list_remove(link);
        list_append(queues, link);
    }
    return closed > 0;
}

bool collect_heap(struct tenant_heap *heap) {
    return collect_in_turns(&heap->fenced, offsetof(struct fence_queue, heap_link));
}

static bool collect_session(struct session *session) {
    return collect_in_turns(&session->fenced, offsetof(struct fence_queue, session_link));
}

void collect_pool(struct pool *pool, uint64_t now_ns) {
    if (!pool_waits_for_fences(pool))
        return;
    pool->waiters.poll_fences_ns = clock_deadline_ns(now_ns, FENCE_INTERVAL_NS);
    list_for_each_entry(struct tenant_heap, heap, &pool->heaps, pool_link) {
        collect_heap(heap);
    }
}

bool tenant_may_have(struct tenant *tenant, uint64_t leases, uint64_t ranges) {
    for (unsigned looks = 0; looks < 2; looks++) {
        if (quota_left(&tenant->quota, QUOTA_LEASES) >= leases &&
            quota_left(&tenant->quota, QUOTA_RANGES) >= ranges)
            return true;
        list_for_each_entry(struct tenant_heap, heap, &tenant->heaps, tenant_link) {
            collect_heap(heap);
        }
    }
    tenant_note_refusal(tenant);
    return false;
}

bool session_has_room(struct session *session, uint64_t count) {
    uint64_t limit = session->core->session_leases_limit;
    return session->n_leases + count <= limit ||
           (collect_session(session) && session->n_leases + count <= limit);
}

bool session_may_lease(struct session *session, uint64_t count) {
    return session_has_room(session, count) && tenant_may_have(session->tenant, count, count);
}
