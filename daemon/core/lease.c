/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/lease.h"

#include <assert.h>
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/core/fence.h"
#include "daemon/core/kept.h"
#include "daemon/core/pool.h"
#include "daemon/core/recorder.h"
#include "daemon/core/row.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "heap/heap.h"

/* Tokens are random, so glibc's balanced tree needs no secret of its own to stay balanced. */
static int block_compare_tokens(const void *a, const void *b) {
    const struct block *left = a, *right = b;
    return memcmp(left->token.bytes, right->token.bytes, sizeof left->token.bytes);
}

void lease_table_deinit(struct lease_table *table) {
    assert(table->used == 0);
    free(table->slots);
    free(table->free_slots);
    memset(table, 0, sizeof *table);
}

static int lease_table_grow(struct lease_table *table) {
    uint32_t capacity = table->capacity == 0 ? 64 : table->capacity * 2;
    if (capacity < table->capacity)
        return -ENOMEM;
    struct lease **slots = realloc(table->slots, capacity * sizeof *slots);
    if (slots == NULL)
        return -ENOMEM;
    table->slots = slots;
    uint32_t *free_slots = realloc(table->free_slots, capacity * sizeof *free_slots);
    if (free_slots == NULL)
        return -ENOMEM;
    table->free_slots = free_slots;
    for (uint32_t slot = table->capacity; slot < capacity; slot++)
        slots[slot] = NULL;
    /* the lowest slot on top, so that ids stay small */
    uint32_t n_free = table->capacity - table->used, more = capacity - table->capacity;
    memmove(&free_slots[more], free_slots, n_free * sizeof *free_slots);
    for (uint32_t i = 0; i < more; i++)
        free_slots[i] = capacity - 1 - i;
    table->capacity = capacity;
    return 0;
}

static int lease_table_reserve(struct lease_table *table) {
    return table->used < table->capacity ? 0 : lease_table_grow(table);
}

void lease_table_restored(struct lease_table *table) {
    uint32_t n_free = 0;

    for (uint32_t slot = table->capacity; slot-- > 0;) /* the lowest one on top */
        if (table->slots[slot] == NULL)
            table->free_slots[n_free++] = slot;
    assert(n_free == table->capacity - table->used);
}

static void lease_table_insert(struct lease_table *table, struct lease *lease) {
    uint32_t slot = table->free_slots[table->capacity - table->used - 1];
    table->used++;
    table->slots[slot] = lease;
    lease->id = (uint64_t)slot + 1;
    lease->generation = ++table->next_generation;
}

static void lease_table_remove(struct lease_table *table, struct lease *lease) {
    uint32_t slot = (uint32_t)(lease->id - 1);
    table->slots[slot] = NULL;
    table->used--;
    table->free_slots[table->capacity - table->used - 1] = slot;
}

/* Adds to the pool's sums for blocks in this state, if the block has leases or parcels. bytes may be
 * "negative". */
static void block_charge(struct block *block, uint64_t bytes) {
    struct pool *pool = block->segment->pool;
    if (block->live == 0 && block->n_parcels > 0)
        pool->parcel_bytes += bytes;
    if (block->live == 0 && block->n_named > 0)
        pool->named_bytes += bytes;
    if (block->live > 0 || block->n_parcels > 0)
        pool->leased_bytes += bytes;
    else if (block->quarantined > 0)
        pool->quarantined_bytes += bytes;
    else if (block->fenced > 0)
        pool->fenced_bytes += bytes;
}

/* Changes the numbers of a block's leases by state; the pool's sums follow. */
static void block_count(struct block *block, int live, int fenced, int quarantined) {
    block_charge(block, -block->held_bytes);
    block->live += (unsigned)live;
    block->fenced += (unsigned)fenced;
    block->quarantined += (unsigned)quarantined;
    block_charge(block, block->held_bytes);
    if (block->live == 0 && block->quarantined > 0)
        pool_note_peaks(block->segment->pool);
}

/* The session holds more of the block; bytes may be "negative". The pool counts the sessions that it can ask
 * for memory. */
