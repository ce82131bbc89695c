/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/pool.h"

#include <limits.h>

#include "base/lock.h"
#include "base/units.h"
#include "client/core/deferred.h"

/* An answer of the daemon takes less than that (100 us on a busy machine). */
#define OFFER_NS UINT64_C(2000000)

void core_pool_init(struct core_pool *pool) {
    pthread_mutex_init(&pool->lock, NULL);
    list_init(&pool->stream_heaps);
    list_init(&pool->waiting);
    atomic_init(&pool->n_waiting, 0);
}

void core_pool_deinit(struct core_pool *pool) {
    pthread_mutex_destroy(&pool->lock);
}

static void set_gate(struct stream_heap *stream_heap, bool is_closed) {
    pthread_mutex_lock(&stream_heap->lock);
    stream_heap->gate_is_closed = is_closed;
    pthread_mutex_unlock(&stream_heap->lock);
}

void core_pool_add_locked(struct core_pool *pool, struct stream_heap *stream_heap) {
    stream_heap->core_pool = pool;
    set_gate(stream_heap, core_pool_waits(pool));
    list_append(&pool->stream_heaps, &stream_heap->pool_link);
}

static void set_gates(struct core_pool *pool, bool are_closed) {
    list_for_each_entry(struct stream_heap, stream_heap, &pool->stream_heaps, pool_link) {
        set_gate(stream_heap, are_closed);
    }
}

void core_pool_enter_locked(struct core_pool *pool, struct acquire *waiter, struct stream_heap *stream_heap,
                            uint64_t size_bytes, bool is_of_segments) {
    waiter->stream_heap = stream_heap;
    waiter->piece = NULL;
    waiter->question_id = 0;
    waiter->size_bytes = size_bytes;
    waiter->is_of_segments = is_of_segments;
    waiter->passes = 0;
    waiter->target = (struct target){0};
    waiter->offered_ns = 0;
    list_append(&pool->waiting, &waiter->link);
    if (atomic_fetch_add(&pool->n_waiting, 1) == 0)
        set_gates(pool, true);
}

void core_pool_leave_locked(struct core_pool *pool, struct acquire *waiter) {
    list_remove(&waiter->link);
    unsigned before = atomic_fetch_sub(&pool->n_waiting, 1);
    list_for_each_entry(struct acquire, other, &pool->waiting, link) {
        if (waiter->offered_ns == 0)
            other->offered_ns = 0; /* it may have been served by what was meant for this one */
    }
    target_open_locked(pool, &waiter->target);
    if (before == 1) /* last: threads with an open gate find all that is free */
        set_gates(pool, false);
}

bool core_pool_waits_for_locked(const struct core_pool *pool, uint64_t most_bytes) {
    list_for_each_entry(const struct acquire, waiter, &pool->waiting, link) {
        if (waiter->size_bytes <= most_bytes && waiter->piece == NULL)
            return true;
    }
    return false;
}

bool core_pool_waits_for_segments_locked(const struct core_pool *pool) {
    list_for_each_entry(const struct acquire, waiter, &pool->waiting, link) {
        if (waiter->is_of_segments && waiter->piece == NULL)
            return true;
    }
    return false;
}

bool core_pool_waits_for_segments(struct core_pool *pool) {
    if (!core_pool_waits(pool))
        return false;
    pthread_mutex_lock(&pool->lock);
    bool waits = core_pool_waits_for_segments_locked(pool);
    pthread_mutex_unlock(&pool->lock);
    return waits;
}

/* Whether a range of a stream heap may serve a request. */
static bool may_serve(const struct acquire *waiter, const struct stream_heap *stream_heap, uint64_t now_ns) {
    if (waiter->is_of_segments)
        return waiter->stream_heap == stream_heap && waiter->piece == NULL;
    return waiter->offered_ns == 0 || now_ns - waiter->offered_ns > OFFER_NS;
}

bool core_pool_serve_locked(struct core_pool *pool, struct stream_heap *stream_heap, uint64_t now_ns,
                            struct core_serving *ret_serving) {
    struct piece *piece;

    if (stream_heap->deferred_bytes > 0)
        deferred_settle_locked(stream_heap, UINT_MAX);
    list_for_each_entry(struct acquire, waiter, &pool->waiting, link) {
        if (!may_serve(waiter, stream_heap, now_ns) ||
            stream_heap_take_locked(stream_heap, waiter->size_bytes, true, &piece) < 0)
            continue;
        if (waiter->is_of_segments) {
            waiter->piece = piece;
            *ret_serving = (struct core_serving){.question_id = waiter->question_id};
        } else {
            waiter->offered_ns = now_ns;
            *ret_serving = (struct core_serving){.piece = piece};
        }
        return true;
    }
    return false;
}

bool core_pool_lock_heap(struct stream_heap *stream_heap) {
    lock_busy(&stream_heap->lock);
    if (!stream_heap->gate_is_closed)
        return false;
    pthread_mutex_unlock(&stream_heap->lock);
    pthread_mutex_lock(&stream_heap->core_pool->lock);
    pthread_mutex_lock(&stream_heap->lock);
    return true;
}

void core_pool_unlock_heap(struct stream_heap *stream_heap, bool is_closed) {
    pthread_mutex_unlock(&stream_heap->lock);
    if (is_closed)
        pthread_mutex_unlock(&stream_heap->core_pool->lock);
}

/* Whether the extents of a stream heap are closed that lie in a target, and no others. */
static bool closed_are_valid(const struct core_pool *pool, const struct stream_heap *stream_heap) {
    uint64_t bytes;

    list_for_each_entry(const struct extent, extent, &stream_heap->extents, link) {
        if (!extent->is_arena && extent->span->is_closed != target_find_locked(pool, extent->memory, &bytes))
            return false;
    }
    return true;
}

bool core_pool_is_valid(struct core_pool *pool) {
    bool valid = true;

    pthread_mutex_lock(&pool->lock);
    size_t count = list_length(&pool->waiting);
    list_for_each_entry(struct stream_heap, stream_heap, &pool->stream_heaps, pool_link) {
        valid = valid && stream_heap_is_valid(stream_heap) && stream_heap->core_pool == pool;
        pthread_mutex_lock(&stream_heap->lock);
        valid = valid && stream_heap->gate_is_closed == (count > 0) && closed_are_valid(pool, stream_heap);
        pthread_mutex_unlock(&stream_heap->lock);
    }
    valid = valid && count == atomic_load(&pool->n_waiting);
    pthread_mutex_unlock(&pool->lock);
    return valid;
}
