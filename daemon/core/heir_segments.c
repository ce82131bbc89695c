/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/heir.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/core/closing.h"
#include "daemon/core/pool.h"
#include "daemon/core/segment.h"
#include "daemon/core/tenant.h"

/* A pool's bytes: sums of all pools stay within 64 bits. */
#define POOL_BYTES_MAX HEAP_SPAN_MAX

/* Makes a segment without an owner, as far as the core alone knows it. */
static int make_segment(struct heir *heir, const struct kept_segment *kept, struct segment **ret_segment) {
    struct core *core = heir->core;
    struct pool *pool = heir_pool(heir, kept->pool);
    int r = 0;

    if (pool == NULL)
        return heir_refuse(heir, "a segment is of a pool that is not there");
    if (kept->size_bytes == 0 || kept->size_bytes % SEGMENT_GRANULE != 0 ||
        kept->size_bytes > POOL_BYTES_MAX - pool->reserved_bytes)
        return heir_refuse(heir, "a segment has no size");
    if (kept->id == 0 || kept->id > core->next_segment_id || segment_find(core, kept->id) != NULL)
        return heir_refuse(heir, "a segment has no name of its own");
    if (kept->slot >= heir->slots_max ||
        (kept->slot < core->segment_slots && core->segments[kept->slot] != NULL))
        return heir_refuse(heir, "a segment has no slot of its own");
    _cleanup_(freep) struct segment *segment = calloc(1, sizeof *segment);
    if (segment == NULL)
        return -ENOMEM;
    segment->pool = pool;
    segment->id = kept->id;
    segment->size_bytes = kept->size_bytes;
    segment->label = kept->label;
    while (r == 0 && kept->slot >= core->segment_slots)
        r = segment_grow_slots(core);
    if (r == 0)
        r = segment_join(segment);
    if (r < 0)
        return r;
    segment_restore_slot(segment, kept->slot);
    pool->n_segments++;
    pool->reserved_bytes += segment->size_bytes;
    pool->unassigned_bytes += segment->size_bytes;
    *ret_segment = take_ptr(&segment);
    return 0;
}

/* Nothing more is lent of it: see segment.h. */
static int make_orphan(struct segment *segment) {
    segment->is_orphan = true;
    segment->pool->n_orphans++;
    segment->pool->orphan_bytes += segment->size_bytes;
    if (segment->span != NULL)
        heap_close_span(segment->span);
    return 0;
}

int heir_add_segment(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_segment *kept = payload;
    bool is_owned = kept->state == SEGMENT_ASSIGNED || kept->state == SEGMENT_CLOSING;
    struct segment *segment;
    struct tenant *tenant;

    if (!is_owned && kept->state != SEGMENT_UNASSIGNED && kept->state != SEGMENT_RETIRING)
        return heir_refuse(heir, "a segment is in no state");
    int r = make_segment(heir, kept, &segment);
    if (r < 0)
        return r;
    heir_bind(heir, record, segment, &segment->record);
    if (is_owned) { /* one that is CLOSING is so once its mappers are known */
        r = heir_tenant(heir, &kept->owner, &tenant);
        if (r == 0)
            r = tenant_adopt(tenant, segment);
    }
    if (r == 0)
        r = heir->shell->take_segment(heir->shell->argument, segment);
    if (r == -ENOENT)
        r = make_orphan(segment);
    if (r == 0 && (kept->state == SEGMENT_RETIRING || (segment->is_orphan && !is_owned)))
        pool_retire(segment);
    return r;
}

int heir_close_segment(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_segment *kept = payload;
    struct segment *segment = heir_object(heir, record, KEPT_SEGMENT);
    struct tenant *keeper = NULL;

    if (kept->state != SEGMENT_CLOSING)
        return 0;
    if (segment->mappers == 0 || segment->span->taken_bytes > 0)
        return heir_refuse(heir, "a segment is closed that no session has mapped");
    if (kept->has_keeper && !segment->is_orphan)
        keeper = segment->owner->tenant;
    if (keeper != NULL && !tenant_id_is(keeper->id, heir_tenant_id(&kept->keeper)))
        return heir_refuse(heir, "a segment is kept for another user");
    closing_restore(segment, keeper);
    return 0;
}
