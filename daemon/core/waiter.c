/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/waiter.h"

#include <assert.h>
#include <stdbool.h>

#include "daemon/core/wait_queue.h"
#include "daemon/core/pool.h"
#include "daemon/core/request.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"

static bool may_grow_by(const struct pool *pool, uint64_t bytes) {
    uint64_t stays = pool->reserved_bytes - pool->retiring_bytes;
    return pool->state == POOL_STARTING || (pool->limit_bytes > stays && pool->limit_bytes - stays >= bytes);
}

/* Whether another user's segments have a free range of the size. */
static bool others_have(const struct pool *pool, const struct tenant *tenant, uint64_t bytes) {
    list_for_each(position, &pool->heaps) {
        struct tenant_heap *heap = container_of(position, struct tenant_heap, pool_link);
        if (heap->tenant != tenant && heap_has(&heap->heap, bytes))
            return true;
    }
    return false;
}

enum waiter_reason waiter_reason(const struct request *request) {
    assert(request->state == REQUEST_WAITING);
    if (request->queue == WAIT_QUEUE_QUOTA)
        return WAITER_QUOTA;
    if (request->no_reclaim || may_grow_by(request->pool, segment_bytes_for(request->least_bytes)))
        return WAITER_GROWTH;
    return others_have(request->pool, request->session->tenant, request->least_bytes) ? WAITER_OTHER_USERS
                                                                                      : WAITER_ROOM;
}

const char *waiter_reason_name(enum waiter_reason reason) {
    static const char *const names[] = {"quota", "growth", "other-users", "room"};
    return names[reason];
}
