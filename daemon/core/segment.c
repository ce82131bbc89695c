/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/segment.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct shelf *shelf_of_node(const struct tree_node *node) {
    return node == NULL ? NULL : container_of(node, struct shelf, node);
}

/* Finds the shelf of a size, or makes it, and counts a segment there. Returns 0 or -ENOMEM. */
static int shelf_get(struct tree *shelves, struct tenant_heap *owner, uint64_t size_bytes,
                     struct shelf **ret_shelf) {
    struct shelf *shelf = shelf_of_node(tree_find(shelves, size_bytes));

    if (shelf == NULL) {
        shelf = calloc(1, sizeof *shelf);
        if (shelf == NULL)
            return -ENOMEM;
        shelf->owner = owner;
        shelf->size_bytes = size_bytes;
        list_init(&shelf->empty);
        list_init(&shelf->used);
        tree_insert(shelves, &shelf->node, size_bytes, 0);
    }
    shelf->n_segments++;
    *ret_shelf = shelf;
    return 0;
}

/* A segment of the size is gone; with the last one its shelf is. */
static void shelf_drop(struct tree *shelves, struct shelf *shelf) {
    if (--shelf->n_segments > 0)
        return;
    assert(list_is_empty(&shelf->empty) && list_is_empty(&shelf->used) && shelf->n_empty == 0);
    tree_remove(shelves, &shelf->node);
    free(shelf);
}

int segment_reserve_slot(struct core *core) {
    return core->n_free_slots > 0 ? 0 : segment_grow_slots(core);
}

int segment_grow_slots(struct core *core) {
    size_t slots = core->segment_slots == 0 ? 64 : core->segment_slots * 2;
    struct segment **segments = realloc(core->segments, slots * sizeof *segments);
    if (segments == NULL)
        return -ENOMEM;
    core->segments = segments;
    uint32_t *free_slots = realloc(core->free_slots, slots * sizeof *free_slots);
    if (free_slots == NULL)
        return -ENOMEM;
    core->free_slots = free_slots;
    size_t more = slots - core->segment_slots;
    memmove(&free_slots[more], free_slots, core->n_free_slots * sizeof *free_slots);
    for (size_t i = 0; i < more; i++) { /* the lowest one on top */
        free_slots[i] = (uint32_t)(slots - 1 - i);
        segments[slots - 1 - i] = NULL;
    }
    core->n_free_slots += more;
    core->segment_slots = slots;
    return 0;
}

void segment_take_slot(struct segment *segment) {
    struct core *core = segment->pool->core;

    segment->slot = core->free_slots[--core->n_free_slots];
    core->segments[segment->slot] = segment;
}

void segment_restore_slot(struct segment *segment, uint32_t slot) {
    struct core *core = segment->pool->core;

    assert(slot < core->segment_slots && core->segments[slot] == NULL);
    segment->slot = slot;
    core->segments[slot] = segment;
    core->n_free_slots--;
}

void segment_slots_restored(struct core *core) {
    core->n_free_slots = 0;
    for (size_t slot = core->segment_slots; slot-- > 0;) /* the lowest one on top */
        if (core->segments[slot] == NULL)
            core->free_slots[core->n_free_slots++] = (uint32_t)slot;
}

void segment_leave_slot(const struct segment *segment) {
    struct core *core = segment->pool->core;

    core->segments[segment->slot] = NULL;
    core->free_slots[core->n_free_slots++] = segment->slot;
}

int segment_join(struct segment *segment) {
    struct pool *pool = segment->pool;

    list_init(&segment->link);
    list_init(&segment->shelf_link);
    list_init(&segment->idle_link);
    list_init(&segment->shared_link);
    int r = shelf_get(&pool->shelves, NULL, segment->size_bytes, &segment->size_shelf);
    if (r < 0)
        return r;
    list_append(&pool->segments, &segment->link);
    tree_insert(&pool->core->segments_by_id, &segment->id_node, segment->id, 0);
    segment_settle(segment);
    return 0;
}

void segment_leave(struct segment *segment) {
    struct pool *pool = segment->pool;

    segment->state = SEGMENT_RETIRING; /* on no shelf */
    segment_settle(segment);
    list_remove(&segment->link);
    list_remove(&segment->shelf_link);
    tree_remove(&pool->core->segments_by_id, &segment->id_node);
    shelf_drop(&pool->shelves, segment->size_shelf);
}

int segment_reserve_owner(struct segment *segment, struct tenant_heap *heap) {
    return shelf_get(&heap->shelves, heap, segment->size_bytes, &segment->owner_shelf);
}

void segment_drop_owner(struct segment *segment, struct tenant_heap *heap) {
    shelf_drop(&heap->shelves, segment->owner_shelf);
    segment->owner_shelf = NULL;
}

