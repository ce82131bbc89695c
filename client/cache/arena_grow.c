/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/arena_grow.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/cache/cache.h"
#include "client/cache/grow.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/mapped_range.h"
#include "client/session/session.h"

static bool make_arena(struct cache *cache, struct stream_heap *stream_heap, uint64_t limit_bytes) {
    const struct gpu *gpu;
    uint64_t slot_bytes = proto_slot_bytes(limit_bytes);
    uint64_t bytes = (limit_bytes + slot_bytes - 1) / slot_bytes * slot_bytes * ARENA_ADDRESS_FACTOR;
    int error;

    if (devices_need_gpu(&cache->session->devices, &gpu) < 0)
        return false;
    struct mapped_range *range =
        mapped_range_new(gpu, (unsigned)stream_heap->device, bytes, (uint32_t)(bytes / slot_bytes), &error);
    if (range == NULL)
        return false;
    pthread_mutex_lock(&stream_heap->lock);
    bool is_first = stream_heap->arena == NULL;
    bool made = is_first && arena_add_locked(stream_heap, STREAM_HEAP_LARGE, range->memory, bytes, slot_bytes,
                                             proto_large_bytes(limit_bytes)) == 0;
    if (made)
        stream_heap->arena->range = range;
    pthread_mutex_unlock(&stream_heap->lock);
    if (!made)
        mapped_range_free(range);
    return made || !is_first;
}

bool arena_serves(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes) {
    uint64_t limit_bytes = atomic_load_explicit(&stream_heap->limit_bytes, memory_order_relaxed);
    char text[ERROR_TEXT_SIZE];

    if (!cache->has_arenas || stream_heap->kind != GPUPOOL_POOL_DEVICE || !stream_heap->is_movable ||
        stream_heap_half_of(size_bytes) != STREAM_HEAP_LARGE || size_bytes > limit_bytes)
        return false;
    pthread_mutex_lock(&stream_heap->lock);
    bool has_arena = stream_heap->arena != NULL, may_have = !stream_heap->has_no_arena;
    pthread_mutex_unlock(&stream_heap->lock);
    if (!has_arena && may_have) {
        error_save(text);
        has_arena = make_arena(cache, stream_heap, limit_bytes);
        error_restore(text);
        pthread_mutex_lock(&stream_heap->lock);
        stream_heap->has_no_arena = !has_arena;
        pthread_mutex_unlock(&stream_heap->lock);
    }
    return has_arena;
}

void arena_leave_addresses(struct stream_heap *stream_heap) {
    if (stream_heap->arena != NULL)
        mapped_range_free(take_ptr(&stream_heap->arena->range));
}

void arena_forget_addresses(struct stream_heap *stream_heap) {
    if (stream_heap->arena != NULL)
        mapped_range_forget(take_ptr(&stream_heap->arena->range));
}

void arena_segment_closed(void *owner, const struct segment *segment) {
    struct cache *cache = owner;

    pthread_mutex_lock(&cache->stream_heaps_lock);
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        if (stream_heap->pool != segment->pool)
            continue;
        pthread_mutex_lock(&stream_heap->lock);
        if (stream_heap->arena != NULL)
            arena_unmapped_locked(stream_heap->arena, segment);
        pthread_mutex_unlock(&stream_heap->lock);
    }
    pthread_mutex_unlock(&cache->stream_heaps_lock);
}

/* --- slots that are to be filled --- */

/* Finds the holes of the place. The stream heap is locked. */
static void list_holes_locked(struct arena_work *work) {
    const struct arena *arena = work->arena;
    struct arena_hole *hole = NULL;

    work->n_holes = 0;
    for (uint32_t i = work->place.first, after; i <= work->place.last; i = after) {
        after = arena_slot_after(arena, i);
        if (arena->slots[i].state != ARENA_SLOT_BUSY || !arena->slots[i].is_new) {
            hole = NULL;
            continue;
        }
        if (hole == NULL) {
            hole = &work->holes[work->n_holes++];
            *hole = (struct arena_hole){.start = i, .next = i};
        }
        hole->end = after;
    }
}

