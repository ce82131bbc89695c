/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/heir.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/core/lease.h"
#include "daemon/core/row.h"
#include "daemon/core/segment.h"
#include "daemon/core/tenant.h"

int heir_add_block(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_block *kept = payload;
    struct segment *segment = heir_object(heir, kept->segment, KEPT_SEGMENT);

    if (segment == NULL || segment->owner == NULL)
        return heir_refuse(heir, "a block is in a segment that is not there");
    if (kept->size_bytes == 0 || kept->size_bytes > kept->capacity_bytes ||
        kept->offset_bytes % HEAP_GRANULE != 0 || kept->capacity_bytes % HEAP_GRANULE != 0)
        return heir_refuse(heir, "a block has no size, or no place");
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL)
        return -ENOMEM;
    block->segment = segment;
    block->offset_bytes = kept->offset_bytes;
    block->size_bytes = kept->size_bytes;
    block->capacity_bytes = kept->capacity_bytes;
    block->is_row = kept->is_row;
    memcpy(block->token.bytes, kept->token, sizeof block->token.bytes);
    list_init(&block->ranges);
    list_init(&block->leases);
    list_init(&block->named);
    heir_bind(heir, record, block, &block->record);
    return 0;
}

int heir_add_range(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_range *kept = payload;
    struct block *block = heir_object(heir, kept->block, KEPT_BLOCK);
    struct segment *segment = heir_object(heir, kept->segment, KEPT_SEGMENT);
    struct heap_range *range;

    if (block == NULL || segment == NULL || segment->owner == NULL ||
        segment->owner != block->segment->owner || (!block->is_row && segment != block->segment))
        return heir_refuse(heir, "a range is of a block that is not there");
    struct heap_range *around = heap_range_at(segment->span, kept->offset_bytes);
    if (around == NULL || !around->free || kept->size_bytes == 0 ||
        kept->size_bytes > around->offset + around->size - kept->offset_bytes ||
        kept->offset_bytes % HEAP_GRANULE != 0 || kept->size_bytes % HEAP_GRANULE != 0)
        return heir_refuse(heir, "two blocks have one range");
    int r = heap_claim_part(around, kept->offset_bytes, kept->size_bytes, &range);
    if (r < 0)
        return r;
    range->user = block;
    heir_bind(heir, record, range, &range->record);
    segment_settle(segment);
    return 0;
}

/* The record of the range before a row's range; 0: it is the first. */
static uint32_t previous_of(const struct heir *heir, uint32_t record) {
    struct estate_found found;

    (void)estate_next(heir->estate, KEPT_RANGE, record - 1, &found); /* it is there, and not damaged */
    return ((const struct kept_range *)found.payload)->previous;
}

/* The ranges of a row lie in segments of any order: each says which one is before it. n_left: so many are before
 * it at most. */
static int link_behind(struct heir *heir, struct heap_range *range, unsigned n_left) {
    struct block *block = range->user;
    uint32_t record = previous_of(heir, range->record);
    struct heap_range *previous = heir_object(heir, record, KEPT_RANGE);

    if (!list_is_empty(&range->user_link))
        return 0;
    if (record == 0 ? !list_is_empty(&block->ranges)
                    : previous == NULL || previous->user != block || n_left == 0)
        return heir_refuse(heir, "a row is broken");
    int r = previous != NULL ? link_behind(heir, previous, n_left - 1) : 0;
    if (r == 0 && previous != NULL && previous->user_link.next != &block->ranges)
        return heir_refuse(heir, "a row is broken");
    if (r == 0)
        list_append(&block->ranges, &range->user_link);
    return r;
}

int heir_link_row(struct heir *heir, uint32_t record, const void *payload) {
    struct heap_range *range = heir_object(heir, record, KEPT_RANGE);
    const struct block *block = range->user;

    (void)payload;
    return block->is_row ? link_behind(heir, range, PROTO_ROW_PARTS_MAX) : 0;
}

/* The other blocks have their ranges in the order of the segment. */
void heir_link_ranges(const struct core *core) {
    for (size_t slot = 0; slot < core->segment_slots; slot++) {
        const struct segment *segment = core->segments[slot];
        if (segment == NULL || segment->span == NULL)
            continue;
        for (struct heap_range *range = segment->span->lowest; range != NULL; range = range->upper) {
            struct block *block = range->user;
            if (!range->free && block != NULL && !block->is_row)
                list_append(&block->ranges, &range->user_link);
        }
    }
}

/* Whether the ranges of a block that is no row make up its capacity. */
static bool lies_in_place(const struct block *block) {
    const struct heap_range *first = container_of(block->ranges.next, struct heap_range, user_link),
                            *last = container_of(block->ranges.previous, struct heap_range, user_link);

    return first->offset >= block->offset_bytes &&
           last->offset + last->size - block->offset_bytes == block->capacity_bytes;
}

int heir_end_block(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_block *kept = payload;
    struct block *block = heir_object(heir, record, KEPT_BLOCK);

    if (list_is_empty(&block->ranges))
        return heir_refuse(heir, "a block has no memory");
    int r = block_restore(block, block->segment->owner->tenant, kept->is_shared);
    if (r == -EBADMSG)
        return heir_refuse(heir, "two blocks have one token");
    return r < 0 || (block->is_row ? row_is_valid(block) : lies_in_place(block))
               ? r
               : heir_refuse(heir, "a block has other memory than its size");
}

/* Each block is of a session or of a parcel. */
int heir_check_block(struct heir *heir, uint32_t record, const void *payload) {
    const struct block *block = heir_object(heir, record, KEPT_BLOCK);

    (void)payload;
    return list_is_empty(&block->leases) && block->n_parcels == 0 ? heir_refuse(heir, "nobody has a block")
                                                                  : 0;
}