static void session_hold(struct session *session, const struct block *block, uint64_t bytes) {
    struct pool *pool = block->segment->pool;
    bool was_askable = session_can_be_asked(session, pool);
    session->leased_bytes += bytes;
    session->pools[pool->id - 1].shared_bytes += block->shared ? bytes : 0;
    session->pools[pool->id - 1].leased_bytes += bytes;
    session->tenant->sessions_bytes[pool->id - 1] += bytes;
    pool->sessions_bytes += bytes;
    session_count_askable(session, pool, was_askable);
}

/* The session has more behind fences; bytes may be "negative". */
static void session_count_fenced(struct session *session, const struct block *block, uint64_t bytes) {
    session->fenced_bytes += bytes;
    session->pools[block->segment->pool->id - 1].fenced_bytes += bytes;
}

/* Gives a list of ranges back to their heap, for waiting requests. */
static void ranges_give(struct list *ranges) {
    list_for_each_entry_safe(struct heap_range, range, ranges, user_link) {
        struct segment *segment = range->span->user;
        list_remove(&range->user_link);
        kept_end(segment->pool->core, &range->record);
        heap_give(range);
        segment_settle(segment);
        pool_wake(segment->pool);
        if (segment->pool->takes_descriptors && segment->is_idle)
            pool_mark_descriptors(segment->pool->core);
    }
}

static void block_free(struct core *core, struct block *block) {
    assert(block->live + block->fenced + block->quarantined + block->n_parcels == 0 &&
           list_is_empty(&block->leases));
    if (block->shared)
        tdelete(block, &core->tokens, block_compare_tokens);
    ranges_give(&block->ranges);
    charge_free(&block->ranges_charge);
    charge_free(&block->charge);
    kept_end(core, &block->record);
    free(block);
}

void block_discard(struct core *core, struct block *block) {
    block_free(core, block);
}

static void block_free_if_unused(struct core *core, struct block *block) {
    if (list_is_empty(&block->leases) && block->n_parcels == 0)
        block_free(core, block);
}

void block_hold(struct parcel *parcel) {
    struct block *block = parcel->block;
    struct pool *pool = block->segment->pool;

    assert(block->shared);
    block_charge(block, -block->held_bytes);
    block->n_parcels++;
    pool->n_parcels++;
    if (parcel_is_held(parcel)) {
        block->n_named++;
        pool->n_named++;
        list_append(&block->named, &parcel->named_link);
    }
    block_charge(block, block->held_bytes);
}

void block_drop(struct parcel *parcel) {
    struct block *block = parcel->block;
    struct pool *pool = block->segment->pool;

    block_charge(block, -block->held_bytes);
    block->n_parcels--;
    pool->n_parcels--;
    if (parcel_is_held(parcel)) {
        block->n_named--;
        pool->n_named--;
        list_remove(&parcel->named_link);
    }
    block_charge(block, block->held_bytes);
    if (block->live == 0 && block->quarantined > 0)
        pool_note_peaks(block->segment->pool);
    block_free_if_unused(block->segment->pool->core, block);
}

/* The session has a lease on the block. */
static void lease_enter(struct lease *lease, struct session *session, struct block *block) {
    lease->block = block;
    lease->session = session;
    charge_force(&lease->charge, &session->tenant->quota, QUOTA_LEASES, 1);
    list_init(&lease->fence_link);
    list_append(&session->leases, &lease->session_link);
    list_append(&block->leases, &lease->block_link);
    block_count(block, +1, 0, 0);
    session->n_leases++;
    session->n_ranges += block->n_ranges;
    session_hold(session, block, block->held_bytes);
    block->segment->pool->n_leases++;
    block->segment->pool->stats.n_acquires++; /* attached ones too, so that it goes with n_releases */
}

int lease_join(struct session *session, struct block *block, struct lease **ret_lease) {
    struct core *core = session->core;
    int r = lease_table_reserve(&core->leases);
    if (r < 0)
        return r;
    struct lease *lease = calloc(1, sizeof *lease);
    if (lease == NULL || kept_add(core, KEPT_LEASE, lease, &lease->record) < 0) {
        free(lease);
        return -ENOMEM;
    }
    lease->taken_ns = core->recorder.now_ns;
    lease_table_insert(&core->leases, lease);
    kept_number(core);
    lease_enter(lease, session, block);
    *ret_lease = lease;
    return 0;
}

