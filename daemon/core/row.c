/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/row.h"

#include "heap/heap.h"

static uint64_t end_of(const struct heap_range *range) {
    return range->offset + range->size;
}

static const struct heap_range *first_of(const struct block *block) {
    return container_of(block->ranges.next, struct heap_range, user_link);
}

static const struct heap_range *last_of(const struct block *block) {
    return container_of(block->ranges.previous, struct heap_range, user_link);
}

bool row_can_continue(const struct block *block, const struct block *from) {
    const struct heap_range *last = last_of(block);

    /* Only the first part can lie in the segment of what begins at an offset of 0. */
    return !from->is_row && from->segment != block->segment && from->segment->pool == block->segment->pool &&
           pool_has_rows(block->segment->pool) && block->held_bytes == block->capacity_bytes &&
           from->held_bytes == from->capacity_bytes && end_of(last) == last->span->size &&
           from->offset_bytes == 0;
}

const struct heap_range *row_part(const struct block *row, unsigned i) {
    const struct list *link = row->ranges.next;

    while (i-- > 0)
        link = link->next;
    return container_of(link, struct heap_range, user_link);
}

bool row_is_valid(const struct block *row) {
    if (row->n_ranges < 2 || row->n_ranges > PROTO_ROW_PARTS_MAX || row->held_bytes != row->capacity_bytes ||
        !pool_has_rows(row->segment->pool) || first_of(row)->span != row->segment->span ||
        first_of(row)->offset != row->offset_bytes)
        return false;
    list_for_each_entry(const struct heap_range, range, &row->ranges, user_link) {
        const struct segment *segment = range->span->user;
        if (segment->owner != row->segment->owner || segment->span != range->span ||
            (range != first_of(row) && (range->offset != 0 || segment == row->segment)) ||
            (range != last_of(row) && end_of(range) != segment->size_bytes))
            return false;
    }
    return true;
}
