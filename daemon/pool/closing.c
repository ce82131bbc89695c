/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/pool/closing.h"

#include <assert.h>

#include "daemon/pool/core.h"
#include "daemon/pool/fence.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/segment.h"
#include "daemon/pool/session.h"
#include "daemon/pool/tenant.h"

/* What nobody but the session has mapped, of which nothing is taken, and which the reserve can do without. */
static bool is_closable(const struct session *session, const struct segment *segment) {
    const struct pool *pool = segment->pool;
    return segment->state == SEGMENT_ASSIGNED && segment->span->taken_bytes == 0 && segment->mappers == 1 &&
           session_has_seen(session, segment) &&
           pool->reserved_bytes - pool->closing_bytes - pool->retiring_bytes >=
               pool->reserve_bytes + segment->size_bytes;
}

/* The smallest that is large enough, else the largest. */
static struct segment *choose(const struct session *session, const struct pool *pool, uint64_t wanted_bytes) {
    struct segment *best = NULL;
    list_for_each(position, &pool->segments) {
        struct segment *segment = container_of(position, struct segment, link);
        if (!is_closable(session, segment))
            continue;
        bool is_enough = segment->size_bytes >= wanted_bytes;
        if (best == NULL ||
            (best->size_bytes >= wanted_bytes ? is_enough && segment->size_bytes < best->size_bytes
                                              : segment->size_bytes > best->size_bytes))
            best = segment;
    }
    return best;
}

static void begin(struct session *session, struct segment *segment) {
    struct pool *pool = segment->pool;
    tenant_disown(segment);
    charge_force(&segment->charge, &session->tenant->quota, quota_item_of_pool(pool), segment->size_bytes);
    session->closing_bytes[pool->id - 1] += segment->size_bytes;
    segment->state = SEGMENT_CLOSING;
    pool->unassigned_bytes -= segment->size_bytes;
    pool->closing_bytes += segment->size_bytes;
}

void closing_choose(struct session *session, struct pool *pool, uint64_t size_bytes,
                    struct proto_segments *ret_segments) {
    struct tenant_heap *heap = tenant_heap_find(session->tenant, pool);
    uint64_t wanted_bytes = pool_growth_bytes(pool, size_bytes), chosen_bytes = 0;
    struct segment *segment;

    *ret_segments = (struct proto_segments){0};
    if (pool->kind != PROTO_POOL_DEVICE || heap == NULL)
        return;
    fences_collect_heap(heap);
    if (pool->growing_bytes >= size_bytes || pool_has_free(pool, session->tenant, size_bytes))
        return;
    ret_segments->may_grow = pool->state == POOL_READY && pool_can_grow_for(pool, size_bytes);
    chosen_bytes = pool_retire_kept(pool, wanted_bytes); /* what nobody has mapped needs nobody to close it */
    session->vacated_bytes[pool->id - 1] += chosen_bytes;
    while (ret_segments->count < PROTO_CLOSE_MAX && chosen_bytes < wanted_bytes &&
           (segment = choose(session, pool, wanted_bytes - chosen_bytes)) != NULL) {
        begin(session, segment);
        chosen_bytes += segment->size_bytes;
        ret_segments->ids[ret_segments->count++] = segment->id;
    }
}

struct pool *closing_finish(struct session *session, uint64_t segment_id) {
    struct core *core = session->core;
    for (size_t slot = 0; slot < core->segment_slots; slot++) {
        struct segment *segment = core->segments[slot];
        if (segment == NULL || segment->id != segment_id || segment->state != SEGMENT_CLOSING ||
            !session_has_seen(session, segment))
            continue;
        session->vacated_bytes[segment->pool->id - 1] += segment->size_bytes;
        session_forget_segment(session, segment);
        return segment->pool;
    }
    return NULL;
}

void closing_end(struct segment *segment) {
    struct pool *pool = segment->pool;
    assert(segment->state == SEGMENT_CLOSING && segment->mappers == 0);
    segment->state = SEGMENT_UNASSIGNED;
    pool->closing_bytes -= segment->size_bytes;
    charge_free(&segment->charge);
    pool->unassigned_bytes += segment->size_bytes;
    pool_retire(segment);
}