int lease_restore(struct session *session, struct block *block, const struct lease *wanted,
                  struct lease **ret_lease) {
    struct core *core = session->core;
    struct lease_table *table = &core->leases;
    int r = 0;

    while (r == 0 && wanted->id > table->capacity)
        r = lease_table_grow(table);
    if (r < 0)
        return r;
    if (wanted->id == 0 || table->slots[wanted->id - 1] != NULL)
        return -EBADMSG;
    struct lease *lease = malloc(sizeof *lease);
    if (lease == NULL)
        return -ENOMEM;
    *lease = *wanted;
    table->slots[lease->id - 1] = lease;
    table->used++;
    lease_enter(lease, session, block);
    *ret_lease = lease;
    return 0;
}

void lease_restore_fence(struct lease *lease, struct fence_queue *queue) {
    struct block *block = lease->block;

    block_count(block, -1, +1, 0);
    session_hold(lease->session, block, -block->held_bytes);
    session_count_fenced(lease->session, block, block->held_bytes);
    fence_queue_add(queue, lease, lease->fence_value);
}

int block_restore(struct block *block, struct tenant *tenant, bool is_shared) {
    struct core *core = block->segment->pool->core;

    if (is_shared) {
        struct block **found = tsearch(block, &core->tokens, block_compare_tokens);
        if (found == NULL)
            return -ENOMEM;
        if (*found != block)
            return -EBADMSG;
        block->shared = true;
    }
    list_for_each_entry(const struct heap_range, range, &block->ranges, user_link) {
        block->held_bytes += range->size;
        block->n_ranges++;
    }
    charge_force(&block->charge, &tenant->quota, quota_item_of_pool(block->segment->pool->id),
                 block->held_bytes);
    charge_force(&block->ranges_charge, &tenant->quota, QUOTA_RANGES, block->n_ranges);
    return 0;
}

/* The session's block is in that many ranges more. */
static void block_add_ranges(struct session *session, struct block *block, unsigned ranges) {
    block->n_ranges += ranges;
    session->n_ranges += ranges;
    charge_force(&block->ranges_charge, &session->tenant->quota, QUOTA_RANGES, ranges);
}

/* The session's block is in that many ranges less. */
static void block_lose_ranges(struct session *session, struct block *block, unsigned ranges) {
    block->n_ranges -= ranges;
    session->n_ranges -= ranges;
    charge_reduce(&block->ranges_charge, ranges);
}

/* Makes a block without ranges and opens the session's lease on it; both are charged to the tenant. Returns 0
 * or -ENOMEM. */
static int lease_open_block(struct session *session, struct segment *segment, uint64_t offset_bytes,
                            uint64_t size_bytes, uint64_t capacity_bytes, struct lease **ret_lease) {
    _cleanup_(freep) struct block *block = calloc(1, sizeof *block);
    if (block == NULL)
        return -ENOMEM;
    block->segment = segment;
    block->offset_bytes = offset_bytes;
    block->size_bytes = size_bytes;
    block->capacity_bytes = block->held_bytes = capacity_bytes;
    list_init(&block->ranges);
    list_init(&block->leases);
    list_init(&block->named);
    int r = kept_add(session->core, KEPT_BLOCK, block, &block->record);
    if (r < 0)
        return r;
    r = lease_join(session, block, ret_lease);
    if (r < 0) {
        kept_end(session->core, &block->record);
        return r;
    }
    charge_force(&block->charge, &session->tenant->quota, quota_item_of_pool(segment->pool->id),
                 capacity_bytes);
    block = NULL; /* the lease has it */
    return 0;
}

