/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/stretch.h"

#include <stdlib.h>

#include "base/array.h"
#include "client/core/pool.h"
#include "client/core/stream_heap.h"

/* Whether a range holds a piece that does not go to the daemon: one that is in use, in a thread's cache, or
 * deferred and about to be used. */
static bool is_held(const struct stream_heap *stream_heap, const struct heap_range *range) {
    const struct piece *piece = range->user;

    return !range->free && piece != NULL && (!piece->is_deferred || stream_heap->ordering > 0);
}

static const char *start_of(const struct extent *extent, const struct heap_range *range) {
    return extent->memory + range->offset;
}

static const char *end_of(const struct extent *extent, const struct heap_range *range) {
    return start_of(extent, range) + range->size;
}

/* Ends the stretch above the highest held range, from a range of the extent on downwards. */
static void narrow_below(const struct extent *extent, const struct heap_range *range,
                         struct stretch *stretch) {
    for (; range != NULL && end_of(extent, range) > stretch->start; range = range->lower)
        if (is_held(extent->stream_heap, range)) {
            stretch->start = end_of(extent, range);
            return;
        }
}

/* Ends the stretch below the lowest held range, from a range of the extent on upwards. */
static void narrow_above(const struct extent *extent, const struct heap_range *range,
                         struct stretch *stretch) {
    for (; range != NULL && start_of(extent, range) < stretch->end; range = range->upper)
        if (is_held(extent->stream_heap, range)) {
            stretch->end = start_of(extent, range);
            return;
        }
}

/* Narrows a stretch to what the extent does not use of it. False: the extent uses the place. */
static bool narrow(struct extent *extent, const char *place, struct stretch *stretch) {
    const char *end = extent->memory + extent->size_bytes;

    if (end <= stretch->start || extent->memory >= stretch->end)
        return true;
    if (end <= place) {
        narrow_below(extent, extent->span->highest, stretch);
    } else if (extent->memory > place) {
        narrow_above(extent, extent->span->lowest, stretch);
    } else {
        const struct heap_range *range = heap_range_at(extent->span, (uint64_t)(place - extent->memory));
        if (is_held(extent->stream_heap, range))
            return false;
        narrow_below(extent, range, stretch);
        narrow_above(extent, range, stretch);
    }
    return true;
}

/* Where the segment of a place begins and ends. False: no extent of the pool is there. */
static bool find_segment(struct core_pool *pool, const char *place, struct stretch *ret_segment) {
    bool found = false;

    list_for_each_entry(struct stream_heap, stream_heap, &pool->stream_heaps, pool_link) {
        if (found)
            break;
        pthread_mutex_lock(&stream_heap->lock);
        list_for_each_entry(const struct extent, extent, &stream_heap->extents, link) {
            const struct segment_view *segment = &extent->segment;
            if (extent->is_arena || place < extent->memory || place >= extent->memory + extent->size_bytes)
                continue;
            ret_segment->start = segment->memory;
            ret_segment->segment_bytes = segment->size_bytes;
            ret_segment->end = ret_segment->start + segment->size_bytes;
            found = true;
            break;
        }
        pthread_mutex_unlock(&stream_heap->lock);
    }
    return found;
}

bool stretch_at_locked(struct core_pool *pool, const char *place, struct stretch *ret_stretch) {
    bool is_free = find_segment(pool, place, ret_stretch);

    list_for_each_entry(struct stream_heap, stream_heap, &pool->stream_heaps, pool_link) {
        if (!is_free)
            break;
        pthread_mutex_lock(&stream_heap->lock);
        list_for_each_entry(struct extent, extent, &stream_heap->extents, link) {
            is_free = is_free && (extent->is_arena || narrow(extent, place, ret_stretch));
        }
        pthread_mutex_unlock(&stream_heap->lock);
    }
    return is_free;
}

/* --- places --- */

struct places {
    const char **list;
    size_t count, capacity;
};

static void add_place(struct places *places, const char *place) {
    const char **list = array_room(places->list, places->count, &places->capacity, sizeof *list);

    if (list == NULL)
        return;
    places->list = list;
    places->list[places->count++] = place;
}

/* Adds the first place of each run of ranges that are not held, if something of it is here. A run inside the
 * extent is as long as the stretch around it. */
static void add_places(const struct extent *extent, uint64_t size_bytes, struct places *places) {
    for (const struct heap_range *range = extent->span->lowest; range != NULL;) {
        const struct heap_range *first = range;
        bool is_here = false, is_inside = first->lower != NULL;

        for (; range != NULL && !is_held(extent->stream_heap, range); range = range->upper)
            is_here = is_here || !stream_heap_range_is_absent(range);
        uint64_t end = range == NULL ? extent->size_bytes : range->offset;
        is_inside = is_inside && range != NULL;
        if (is_here && (!is_inside || end - first->offset >= size_bytes))
            add_place(places, start_of(extent, first));
        while (range != NULL && is_held(extent->stream_heap, range))
            range = range->upper;
    }
}

size_t stretch_places(struct stream_heap *stream_heap, uint64_t size_bytes, const char ***ret_places) {
    struct places places = {0};

    pthread_mutex_lock(&stream_heap->lock);
    list_for_each_entry(const struct extent, extent, &stream_heap->extents, link) {
        if (!extent->is_arena)
            add_places(extent, size_bytes, &places);
    }
    pthread_mutex_unlock(&stream_heap->lock);
    *ret_places = places.list;
    return places.count;
}