struct segment *segment_find(const struct core *core, uint64_t id) {
    struct tree_node *node = tree_find(&core->segments_by_id, id);
    return node == NULL ? NULL : container_of(node, struct segment, id_node);
}

const struct shelf *shelf_find(const struct tree *shelves, uint64_t size_bytes) {
    return shelf_of_node(tree_find(shelves, size_bytes));
}

struct shelf *shelf_first_at_least(const struct tree *shelves, uint64_t size_bytes) {
    return shelf_of_node(tree_at_least(shelves, size_bytes));
}

struct shelf *shelf_next(const struct shelf *shelf) {
    return shelf_of_node(tree_next(&shelf->node));
}

/* Takes a segment off its shelf, or puts it on one: in the counts too. */
static void shelf_count(struct segment *segment, bool is_on) {
    struct shelf *shelf = segment->shelf;
    struct pool *pool = segment->pool;
    uint64_t bytes = is_on ? segment->size_bytes : -segment->size_bytes;
    unsigned one = is_on ? 1 : -1u;

    if (shelf == NULL)
        return;
    if (!is_on)
        list_remove(&segment->shelf_link);
    else if (segment->is_idle)
        list_prepend(&shelf->empty, &segment->shelf_link);
    else
        list_append(segment->is_empty ? &shelf->empty : &shelf->used, &segment->shelf_link);
    if (!segment->is_empty) {
        pool->occupied_bytes += bytes;
        return;
    }
    shelf->n_empty += one;
    pool->deaf_bytes += segment->is_deaf ? bytes : 0;
    if (segment->is_idle) {
        shelf->n_idle += one;
        pool->idle_bytes += bytes;
        if (is_on)
            list_append(&pool->idle, &segment->idle_link);
        else
            list_remove(&segment->idle_link);
    }
    if (shelf->owner == NULL && !is_on && shelf->n_empty == 0)
        tree_remove(&pool->stocked, &shelf->stocked_node);
    else if (shelf->owner == NULL && is_on && shelf->n_empty == 1)
        tree_insert(&pool->stocked, &shelf->stocked_node, shelf->size_bytes, 0);
}

/* Puts the segment where its session or owner finds it to be closed. */
static void settle_to_close(struct segment *segment, bool is_empty) {
    bool is_owned = is_empty && segment->owner != NULL;
    struct session *sole = is_owned && segment->mappers == 1 ? (struct session *)segment->mappers_sum : NULL;
    struct list *shared = !is_owned || segment->mappers < 2 ? NULL
                          : segment->deaf_mappers == 0      ? &segment->owner->shared
                                                            : &segment->owner->deaf;
    unsigned p = segment->pool->id - 1;

    if (segment->sole != sole) {
        if (segment->sole != NULL)
            tree_remove(&segment->sole->pools[p].closable, &segment->closable_node);
        if (sole != NULL)
            tree_insert(&sole->pools[p].closable, &segment->closable_node, segment->size_bytes, segment->id);
        segment->sole = sole;
    }
    if (segment->shared != shared) {
        list_remove(&segment->shared_link);
        if (shared != NULL)
            list_append(shared, &segment->shared_link);
        segment->shared = shared;
    }
}

/* Memory of a segment that is taken or free again changes its tenant's quota, and serves its requests. */
static void note_owner(struct tenant_heap *owner) {
    if (owner->tenant->account != NULL && !list_is_empty(&owner->pool->waiters.queues)) {
        owner->pool->changes++; /* the quota is that of other tenants, too */
        owner->pool->is_plan_due = true;
    }
    if (list_is_empty(&owner->waiting.requests) && list_is_empty(&owner->held.requests))
        return;
    owner->waiting.tried = owner->waiting.weighed = owner->held.tried = 0;
    owner->pool->is_plan_due = true;
}

void segment_settle(struct segment *segment) {
    struct shelf *shelf = segment->state == SEGMENT_ASSIGNED     ? segment->owner_shelf
                          : segment->state == SEGMENT_UNASSIGNED ? segment->size_shelf
                                                                 : NULL;
    bool is_empty = shelf != NULL && (segment->span == NULL || segment->span->taken_bytes == 0);
    bool is_idle = is_empty && segment->mappers == 0, is_deaf = is_empty && segment->deaf_mappers > 0;

    if (segment->owner != NULL)
        note_owner(segment->owner);
    settle_to_close(segment, is_empty);
    if (shelf == segment->shelf && is_empty == segment->is_empty && is_idle == segment->is_idle &&
        is_deaf == segment->is_deaf)
        return;
    if (is_idle || segment->is_idle || !list_is_empty(&segment->pool->waiters.overdue))
        segment->pool->is_plan_due = true;
    shelf_count(segment, false);
    segment->shelf = shelf;
    segment->is_empty = is_empty;
    segment->is_idle = is_idle;
    segment->is_deaf = is_deaf;
    shelf_count(segment, true);
}