int lease_open(struct session *session, struct heap_range *range, uint64_t size_bytes,
               struct lease **ret_lease) {
    int r = kept_add(session->core, KEPT_RANGE, range, &range->record);
    if (r < 0)
        return r;
    r = lease_open_block(session, range->span->user, range->offset, size_bytes, range->size, ret_lease);
    if (r < 0) {
        kept_end(session->core, &range->record);
        return r;
    }
    struct block *block = (*ret_lease)->block;
    range->user = block;
    list_append(&block->ranges, &range->user_link);
    block_add_ranges(session, block, 1);
    return 0;
}

void lease_close(struct lease *lease) {
    struct session *session = lease->session;
    struct core *core = session->core;
    struct block *block = lease->block;
    struct pool *pool = block->segment->pool;
    bool quarantined = session->state == SESSION_QUARANTINED, fenced = lease->fence != NULL;

    list_remove(&lease->session_link);
    list_remove(&lease->block_link);
    lease_table_remove(&core->leases, lease);
    block_count(block, quarantined || fenced ? 0 : -1, fenced ? -1 : 0, quarantined ? -1 : 0);
    session->n_leases--;
    session->n_ranges -= block->n_ranges;
    if (fenced) {
        fence_queue_remove(lease);
        session_count_fenced(session, block, -block->held_bytes);
    } else {
        session_hold(session, block, -block->held_bytes);
    }
    pool->n_leases--;
    pool->stats.n_releases++;
    charge_free(&lease->charge);
    kept_end(core, &lease->record);
    free(lease);
    block_free_if_unused(core, block);
}

/* Records what has become of the lease, or of a part of it. */
static void record_lease(const struct lease *lease, enum proto_record_kind kind, uint64_t bytes,
                         uint8_t flags) {
    record(lease->session->core, &(struct recorded){.kind = kind,
                                                    .flags = flags,
                                                    .pool = lease->block->segment->pool,
                                                    .session = lease->session,
                                                    .bytes = bytes,
                                                    .value = lease->id});
}

static uint64_t range_end(const struct heap_range *range) {
    return range->offset + range->size;
}

/* The next range of the block, or NULL. */
static struct heap_range *block_next(const struct block *block, const struct heap_range *range) {
    return range->user_link.next == &block->ranges
               ? NULL
               : container_of(range->user_link.next, struct heap_range, user_link);
}

/* The range of the block that has the offset of the segment, or NULL. */
static struct heap_range *block_find_range(const struct block *block, uint64_t offset) {
    list_for_each_entry(struct heap_range, range, &block->ranges, user_link) {
        if (range_end(range) > offset)
            return range->offset <= offset ? range : NULL;
    }
    return NULL;
}

/* The range in which an interval of the segment ends that begins in first, or NULL: not all of it is held. */
static struct heap_range *block_find_end(const struct block *block, struct heap_range *first, uint64_t end) {
    while (first != NULL && range_end(first) < end) {
        struct heap_range *next = block_next(block, first);
        first = next != NULL && next->offset == range_end(first) ? next : NULL;
    }
    return first;
}

/* Makes an offset inside a range of the session's block the border of two ranges. Returns 0 or -ENOMEM. */
static int range_divide(struct session *session, struct heap_range *range, uint64_t offset,
                        struct heap_range **ret_upper) {
    struct block *block = range->user;
    uint32_t record;
    int r = kept_add(session->core, KEPT_RANGE, NULL, &record);
    if (r < 0)
        return r;
    r = heap_split(range, offset - range->offset, ret_upper);
    if (r < 0) {
        kept_end(session->core, &record);
        return r;
    }
    (*ret_upper)->user = block;
    kept_give(session->core, record, *ret_upper, &(*ret_upper)->record);
    kept_change(session->core, range->record);
    list_insert_before(range->user_link.next, &(*ret_upper)->user_link);
    block_add_ranges(session, block, 1);
    return 0;
}

/* Whether the block has other leases, or may get some. */
static bool block_has_others(const struct block *block) {
    return block->shared || block->live + block->fenced + block->quarantined > 1;
}

