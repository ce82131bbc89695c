/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/pool.h"

#include <assert.h>
#include <errno.h>

#include "daemon/core/account.h"
#include "daemon/core/kept.h"
#include "daemon/core/recorder.h"
#include "daemon/core/segment.h"
#include "daemon/core/tenant.h"

bool pool_segment_suits(const struct segment *segment, const struct request *request) {
    if (request == NULL || request->n_segments == 0 || segment->size_bytes != request->segment_bytes)
        return false;
    return segment->is_empty &&
           (segment->owner == NULL || segment->owner->tenant == request->session->tenant);
}

struct pool_suiting pool_suiting(const struct request *request) {
    const struct tenant_heap *heap = tenant_heap_find(request->session->tenant, request->pool);
    const struct shelf *own = heap != NULL ? shelf_find(&heap->shelves, request->segment_bytes) : NULL;
    const struct shelf *unassigned = shelf_find(&request->pool->shelves, request->segment_bytes);
    struct pool_suiting suiting = {0};

    if (own != NULL)
        suiting = (struct pool_suiting){.n_own = own->n_empty, .n_idle = own->n_idle};
    if (unassigned != NULL) {
        suiting.n_unassigned = unassigned->n_empty;
        suiting.n_idle += unassigned->n_idle;
    }
    return suiting;
}

uint64_t pool_lacking_bytes(const struct request *request) {
    if (request->n_segments == 0)
        return segment_bytes_for(request->least_bytes);
    struct pool_suiting suiting = pool_suiting(request);
    uint64_t n = (uint64_t)suiting.n_own + suiting.n_unassigned;
    return n < request->n_segments ? (request->n_segments - n) * request->segment_bytes : 0;
}

unsigned pool_descriptors(const struct pool *pool) {
    return pool->takes_descriptors ? pool->n_segments + pool->n_retiring + (pool->growth.bytes > 0) : 0;
}

unsigned pools_descriptors(const struct core *core) {
    unsigned descriptors = 0;
    for (unsigned i = 0; i < core->n_pools; i++)
        descriptors += pool_descriptors(core->pools[i]);
    return descriptors;
}

bool pool_has_descriptor(const struct pool *pool) {
    const struct core *core = pool->core;
    uint64_t n_pools = 0, taken = 0;

    if (!pool->takes_descriptors)
        return true;
    for (unsigned i = 0; i < core->n_pools; i++)
        n_pools += core->pools[i]->takes_descriptors;
    uint64_t share = core->segments_limit / 2 / n_pools;
    for (unsigned i = 0; i < core->n_pools; i++) {
        unsigned descriptors = pool_descriptors(core->pools[i]);
        bool is_kept = core->pools[i] != pool && core->pools[i]->takes_descriptors && descriptors < share;
        taken += is_kept ? share : descriptors;
    }
    return taken < core->segments_limit;
}

void pool_mark_descriptors(struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++)
        if (core->pools[i]->takes_descriptors && core->pools[i]->waiters.count > 0)
            pool_mark_ready(core->pools[i]);
}

void pool_mark_held(const struct tenant *tenant) {
    for (unsigned i = 0; i < tenant->core->n_pools; i++) {
        struct pool *pool = tenant->core->pools[i];
        list_for_each_entry(const struct tenant_heap, heap, &pool->waiters.pressed, pressed_link) {
            if (account_is_shared(heap->tenant, tenant))
                pool_mark_ready(pool);
        }
    }
}

void pool_note_peaks(struct pool *pool) {
    note_peak(&pool->stats.leased_peak_bytes, pool->leased_bytes);
    note_peak(&pool->stats.reserved_peak_bytes, pool->reserved_bytes);
    note_peak(&pool->stats.quarantined_peak_bytes, pool->quarantined_bytes);
    recorder_note_peaks(pool);
}

uint64_t pool_free_bytes(const struct pool *pool) {
    return pool->reserved_bytes - pool->leased_bytes - pool->fenced_bytes - pool->quarantined_bytes -
           pool->closing_bytes - pool->retiring_bytes;
}