/* How many segments of so many slots the holes have room for. */
static uint32_t count_room(const struct arena_work *work, uint32_t n_slots) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < work->n_holes; i++)
        count += (work->holes[i].end - work->holes[i].next) / n_slots;
    return count;
}

/* Cuts up to count slots of a width from the holes, for segments of the daemon. */
static void cut(struct arena_work *work, uint32_t n_slots, uint32_t count) {
    for (uint32_t i = 0; i < work->n_holes; i++) {
        struct arena_hole *hole = &work->holes[i];
        for (; count > 0 && hole->end - hole->next >= n_slots; count--, hole->next += n_slots)
            work->fillings[work->n_fillings++] =
                (struct arena_filling){.slot = hole->next, .n_slots = n_slots, .from = ARENA_FROM_DAEMON};
    }
}

/* Cuts slots for the idle segments of a width that find room, and takes these. */
static void cut_for_idle_locked(struct arena_work *work, enum arena_width width) {
    uint32_t n_slots = work->arena->widths[width], first = work->n_fillings;
    uint32_t room = work->place.is_grown ? 0 : count_room(work, n_slots);
    uint32_t count = arena_take_idle_locked(work->arena, &work->place, width, work->idle, room);

    cut(work, n_slots, count);
    for (uint32_t i = 0; i < count; i++)
        work->fillings[first + i].from = work->idle[i];
}

/* Cuts slots for large segments of the daemon, from so many that idle ones do not fill. */
static void cut_large(struct arena_work *work, uint32_t lacking) {
    for (unsigned i = ARENA_WIDTHS; i-- > ARENA_WIDTH_ONE + 1;) {
        uint32_t n_slots = work->arena->widths[i];
        if (n_slots == 0)
            continue;
        uint32_t first = work->n_fillings;
        cut(work, n_slots, lacking / n_slots);
        lacking -= (work->n_fillings - first) * n_slots;
    }
}

/* Whether the request is for large segments. */
static bool wants_large_locked(const struct arena_work *work) {
    const struct stream_heap *stream_heap = work->stream_heap;

    return work->size_bytes >= ARENA_LARGE_BYTES &&
           (atomic_load(&work->cache->prepared_pools) & shortage_bit(stream_heap->pool)) == 0 &&
           (work->size_bytes / ARENA_CHURN_SHARE >= stream_heap->churn_bytes ||
            work->size_bytes / ARENA_HELD_SHARE >= stream_heap_held_bytes_locked(stream_heap));
}

/* Cuts the holes, and takes segments of slots that are idle elsewhere in the arena, which become BUSY. */
static void cut_holes_locked(struct arena_work *work) {
    struct arena *arena = work->arena;

    list_holes_locked(work);
    for (unsigned i = ARENA_WIDTHS; i-- > ARENA_WIDTH_ONE + 1;)
        if (arena->widths[i] > 0)
            cut_for_idle_locked(work, (enum arena_width)i);
    uint32_t lacking = count_room(work, 1);
    uint32_t idle = arena_take_idle_locked(arena, &work->place, ARENA_WIDTH_ONE, work->idle,
                                           work->place.is_grown ? 0 : lacking);
    if (wants_large_locked(work))
        cut_large(work, idle > lacking / ARENA_IDLE_SHARE ? lacking - idle : lacking);
    uint32_t first = work->n_fillings, used = 0;
    cut(work, 1, UINT32_MAX);
    for (; used < idle && first + used < work->n_fillings; used++)
        work->fillings[first + used].from = work->idle[used];
    for (; used < idle; used++)
        arena_return_locked(arena, work->idle[used]);
}