int lease_find_part(struct lease *lease, uint64_t offset_bytes, uint64_t size_bytes,
                    struct lease_part *ret_part) {
    struct block *block = lease->block;

    if (block_has_others(block))
        return PROTO_E_SHARED;
    if (block->is_row || size_bytes == 0 || offset_bytes > block->capacity_bytes ||
        size_bytes > block->capacity_bytes - offset_bytes || offset_bytes % HEAP_GRANULE != 0 ||
        size_bytes % HEAP_GRANULE != 0)
        return PROTO_E_INVALID;
    uint64_t start = block->offset_bytes + offset_bytes, end = start + size_bytes;
    struct heap_range *first = block_find_range(block, start);
    struct heap_range *last = block_find_end(block, first, end);
    if (last == NULL)
        return PROTO_E_INVALID;
    *ret_part = (struct lease_part){.lease = lease, .first = first, .last = last, .start = start, .end = end};
    return 0;
}

bool lease_part_fits(const struct lease_part *part, bool becomes_lease, unsigned *ret_ranges) {
    const struct session *session = part->lease->session;
    unsigned borders = (part->first->offset < part->start) + (range_end(part->last) > part->end);
    uint64_t limit =
        BLOCK_RANGES_MAX + (uint64_t)SESSION_RANGES_PER_LEASE * session->core->session_leases_limit;

    /* At least one range goes with the part. */
    *ret_ranges = becomes_lease || borders == 0 ? borders : borders - 1;
    /* A client could make as many ranges as the block has granules. */
    return part->lease->block->n_ranges + borders <= BLOCK_RANGES_MAX + 1 &&
           (borders == 0 || session->n_ranges + borders <= limit);
}

/* Makes the ends of a part borders of ranges. Returns 0 or -ENOMEM. */
static int part_mark(struct lease_part *part) {
    struct session *session = part->lease->session;
    struct heap_range *upper;

    /* A border more between two taken ranges changes nothing, if the second fails. */
    int r = range_end(part->last) > part->end ? range_divide(session, part->last, part->end, &upper) : 0;
    if (r == 0 && part->first->offset < part->start) {
        r = range_divide(session, part->first, part->start, &upper);
        part->first = upper;
    }
    return r;
}

/* Ends a lease of which nothing but withheld parts is left. */
static void give_up_if_withheld(struct lease *lease) {
    uint64_t held_bytes = lease->block->held_bytes;

    if (lease->withheld_bytes > held_bytes) { /* a part was withheld, and was then given back once more */
        lease->withheld_bytes = held_bytes;
        kept_change(lease->session->core, lease->record);
    }
    if (lease->withheld_bytes == held_bytes)
        lease_give_up(lease, NULL, 0);
}

/* The range is another block's of the session, in whose list it is by now. */
static void range_move(const struct session *session, struct heap_range *range, struct block *block) {
    range->user = block;
    kept_change(session->core, range->record);
}

/* Moves the ranges of a marked part from the lease's block to a list, in order; the charge goes with them.
 * Ends the lease when nothing is left. Cannot fail. Returns how many they are. */
static unsigned part_cut(const struct lease_part *part, struct list *ranges) {
    struct lease *lease = part->lease;
    struct block *block = lease->block;
    uint64_t size_bytes = part->end - part->start;
    unsigned moved = 0;

    block_charge(block, -size_bytes);
    block->held_bytes -= size_bytes;
    charge_reduce(&block->charge, size_bytes);
    session_hold(lease->session, block, -size_bytes);
    for (struct heap_range *range = part->first, *next; range != NULL && range->offset < part->end;
         range = next) {
        next = block_next(block, range);
        list_remove(&range->user_link);
        list_append(ranges, &range->user_link);
        moved++;
    }
    block_lose_ranges(lease->session, block, moved);
    kept_change(lease->session->core, block->record);
    if (list_is_empty(&block->ranges)) {
        lease_close(lease);
        return moved;
    }
    const struct heap_range *last = container_of(block->ranges.previous, struct heap_range, user_link);
    block->capacity_bytes = range_end(last) - block->offset_bytes;
    if (block->size_bytes > block->capacity_bytes)
        block->size_bytes = block->capacity_bytes;
    give_up_if_withheld(lease);
    return moved;
}

