/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/pool/closing.h"

#include <assert.h>

#include "daemon/pool/core.h"
#include "daemon/pool/fence.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/segment.h"
#include "daemon/pool/session.h"
#include "daemon/pool/tenant.h"

/* What nobody but the session has mapped, of which nothing is taken, and which the pool need not keep. */
static bool is_closable(const struct session *session, const struct segment *segment, uint64_t keep_bytes) {
    const struct pool *pool = segment->pool;
    return segment->state == SEGMENT_ASSIGNED && segment->span->taken_bytes == 0 && segment->mappers == 1 &&
           session_has_seen(session, segment) &&
           pool->reserved_bytes - pool->closing_bytes - pool->retiring_bytes >=
               keep_bytes + segment->size_bytes;
}

/* The smallest that is large enough, else the largest. */
static struct segment *choose(const struct session *session, const struct pool *pool, uint64_t keep_bytes,
                              uint64_t wanted_bytes) {
    struct segment *best = NULL;
    list_for_each(position, &pool->segments) {
        struct segment *segment = container_of(position, struct segment, link);
        if (!is_closable(session, segment, keep_bytes))
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

/* Names segments of so many bytes, or as many as there are and fit a message. Returns how many bytes. */
static uint64_t name(struct session *session, struct pool *pool, uint64_t keep_bytes, uint64_t wanted_bytes,
                     struct proto_segments *segments) {
    struct segment *segment;
    uint64_t bytes = 0;

    while (segments->count < PROTO_CLOSE_MAX && bytes < wanted_bytes &&
           (segment = choose(session, pool, keep_bytes, wanted_bytes - bytes)) != NULL) {
        begin(session, segment);
        bytes += segment->size_bytes;
        segments->ids[segments->count++] = segment->id;
    }
    return bytes;
}

/* Whether the pool can grow so much when the session has closed what it was told to. */
static bool may_grow(const struct session *session, const struct pool *pool, uint64_t size_bytes) {
    uint64_t comes = pool->retiring_bytes + session->closing_bytes[pool->id - 1];
    return pool->state == POOL_READY && pool->grow_retry_ns == 0 &&
           segment_bytes_for(size_bytes) + pool->reserved_bytes <= pool->limit_bytes + comes;
}

void closing_choose(struct session *session, struct pool *pool, uint64_t size_bytes,
                    struct proto_segments *ret_segments) {
    uint64_t *named_bytes = &session->named_bytes[pool->id - 1];
    uint64_t wanted_bytes = pool_growth_bytes(pool, size_bytes), chosen_bytes = *named_bytes;

    *named_bytes = 0;
    if (pool->kind != PROTO_POOL_DEVICE || pool->growing_bytes >= size_bytes ||
        pool_has_free(pool, session->tenant, size_bytes))
        return;
    if (chosen_bytes < wanted_bytes) { /* what nobody has mapped needs nobody to close it */
        uint64_t retired_bytes = pool_retire_kept(pool, wanted_bytes - chosen_bytes);
        session->vacated_bytes[pool->id - 1] += retired_bytes;
        chosen_bytes += retired_bytes;
    }
    if (chosen_bytes < wanted_bytes)
        chosen_bytes += name(session, pool, pool->reserve_bytes, wanted_bytes - chosen_bytes, ret_segments);
    if (ret_segments->count == PROTO_CLOSE_MAX)
        *named_bytes = chosen_bytes;
    ret_segments->may_grow = may_grow(session, pool, size_bytes);
}

void closing_choose_for_others(struct session *session, struct pool *pool,
                               struct proto_segments *ret_segments) {
    if (pool->state == POOL_READY)
        (void)name(session, pool, 0, pool_missing_bytes(pool), ret_segments);
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