/* Takes the segments of idle slots, which are mapped there until their new slots are filled. */
static void gather_idle(struct arena_work *work) {
    struct arena *arena = work->arena;
    struct fence fence;
    uint32_t count = 0;

    pthread_mutex_lock(&work->stream_heap->lock);
    cut_holes_locked(work);
    pthread_mutex_unlock(&work->stream_heap->lock);
    for (uint32_t i = 0; i < work->n_fillings; i++)
        count += work->fillings[i].from != ARENA_FROM_DAEMON;
    if (count == 0)
        return;
    bool can_move = cache_leave_fence(work->cache, work->stream_heap, &fence) == 0;
    pthread_mutex_lock(&work->stream_heap->lock);
    for (uint32_t i = 0; i < work->n_fillings; i++) {
        struct arena_filling *filling = &work->fillings[i];
        if (filling->from == ARENA_FROM_DAEMON)
            continue;
        if (!can_move) {
            arena_return_locked(arena, filling->from);
            filling->from = ARENA_FROM_DAEMON;
            continue;
        }
        const struct arena_slot *slot = &arena->slots[filling->from];
        filling->lending = slot->lending;
        filling->segment = slot->segment;
        filling->fence = fence;
        filling->is_here = true;
        arena_empty_locked(arena, filling->from, fence);
    }
    pthread_mutex_unlock(&work->stream_heap->lock);
    if (!can_move)
        return;
    move_debts_add(&work->cache->move_debts, work->stream_heap->pool, count);
    cache_count_moved(work->cache, work->stream_heap, count);
}

/* --- the daemon --- */

/* How many segments of a width are missing. */
static uint32_t count_missing(const struct arena_work *work, uint32_t n_slots) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < work->n_fillings; i++)
        count += !work->fillings[i].is_here && work->fillings[i].n_slots == n_slots;
    return count;
}

/* Asks the daemon for segments that are missing: the largest first. 0: none is; ASKING_WAITS; NO_MEMORY. */
static int ask(struct arena_work *work) {
    work->n_asked = 0;
    for (unsigned i = ARENA_WIDTHS; i-- > 0 && work->n_asked == 0;)
        if (work->arena->widths[i] > 0) {
            work->asked_slots = work->arena->widths[i];
            work->n_asked = count_missing(work, work->asked_slots);
        }
    if (work->n_asked == 0)
        return 0;
    work->acquire.segment_bytes = work->asked_slots * work->arena->slot_bytes;
    work->acquire.count = work->n_asked;
    work->acquire.timeout_ns = clock_left_ns(work->deadline_ns);
    free(work->grants);
    work->grants = malloc(work->n_asked * sizeof *work->grants);
    return work->grants == NULL
               ? error_no_memory()
               : asking_begin_segments(work->asking, work->cache->session, &work->acquire, work->grants);
}

/* The segments that were asked for have come. */
static void add_granted(struct arena_work *work) {
    struct arena_filling *filling = work->fillings;

    for (uint32_t i = 0; i < work->n_asked; i++, filling++) {
        while (filling->is_here || filling->n_slots != work->asked_slots)
            filling++;
        filling->lending =
            (struct lending){.lease = work->grants[i].lease, .generation = work->grants[i].generation};
        filling->segment = work->grants[i].segment;
        filling->is_here = true;
    }
}

/* The daemon has no large segments: segments of one slot fill the place of those. */
static void do_without_large(struct arena_work *work) {
    const uint32_t count = work->n_fillings;

    for (uint32_t i = 0; i < count; i++) {
        struct arena_filling *filling = &work->fillings[i];
        if (filling->is_here)
            continue;
        for (uint32_t j = 1; j < filling->n_slots; j++)
            work->fillings[work->n_fillings++] =
                (struct arena_filling){.slot = filling->slot + j, .n_slots = 1, .from = ARENA_FROM_DAEMON};
        filling->n_slots = 1;
    }
}

/* The request fails: what the daemon granted for it goes back, and what was moved stays. The error that led
 * here is the one to report. */
static void return_granted(struct arena_work *work) {
    uint32_t kept = 0;
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (uint32_t i = 0; i < work->n_fillings; i++) {
        const struct arena_filling *filling = &work->fillings[i];
        if (filling->from != ARENA_FROM_DAEMON)
            work->fillings[kept++] = *filling;
        else if (filling->is_here)
            (void)lease_release_patiently(work->cache->session, filling->lending.lease,
                                          filling->lending.generation, 0, 0, FENCE_NONE);
    }
    work->n_fillings = kept;
    error_restore(text);
}