int lease_release_part(struct lease_part *part) {
    struct list ranges;

    int r = part_mark(part);
    if (r != 0)
        return r;
    list_init(&ranges);
    record_lease(part->lease, PROTO_RECORD_RELEASE, part->end - part->start, PROTO_RECORD_SPLIT);
    part_cut(part, &ranges);
    ranges_give(&ranges);
    return 0;
}

/* Makes one range of a block's range and the next one, if they lie side by side. Returns whether they did. */
static bool range_join_next(struct session *session, struct heap_range *range) {
    struct heap_range *next = block_next(range->user, range);

    if (next == NULL || range_end(range) != next->offset)
        return false;
    list_remove(&next->user_link);
    kept_end(session->core, &next->record);
    kept_change(session->core, range->record);
    heap_join(range);
    block_lose_ranges(session, range->user, 1);
    return true;
}

/* Puts ranges of a block's segment into it, in order: from its end on, where most belong. */
static void block_take_ranges(struct session *session, struct block *block, struct list *ranges) {
    struct list *position = &block->ranges;

    while (!list_is_empty(ranges)) {
        struct heap_range *range = container_of(ranges->previous, struct heap_range, user_link);
        while (position->previous != &block->ranges &&
               container_of(position->previous, struct heap_range, user_link)->offset > range->offset)
            position = position->previous;
        list_remove(&range->user_link);
        list_insert_before(position, &range->user_link);
        range_move(session, range, block);
        block_add_ranges(session, block, 1);
        (void)range_join_next(session, range);
        position = &range->user_link;
        if (position->previous != &block->ranges) {
            struct list *previous = position->previous;
            if (range_join_next(session, container_of(previous, struct heap_range, user_link)))
                position = previous;
        }
    }
}

bool lease_join_fenced(struct lease_part *part, struct fence_queue *queue, uint64_t value) {
    struct session *session = part->lease->session;
    struct lease *last = list_last(&queue->leases, struct lease, fence_link);
    struct block *block = last != NULL ? last->block : NULL, *from = part->lease->block;
    uint64_t size_bytes = part->end - part->start;
    bool is_later = last != NULL && (int64_t)(value - last->fence_value) > 0;
    struct list ranges;

    if (last == NULL || block->is_row || block_has_others(block) || block->segment != from->segment ||
        block->n_ranges + from->n_ranges + LEASE_PART_RANGES_MAX > BLOCK_RANGES_MAX ||
        (is_later && queue->leases.next == queue->leases.previous) || part_mark(part) != 0)
        return false;
    list_init(&ranges);
    record_lease(part->lease, PROTO_RECORD_FENCE, size_bytes, PROTO_RECORD_SPLIT);
    part_cut(part, &ranges);
    block_take_ranges(session, block, &ranges);
    block->held_bytes += size_bytes;
    charge_force(&block->charge, &session->tenant->quota, quota_item_of_pool(block->segment->pool->id),
                 size_bytes);
    block_charge(block, size_bytes);
    session_count_fenced(session, block, size_bytes);
    const struct heap_range *lowest = container_of(block->ranges.next, struct heap_range, user_link),
                            *highest = container_of(block->ranges.previous, struct heap_range, user_link);
    block->offset_bytes = lowest->offset;
    block->size_bytes = block->capacity_bytes = range_end(highest) - lowest->offset;
    kept_change(session->core, block->record);
    if (is_later)
        last->fence_value = value;
    kept_change(session->core, last->record);
    return true;
}

int lease_withhold(const struct lease_part *part, struct fence_queue *queue, uint64_t value) {
    struct lease *lease = part->lease;
    uint64_t size_bytes = part->end - part->start;

    if (size_bytes > lease->block->held_bytes - lease->withheld_bytes)
        return PROTO_E_INVALID;
    lease->withheld_bytes += size_bytes;
    kept_change(lease->session->core, lease->record);
    if (queue != NULL) {
        lease->is_withheld_by_fences = true;
        fence_queue_withhold(queue, value);
    }
    give_up_if_withheld(lease);
    return 0;
}

