/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/deferred.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "client/cache/cache.h"

int deferred_reserve_locked(struct lane *lane, struct fence fence) {
    if (deferred_find_queue(lane, fence.word) != NULL || !list_is_empty(&lane->deferred_spare))
        return 0;
    struct deferred_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL)
        return -ENOMEM;
    list_append(&lane->deferred_spare, &queue->link);
    return 0;
}

static void append(struct deferred_queue *queue, struct piece *piece) {
    piece->next = NULL;
    if (queue->first == NULL)
        queue->first = piece;
    else
        queue->last->next = piece;
    queue->last = piece;
}

void deferred_push_locked(struct lane *lane, struct piece *piece, struct fence fence) {
    struct deferred_queue *queue = deferred_find_queue(lane, fence.word);

    assert(piece->lane == lane && piece->generation % 2 == 0 && fence.word != 0);
    if (queue == NULL) {
        queue = list_first(&lane->deferred_spare, struct deferred_queue, link);
        assert(queue != NULL); /* the caller has seen to that */
        list_remove(&queue->link);
        *queue = (struct deferred_queue){.word = fence.word, .newest = fence.value};
        list_append(&lane->deferred, &queue->link);
    }
    piece->fence_value = fence.value;
    append(queue, piece);
    if (deferred_is_after(fence.value, queue->newest))
        queue->newest = fence.value;
    lane->deferred_bytes += piece->capacity_bytes;
    piece->extent->deferred_bytes += piece->capacity_bytes;
    lane->touched = true;
}

/* It is out of its queue. */
static void leave(struct lane *lane, struct piece *piece) {
    piece->next = NULL;
    lane->deferred_bytes -= piece->capacity_bytes;
    piece->extent->deferred_bytes -= piece->capacity_bytes;
}

static struct piece *pop(struct lane *lane, struct deferred_queue *queue) {
    struct piece *piece = queue->first;

    queue->first = piece->next;
    leave(lane, piece);
    return piece;
}

static void retire_if_empty(struct lane *lane, struct deferred_queue *queue) {
    if (queue->first != NULL)
        return;
    list_remove(&queue->link);
    list_append(&lane->deferred_spare, &queue->link);
}

bool deferred_settle_locked(struct lane *lane, unsigned limit) {
    unsigned given = 0;

    list_for_each_safe(position, &lane->deferred) {
        struct deferred_queue *queue = container_of(position, struct deferred_queue, link);
        if (given == limit)
            break;
        while (given < limit && queue->first != NULL &&
               fence_is_ready(lane->owner->session, (struct fence){queue->word, queue->first->fence_value})) {
            lane_give_locked(lane, pop(lane, queue));
            given++;
        }
        retire_if_empty(lane, queue);
        if (queue->first != NULL && given == limit) { /* the others come first next time */
            list_remove(&queue->link);
            list_append(&lane->deferred, &queue->link);
            break;
        }
    }
    return given > 0;
}

unsigned deferred_fences_locked(const struct lane *lane, struct fence *fences, unsigned capacity) {
    unsigned count = 0;

    list_for_each(position, &lane->deferred) {
        const struct deferred_queue *queue = container_of(position, struct deferred_queue, link);
        if (count < capacity)
            fences[count++] = (struct fence){queue->word, queue->newest};
    }
    return count;
}

/* Takes the pieces out of a queue that the function accepts. */
static void filter(struct lane *lane, struct deferred_queue *queue,
                   bool (*accept)(struct lane *lane, struct piece *piece, void *user), void *user) {
    struct piece *piece = queue->first;

    queue->first = queue->last = NULL;
    while (piece != NULL) {
        struct piece *next = piece->next;
        if (!accept(lane, piece, user))
            append(queue, piece);
        piece = next;
    }
    retire_if_empty(lane, queue);
}

static bool accept_ordered(struct lane *lane, struct piece *piece, void *user) {
    if (deferred_is_after(piece->fence_value, *(const uint64_t *)user))
        return false;
    leave(lane, piece);
    lane_give_locked(lane, piece);
    return true;
}

void deferred_order_locked(struct lane *lane, struct fence fence) {
    struct deferred_queue *queue = deferred_find_queue(lane, fence.word);
    if (queue != NULL)
        filter(lane, queue, accept_ordered, &fence.value);
}

struct reclaim {
    uint64_t minimum_bytes;
    uint32_t word;
    struct lane_part *parts;
    size_t count, capacity;
};

static bool accept_part(struct lane *lane, struct piece *piece, void *user) {
    struct reclaim *reclaim = user;

    if (reclaim->count == reclaim->capacity ||
        (piece->capacity_bytes < reclaim->minimum_bytes && !lane_extent_is_idle_locked(piece->extent)))
        return false;
    struct fence fence = {reclaim->word, piece->fence_value};
    struct lane_part *part = &reclaim->parts[reclaim->count++];
    leave(lane, piece);
    lane_lose_locked(piece, part);
    part->has_fence = true;
    part->fence = fence;
    return true;
}

size_t deferred_reclaim_locked(struct lane *lane, uint64_t minimum_bytes, struct lane_part *ret_parts,
                               size_t capacity) {
    struct reclaim reclaim = {.minimum_bytes = minimum_bytes, .parts = ret_parts, .capacity = capacity};

    list_for_each_safe(position, &lane->deferred) {
        struct deferred_queue *queue = container_of(position, struct deferred_queue, link);
        reclaim.word = queue->word;
        filter(lane, queue, accept_part, &reclaim);
    }
    return reclaim.count;
}