/* --- mappings --- */

static int compare_slots(const void *one, const void *other) {
    const struct arena_filling *a = one, *b = other;

    return (a->slot > b->slot) - (a->slot < b->slot);
}

/* Puts a filling whose segment is still mapped at one of the slots there. */
static void use_old_mapping_locked(struct arena_work *work, uint32_t position) {
    struct arena_filling *to = &work->fillings[position];

    for (uint32_t i = position; work->arena->slots[to->slot].maps != NULL && i < work->n_fillings; i++) {
        struct arena_filling *from = &work->fillings[i], there = *to;
        if (!arena_maps_locked(work->arena, to->slot, from->segment) || from->n_slots != to->n_slots)
            continue;
        to->lending = from->lending;
        to->segment = from->segment;
        to->fence = from->fence;
        to->is_kept = true;
        if (from == to)
            return;
        from->lending = there.lending;
        from->segment = there.segment;
        from->fence = there.fence;
        return;
    }
}

/* Lists what the holes map, but for what stays there. */
static uint32_t list_stale_locked(const struct arena_work *work) {
    const struct arena_filling *filling = work->fillings, *last = filling + work->n_fillings;
    uint32_t count = 0;

    for (uint32_t i = 0; i < work->n_holes; i++)
        for (uint32_t slot = work->holes[i].start, next; slot < work->holes[i].end; slot = next) {
            while (filling < last && filling->slot < slot)
                filling++;
            bool is_filled = filling < last && filling->slot == slot;
            next = slot + (is_filled ? filling->n_slots : 1);
            if (!is_filled || !filling->is_kept)
                count += arena_list_stale_locked(work->arena, slot, next, &work->stale[count]);
        }
    return count;
}

/* Uses the mappings that are there, and takes away the others that the holes have. 0 or DRIVER. */
static int empty_holes(struct arena_work *work) {
    struct stream_heap *stream_heap = work->stream_heap;
    uint32_t gone = 0;
    int r = 0;

    pthread_mutex_lock(&stream_heap->lock);
    for (uint32_t i = 0; i < work->n_fillings; i++)
        use_old_mapping_locked(work, i);
    uint32_t count = list_stale_locked(work);
    pthread_mutex_unlock(&stream_heap->lock);
    while (gone < count && r == 0) {
        r = mapped_range_unmap(work->arena->range, &work->cache->session->segments, work->stale[gone].slot,
                               work->stale[gone].segment);
        gone += r == 0;
    }
    pthread_mutex_lock(&stream_heap->lock);
    for (uint32_t i = 0; i < gone; i++)
        arena_forget_stale_locked(work->arena, &work->stale[i]);
    pthread_mutex_unlock(&stream_heap->lock);
    return r;
}

static void shape_hole_locked(struct arena_work *work, const struct arena_hole *hole,
                              const struct arena_filling **filling) {
    const struct arena_filling *end = work->fillings + work->n_fillings;

    for (uint32_t slot = hole->start; slot < hole->end;) {
        bool is_filled = *filling < end && (*filling)->slot == slot;
        uint32_t n_slots = is_filled ? (*filling)->n_slots : 1;
        arena_shape_locked(work->arena, slot, n_slots, ARENA_SLOT_BUSY);
        slot += n_slots;
        *filling += is_filled;
    }
}

/* Has the slots as wide as their fillings. The others are single. 0 or NO_MEMORY. */
static int shape_holes(struct arena_work *work) {
    const struct arena_filling *filling = work->fillings;
    int r = 0;

    pthread_mutex_lock(&work->stream_heap->lock);
    for (uint32_t i = 0; i < work->n_holes && r == 0; i++)
        r = arena_divide_locked(work->arena, work->holes[i].start, work->holes[i].end);
    for (uint32_t i = 0; i < work->n_holes && r == 0; i++)
        shape_hole_locked(work, &work->holes[i], &filling);
    pthread_mutex_unlock(&work->stream_heap->lock);
    return r < 0 ? error_no_memory() : 0;
}