int lease_begin_split(struct lease_part *part, struct lease **ret_lease) {
    uint64_t size_bytes = part->end - part->start;

    int r = part_mark(part);
    return r != 0 ? r
                  : lease_open_block(part->lease->session, part->lease->block->segment, part->start,
                                     size_bytes, size_bytes, ret_lease);
}

void lease_end_split(struct lease_part *part, struct lease *lease) {
    struct block *block = lease->block;

    block_add_ranges(lease->session, block, part_cut(part, &block->ranges));
    list_for_each_entry(struct heap_range, range, &block->ranges, user_link) {
        range_move(lease->session, range, block);
    }
}

int lease_split(struct lease_part *part, struct lease **ret_lease) {
    int r = lease_begin_split(part, ret_lease);
    if (r == 0)
        lease_end_split(part, *ret_lease);
    return r;
}

/* Makes one range of those that lie side by side, so that a block that grew by merging is walked as quickly
 * as another. */
static void block_join_ranges(struct session *session, struct block *block) {
    for (struct list *position = block->ranges.next; position != &block->ranges; position = position->next)
        while (range_join_next(session, container_of(position, struct heap_range, user_link)))
            ;
}

/* Moves the charge for all that another lease of the session holds to a block, and ends that lease. Its
 * ranges are in the block's list by now. */
static void block_take_over(struct block *block, struct lease *other) {
    struct block *from = other->block;
    struct session *session = other->session;
    uint64_t bytes = from->held_bytes;

    block_charge(from, -bytes);
    from->held_bytes = 0;
    charge_move(&from->charge, &block->charge, bytes);
    session_hold(session, from, -bytes);
    charge_move(&from->ranges_charge, &block->ranges_charge, from->n_ranges);
    block->n_ranges += from->n_ranges; /* the session has as many as before */
    from->n_ranges = 0;
    block_charge(block, bytes);
    block->held_bytes += bytes;
    session_hold(session, block, bytes);
    lease_close(other);
}

/* Has a lease that lies in another segment continue the lease's block, which is a row then. */
static int lease_append(struct lease *lease, struct lease *other) {
    struct block *block = lease->block, *from = other->block;

    if (!row_can_continue(block, from) || lease->withheld_bytes + other->withheld_bytes > 0)
        return PROTO_E_INVALID;
    if (block->is_row && block->n_ranges >= PROTO_ROW_PARTS_MAX)
        return PROTO_E_LIMIT;
    if (!block->is_row)
        block_join_ranges(lease->session, block);
    block_join_ranges(other->session, from);
    assert(from->n_ranges == 1 && (block->is_row || block->n_ranges == 1));
    struct heap_range *range = container_of(from->ranges.next, struct heap_range, user_link);
    list_remove(&range->user_link);
    list_append(&block->ranges, &range->user_link);
    range_move(lease->session, range, block);
    block->is_row = true;
    block->capacity_bytes += range->size;
    block->size_bytes = block->capacity_bytes;
    kept_change(lease->session->core, block->record);
    block_take_over(block, other);
    return 0;
}

int lease_merge(struct lease *lease, struct lease *other, unsigned spare) {
    struct block *block = lease->block, *from = other->block;

    if (block_has_others(block) || block_has_others(from))
        return PROTO_E_SHARED;
    if (lease == other)
        return PROTO_E_INVALID;
    if (from->segment != block->segment)
        return lease_append(lease, other);
    if (block->is_row || from->is_row || from->offset_bytes < block->offset_bytes)
        return PROTO_E_INVALID;
    if (block->n_ranges + from->n_ranges > BLOCK_RANGES_MAX + spare)
        return PROTO_E_LIMIT;
    struct list *position = block->ranges.next;
    list_for_each_entry_safe(struct heap_range, range, &from->ranges, user_link) { /* both are in order */
        while (position != &block->ranges &&
               container_of(position, struct heap_range, user_link)->offset < range->offset)
            position = position->next;
        list_remove(&range->user_link);
        list_insert_before(position, &range->user_link);
        range_move(lease->session, range, block);
    }
    const struct heap_range *last = container_of(block->ranges.previous, struct heap_range, user_link);
    block->size_bytes = block->capacity_bytes = last->offset + last->size - block->offset_bytes;
    lease->withheld_bytes += other->withheld_bytes;
    lease->is_withheld_by_fences = lease->is_withheld_by_fences || other->is_withheld_by_fences;
    kept_change(lease->session->core, lease->record);
    kept_change(lease->session->core, block->record);
    block_take_over(block, other);
    block_join_ranges(lease->session, block);
    return 0;
}