uint64_t pool_largest_unassigned_bytes(const struct pool *pool) {
    const struct tree_node *node = tree_last(&pool->stocked);
    return node == NULL ? 0 : node->key;
}

uint64_t pool_largest_free_bytes(const struct pool *pool) {
    uint64_t largest = pool_largest_unassigned_bytes(pool);
    list_for_each_entry(const struct tenant_heap, heap, &pool->heaps, pool_link) {
        uint64_t bytes = heap_largest_free(&heap->heap);
        if (bytes > largest)
            largest = bytes;
    }
    return largest;
}

uint64_t pool_room_bytes(const struct pool *pool) {
    return pool->limit_bytes > pool->reserved_bytes ? pool->limit_bytes - pool->reserved_bytes : 0;
}

uint64_t pool_step_bytes(const struct pool *pool) {
    if (pool->step_bytes != POOL_STEP_BY_SIZE)
        return pool->step_bytes;
    uint64_t bytes = pool->reserved_bytes / POOL_STEP_SHARE / SEGMENT_GRANULE * SEGMENT_GRANULE;
    return bytes < POOL_STEP_MIN ? POOL_STEP_MIN : bytes > POOL_STEP_MAX ? POOL_STEP_MAX : bytes;
}

void pool_mark_ready(struct pool *pool) {
    pool->changes++;
    pool->is_plan_due = true;
    pool_wake(pool);
}

void pool_wake(struct pool *pool) {
    if (!pool_is_ready(pool))
        list_append(&pool->core->ready, &pool->ready_link);
}

bool pool_is_ready(const struct pool *pool) {
    return !list_is_empty(&pool->ready_link);
}

bool pool_waits_for_fences(const struct pool *pool) {
    return pool->fenced_bytes > 0 && pool->waiters.count > 0;
}

/* The smallest segment without a tenant that may serve a request. */
static struct segment *pool_find_unassigned(struct pool *pool, uint64_t size_bytes) {
    struct tree_node *node = tree_at_least(&pool->stocked, size_bytes);
    return node == NULL ? NULL
                        : list_first(&container_of(node, struct shelf, stocked_node)->empty, struct segment,
                                     shelf_link);
}

/* Takes the lower part of a segment of which nothing is taken. Returns 0 or -ENOMEM. */
static int segment_take(struct segment *segment, uint64_t size_bytes, struct heap_range **ret_range) {
    uint64_t taken_bytes = heap_round_up(size_bytes);
    struct heap_range *range = segment->span->lowest, *rest;

    heap_claim(range);
    if (range->size > taken_bytes) {
        int r = heap_split(range, taken_bytes, &rest);
        if (r < 0) {
            heap_give(range);
            return r;
        }
        heap_give(rest);
    }
    segment_settle(segment);
    *ret_range = range;
    return 0;
}

void pool_give(struct heap_range *range) {
    struct segment *segment = range->span->user;
    heap_give(range);
    segment_settle(segment);
}

int pool_take_unassigned(struct pool *pool, struct tenant *tenant, uint64_t size_bytes,
                         struct heap_range **ret_range) {
    struct segment *segment = pool_find_unassigned(pool, size_bytes);
    if (segment == NULL)
        return -ENOSPC;
    int r = tenant_adopt(tenant, segment);
    return r < 0 ? r : segment_take(segment, size_bytes, ret_range);
}

int pool_take(struct pool *pool, struct tenant *tenant, uint64_t size_bytes, struct heap_range **ret_range) {
    struct tenant_heap *heap = tenant_heap_find(tenant, pool);
    int r = heap == NULL ? -ENOSPC : heap_take(&heap->heap, size_bytes, HEAP_GRANULE, ret_range);

    if (r == 0)
        segment_settle((*ret_range)->span->user);
    return r == -ENOSPC ? pool_take_unassigned(pool, tenant, size_bytes, ret_range) : r;
}

uint64_t pool_segment_max(const struct pool *pool) {
    return pool->kind == PROTO_POOL_HOST && pool->limit_bytes > HOST_SEGMENT_MAX ? HOST_SEGMENT_MAX
                                                                                 : pool->limit_bytes;
}