/* Maps the fillings from..to into their slots, which lie side by side. */
static int map_run(struct arena_work *work, uint32_t from, uint32_t to) {
    _cleanup_(freep) struct mapped_part *parts = malloc((to - from) * sizeof *parts);

    if (parts == NULL)
        return error_no_memory();
    for (uint32_t i = from; i < to; i++)
        parts[i - from] =
            (struct mapped_part){.segment = work->fillings[i].segment, .number = work->fillings[i].slot};
    return mapped_range_map(work->arena->range, &work->cache->session->segments, parts, to - from,
                            arena_slot_start(work->arena, parts->number), GPU_ACCESS_READ_WRITE);
}

static void fill(struct arena_work *work, uint32_t from, uint32_t to) {
    pthread_mutex_lock(&work->stream_heap->lock);
    for (uint32_t i = from; i < to; i++)
        arena_fill_locked(work->arena, work->fillings[i].slot, &work->fillings[i].lending,
                          work->fillings[i].segment);
    pthread_mutex_unlock(&work->stream_heap->lock);
}

/* Gives fillings back to the daemon that could not be mapped. The error that led here is the one to report.
 */
static void give_back(struct arena_work *work, uint32_t from) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (uint32_t i = from; i < work->n_fillings; i++) {
        const struct arena_filling *filling = &work->fillings[i];
        (void)lease_release_patiently(work->cache->session, filling->lending.lease,
                                      filling->lending.generation, 0, 0, filling->fence);
    }
    error_restore(text);
}

/* Maps the fillings. Those that cannot be mapped go back to the daemon. */
static int map_all(struct arena_work *work) {
    uint32_t from = 0, to;

    qsort(work->fillings, work->n_fillings, sizeof *work->fillings, compare_slots);
    int r = work->n_fillings > 0 ? empty_holes(work) : 0;
    if (r == 0 && work->n_fillings > 0)
        r = shape_holes(work);
    for (; from < work->n_fillings && r == 0; from = to) {
        const struct arena_filling *filling = &work->fillings[from];
        for (to = from + 1; to < work->n_fillings && !filling->is_kept; to++, filling++)
            if (filling[1].is_kept || filling[1].slot != filling->slot + filling->n_slots)
                break;
        if (!work->fillings[from].is_kept)
            r = map_run(work, from, to);
        if (r < 0)
            break;
        fill(work, from, to);
    }
    if (r < 0)
        give_back(work, from);
    return r;
}

/* Makes the lists for so many slots. */
static int make_lists(struct arena_work *work, uint32_t count) {
    work->idle = malloc(count * sizeof *work->idle);
    work->stale = malloc(count * sizeof *work->stale);
    work->holes = malloc(count * sizeof *work->holes);
    work->fillings = malloc(count * sizeof *work->fillings);
    return work->idle == NULL || work->stale == NULL || work->holes == NULL || work->fillings == NULL
               ? error_no_memory()
               : 0;
}

void arena_work_free(struct arena_work *work) {
    free(work->idle);
    free(work->stale);
    free(work->holes);
    free(work->fillings);
    free(work->grants);
}

static int fail_claim(int error) {
    return error == -ENOSPC
               ? error_set(GPUPOOL_E_EXHAUSTED, "no addresses are left for memory of the pool on this stream")
               : error_no_memory();
}

/* Ends the work on a place that was claimed. r: how it went. */
static int settle(struct arena_work *work, int r, struct piece **ret_piece) {
    pthread_mutex_lock(&work->stream_heap->lock);
    if (arena_settle_locked(work->arena, &work->place, r == 0 ? ret_piece : NULL) < 0)
        r = error_no_memory();
    pthread_mutex_unlock(&work->stream_heap->lock);
    return r;
}

static void begin_work(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                       uint64_t size_bytes, const struct proto_acquire_segments *acquire,
                       struct asking *asking) {
    *work = (struct arena_work){.cache = cache,
                                .stream_heap = stream_heap,
                                .arena = stream_heap->arena,
                                .size_bytes = size_bytes,
                                .asking = asking,
                                .acquire = *acquire,
                                .began_ns = clock_now_ns()};
    work->deadline_ns = clock_deadline_ns(work->began_ns, acquire->timeout_ns);
}