bool lease_is_all(const struct lease *lease, uint64_t offset_bytes, uint64_t size_bytes) {
    const struct block *block = lease->block;
    if (block->shared || size_bytes != block->held_bytes - lease->withheld_bytes ||
        offset_bytes > block->capacity_bytes || size_bytes > block->capacity_bytes - offset_bytes)
        return false;
    if (block->is_row)
        return true;
    uint64_t start = block->offset_bytes + offset_bytes;
    return block_find_end(block, block_find_range(block, start), start + size_bytes) != NULL;
}

static void lease_fence(struct lease *lease, struct fence_queue *queue, uint64_t value) {
    struct block *block = lease->block;
    record_lease(lease, PROTO_RECORD_FENCE, block->held_bytes, 0);
    block_count(block, -1, +1, 0);
    session_hold(lease->session, block, -block->held_bytes);
    session_count_fenced(lease->session, block, block->held_bytes);
    fence_queue_add(queue, lease, value);
}

void lease_give_up(struct lease *lease, struct fence_queue *queue, uint64_t value) {
    if (lease->is_withheld_by_fences) {
        if (queue != NULL)
            fence_queue_withhold(queue, value);
        queue = fence_queue_next_withheld(lease->session, lease->block->segment->pool, 0);
        value = queue != NULL ? queue->withheld_value : 0;
    }
    if (queue != NULL) {
        lease_fence(lease, queue, value);
        return;
    }
    record_lease(lease, PROTO_RECORD_RELEASE, lease->block->held_bytes, 0);
    lease_close(lease);
}

void lease_pass_fence(struct lease *lease) {
    struct fence_queue *next = NULL;

    if (lease->is_withheld_by_fences)
        next = fence_queue_next_withheld(lease->session, lease->block->segment->pool, lease->fence->word + 1);
    if (next == NULL) {
        record_lease(lease, PROTO_RECORD_PASS, lease->block->held_bytes, 0);
        lease_close(lease);
        return;
    }
    fence_queue_remove(lease);
    fence_queue_add(next, lease, next->withheld_value);
}

void lease_quarantine(struct lease *lease) {
    struct session *session = lease->session;
    struct block *block = lease->block;
    if (lease->fence == NULL) {
        block_count(block, -1, 0, +1);
        return;
    }
    block_count(block, 0, -1, +1);
    fence_queue_remove(lease);
    session_count_fenced(session, block, -block->held_bytes);
    session_hold(session, block, block->held_bytes);
}

struct lease *lease_find(struct core *core, const struct session *session, uint64_t id, uint64_t generation) {
    if (id == 0 || id > core->leases.capacity)
        return NULL;
    struct lease *lease = core->leases.slots[id - 1];
    if (lease == NULL || lease->generation != generation || lease->session != session || lease->unanswered ||
        lease->fence != NULL)
        return NULL;
    return lease;
}

int block_share(struct core *core, struct block *block, const struct proto_token *fresh,
                struct proto_token *ret_token) {
    if (!block->shared) {
        block->token = *fresh;
        if (tsearch(block, &core->tokens, block_compare_tokens) == NULL)
            return -ENOMEM;
        block->shared = true;
        kept_change(core, block->record);
        list_for_each_entry(struct lease, lease, &block->leases, block_link) { /* one: others need a token */
            lease->session->pools[block->segment->pool->id - 1].shared_bytes += block->held_bytes;
        }
    }
    *ret_token = block->token;
    return 0;
}

struct block *block_find(struct core *core, const struct proto_token *token) {
    struct block key = {.token = *token};
    struct block **found = tfind(&key, &core->tokens, block_compare_tokens);
    return found == NULL ? NULL : *found;
}