uint64_t pool_idle_bytes(const struct pool *pool, const struct request *request) {
    if (request == NULL || request->n_segments == 0)
        return pool->idle_bytes;
    return pool->idle_bytes - pool_suiting(request).n_idle * request->segment_bytes;
}

void pool_retire(struct segment *segment) {
    struct pool *pool = segment->pool;

    assert(segment->state == SEGMENT_UNASSIGNED && segment->mappers == 0);
    segment->state = SEGMENT_RETIRING;
    kept_change(pool->core, segment->record);
    segment_settle(segment);
    pool->unassigned_bytes -= segment->size_bytes;
    list_remove(&segment->link);
    list_append(&pool->core->retiring, &segment->link);
    pool->n_segments--;
    pool->n_retiring++;
    pool->stats.n_retires++;
    pool->retiring_bytes += segment->size_bytes;
    record(pool->core, &(struct recorded){.kind = PROTO_RECORD_RETIRE,
                                          .pool = pool,
                                          .bytes = segment->size_bytes,
                                          .value = segment->id});
}

/* Whether the idle segment does not suit the request, and is not needed for the bytes that are kept. */
static bool may_retire(const struct segment *segment, uint64_t keep_bytes, const struct request *request) {
    const struct pool *pool = segment->pool;
    return !pool_segment_suits(segment, request) &&
           pool->reserved_bytes - pool->closing_bytes - pool->retiring_bytes >=
               keep_bytes + segment->size_bytes;
}

void pool_retire_one(struct segment *segment) {
    if (segment->state == SEGMENT_ASSIGNED) {
        pool_mark_held(segment->owner->tenant);
        tenant_disown(segment);
    }
    pool_retire(segment);
}

struct segment *pool_find_idle(const struct pool *pool, uint64_t keep_bytes, const struct request *request) {
    list_for_each_entry(struct segment, segment, &pool->idle, idle_link) {
        if (may_retire(segment, keep_bytes, request))
            return segment;
    }
    return NULL;
}

/* An idle segment of the heap. NULL: there is none. Idle ones come first on their shelf. */
static struct segment *find_idle_of(const struct tenant_heap *heap) {
    for (const struct shelf *shelf = shelf_first_at_least(&heap->shelves, 0); shelf != NULL;
         shelf = shelf_next(shelf))
        if (shelf->n_idle > 0)
            return list_first(&shelf->empty, struct segment, shelf_link);
    return NULL;
}

bool pool_retire_idle_of(struct tenant *tenant) {
    for (unsigned i = 0; i < tenant->core->n_pools; i++) {
        struct pool *pool = tenant->core->pools[i];
        if (!pool->takes_descriptors || pool_is_closed(pool))
            continue;
        list_for_each_entry(const struct tenant_heap, heap, &pool->heaps, pool_link) {
            struct segment *segment =
                account_is_shared(heap->tenant, tenant) ? find_idle_of(heap) : NULL;
            if (segment == NULL)
                continue;
            pool_retire_one(segment);
            return true;
        }
    }
    return false;
}

void pool_retire_all_of(struct tenant *tenant) {
    list_for_each_entry(const struct tenant_heap, heap, &tenant->heaps, tenant_link) {
        struct segment *segment;
        while ((segment = find_idle_of(heap)) != NULL)
            if (pool_is_closed(heap->pool)) /* its driver frees nothing, and it lends nothing */
                tenant_disown(segment);
            else
                pool_retire_one(segment);
    }
}

uint64_t pool_retire_idle(struct pool *pool, uint64_t bytes, uint64_t keep_bytes,
                          const struct request *request) {
    uint64_t retired = 0;
    list_for_each_entry_safe(struct segment, segment, &pool->idle, idle_link) {
        if (retired >= bytes)
            break;
        if (!may_retire(segment, keep_bytes, request))
            continue;
        pool_retire_one(segment);
        retired += segment->size_bytes;
    }
    return retired;
}

bool pool_is_closed(const struct pool *pool) {
    return pool->state == POOL_FAILED || pool->state == POOL_LOST;
}