/* Everything was asked for. r: how that ended. */
static int end_work(struct arena_work *work, int r, struct piece **ret_piece) {
    if (r < 0)
        return_granted(work);
    int mapped = map_all(work);
    r = settle(work, r < 0 ? r : mapped, ret_piece);
    move_debts_except(&work->cache->move_debts, work->stream_heap->pool, clock_now_ns() - work->began_ns);
    arena_work_free(work);
    return r;
}

int arena_grow_begin(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                     uint64_t size_bytes, bool may_grow, const struct proto_acquire_segments *acquire,
                     struct asking *asking, struct piece **ret_piece) {
    begin_work(work, cache, stream_heap, size_bytes, acquire, asking);
    uint64_t most_moves = UINT64_MAX;
    if (may_grow)
        most_moves =
            move_debts_allowance(&cache->move_debts, stream_heap->pool,
                                 counters_takes(&cache->counters, stream_heap->pool), work->began_ns);
    pthread_mutex_lock(&stream_heap->lock);
    int r = arena_claim_locked(work->arena, size_bytes, most_moves, &work->place);
    pthread_mutex_unlock(&stream_heap->lock);
    if (r < 0)
        return fail_claim(r);
    r = make_lists(work, work->place.n_vacant > 0 ? work->place.n_vacant : 1);
    if (r == 0 && work->place.n_vacant > 0) {
        gather_idle(work);
        r = ask(work);
    }
    return r == ASKING_WAITS ? r : end_work(work, r, ret_piece);
}

int arena_grow_end(struct arena_work *work, int r, struct piece **ret_piece) {
    if (r == 0)
        add_granted(work);
    if ((r == GPUPOOL_E_EXHAUSTED || r == GPUPOOL_E_LIMIT) && work->asked_slots > 1) {
        do_without_large(work);
        r = 0;
    }
    if (r == 0)
        r = ask(work);
    return r == ASKING_WAITS ? r : end_work(work, r, ret_piece);
}

bool arena_grow_was_refused(struct arena_work *work) {
    if (!work->place.is_grown)
        return false;
    move_debts_forgive(&work->cache->move_debts, work->stream_heap->pool);
    return true;
}

int arena_wait_begin(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                     uint64_t size_bytes, const struct proto_acquire_segments *acquire,
                     struct asking *asking) {
    begin_work(work, cache, stream_heap, size_bytes, acquire, asking);
    uint64_t slot_bytes = work->arena->slot_bytes;
    uint32_t count = (uint32_t)((size_bytes + slot_bytes - 1) / slot_bytes);

    int r = make_lists(work, count);
    if (r == 0) {
        work->holes[0] = (struct arena_hole){.end = count};
        work->n_holes = 1;
        cut(work, 1, count); /* their numbers are those of the place when it is known */
        r = ask(work);
    }
    if (r < 0)
        arena_work_free(work);
    return r;
}

/* Maps the segments that have come into a place that is vacant. */
static int place_granted(struct arena_work *work, struct piece **ret_piece) {
    add_granted(work);
    pthread_mutex_lock(&work->stream_heap->lock);
    int r = arena_claim_vacant_locked(work->arena, work->n_fillings, &work->place);
    if (r == 0)
        list_holes_locked(work);
    pthread_mutex_unlock(&work->stream_heap->lock);
    if (r < 0) {
        r = fail_claim(r);
        give_back(work, 0);
        return r;
    }
    for (uint32_t i = 0; i < work->n_fillings; i++)
        work->fillings[i].slot = work->place.first + i;
    r = map_all(work);
    work->place.size_bytes = work->size_bytes; /* the rest of the last slot is free */
    return settle(work, r, ret_piece);
}

int arena_wait_end(struct arena_work *work, int r, struct piece **ret_piece) {
    if (r == 0)
        r = place_granted(work, ret_piece);
    arena_work_free(work);
    return r;
}
