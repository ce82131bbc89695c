/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/shortage.h"

#include <limits.h>

#include "base/clock.h"
#include "client/cache/cache.h"
#include "client/cache/give_back.h"
#include "client/cache/stretch.h"
#include "client/core/deferred.h"
#include "client/session/session.h"

/* An answer of the daemon takes less than that (100 us on a busy machine). */
#define OFFER_NS (2 * NS_PER_MS)

void shortage_init(struct shortage *shortage) {
    pthread_mutex_init(&shortage->lock, NULL);
    list_init(&shortage->waiters);
}

void shortage_deinit(struct shortage *shortage) {
    pthread_mutex_destroy(&shortage->lock);
}

/* Sets a mark, and has the threads see it. */
static void set(struct cache *cache, _Atomic uint64_t *marks, uint32_t pool) {
    if ((atomic_fetch_or(marks, shortage_bit(pool)) & shortage_bit(pool)) == 0)
        thread_caches_flush_pool(&cache->threads, pool);
}

void shortage_tighten(struct cache *cache, uint32_t pool) {
    set(cache, &cache->shortage.tight_pools, pool);
}

void shortage_begin(struct cache *cache, uint32_t pool) {
    set(cache, &cache->shortage.short_pools, pool);
}

void shortage_loosen(struct cache *cache, uint32_t pool) {
    struct shortage *shortage = &cache->shortage;

    if (atomic_load(&shortage->waiting) > 0)
        return;
    atomic_fetch_and(&shortage->tight_pools, ~shortage_bit(pool));
    if (atomic_load(&shortage->waiting) > 0) /* since then, by a thread that found the mark still set */
        shortage_tighten(cache, pool);
}

/* Whether the daemon says that others wait. */
static bool is_marked(const struct cache *cache, uint32_t pool) {
    const struct proto_page *page = cache->session->page.memory;
    return page != NULL &&
           (atomic_load_explicit(&page->shortage.pools, memory_order_acquire) & shortage_bit(pool)) != 0;
}

void shortage_end_if_over(struct cache *cache, uint32_t pool) {
    if (is_marked(cache, pool))
        return;
    atomic_fetch_and(&cache->shortage.short_pools, ~shortage_bit(pool));
    if (is_marked(cache, pool)) { /* since then, and its question was answered while the mark was set */
        shortage_begin(cache, pool);
        (void)give_back_pool(cache,
                             pool); /* memory that was released in between: no other thread gives it back */
    }
}

void shortage_enter(struct shortage *shortage, struct waiting_request *waiter, uint32_t pool,
                    uint64_t size_bytes, bool is_of_segments) {
    *waiter =
        (struct waiting_request){.pool = pool, .size_bytes = size_bytes, .is_of_segments = is_of_segments};
    pthread_mutex_lock(&shortage->lock);
    list_append(&shortage->waiters, &waiter->link);
    atomic_fetch_add(&shortage->waiting, 1);
    pthread_mutex_unlock(&shortage->lock);
}

void shortage_leave(struct cache *cache, struct waiting_request *waiter) {
    struct shortage *shortage = &cache->shortage;

    pthread_mutex_lock(&shortage->lock);
    list_remove(&waiter->link);
    atomic_fetch_sub(&shortage->waiting, 1);
    list_for_each_entry(struct waiting_request, other, &shortage->waiters, link) {
        if (waiter->offered_ns == 0 && other->pool == waiter->pool)
            other->offered_ns = 0; /* it may have been served by what was meant for this one */
    }
    pthread_mutex_unlock(&shortage->lock);
    target_open(cache, waiter->pool, &waiter->target);
}

/* Whether a thread is to be offered a range. A range that was offered a while ago has gone to another
 * process. */
static bool is_open(const struct waiting_request *waiter, const struct stream_heap *stream_heap) {
    return waiter->pool == stream_heap->pool &&
           (waiter->offered_ns == 0 || clock_now_ns() - waiter->offered_ns > OFFER_NS);
}

/* Takes a range for the first thread that one is free for. NULL: none. */
static struct piece *take_for_waiter(struct shortage *shortage, struct stream_heap *stream_heap) {
    struct piece *piece = NULL;

    pthread_mutex_lock(&stream_heap->lock);
    if (stream_heap->deferred_bytes > 0)
        deferred_settle_locked(stream_heap, UINT_MAX);
    pthread_mutex_lock(&shortage->lock);
    list_for_each_entry(struct waiting_request, waiter, &shortage->waiters, link) {
        if (is_open(waiter, stream_heap) &&
            stream_heap_take_locked(stream_heap, waiter->size_bytes, true, &piece) == 0) {
            waiter->offered_ns = clock_now_ns();
            break;
        }
    }
    pthread_mutex_unlock(&shortage->lock);
    pthread_mutex_unlock(&stream_heap->lock);
    return piece;
}

/* Whether a request waits in the pool that needs no more bytes, or that waits for segments. */
static bool waits(struct shortage *shortage, uint32_t pool, uint64_t most_bytes, bool is_of_segments) {
    bool found = false;

    if (atomic_load(&shortage->waiting) == 0)
        return false;
    pthread_mutex_lock(&shortage->lock);
    list_for_each_entry(const struct waiting_request, waiter, &shortage->waiters, link) {
        found = found || (waiter->pool == pool &&
                          (is_of_segments ? waiter->is_of_segments : waiter->size_bytes <= most_bytes));
    }
    pthread_mutex_unlock(&shortage->lock);
    return found;
}

bool shortage_has_waiter(struct shortage *shortage, uint32_t pool) {
    return waits(shortage, pool, UINT64_MAX, false);
}

/* Gives the daemon the stretch around a place that was released, if a request that waits may find room there.
 * In a target that is the request that it is kept for. */
static void offer_stretch(struct cache *cache, uint32_t pool, const char *place) {
    struct stretch stretch;
    uint64_t target_bytes;
    bool is_wanted = false;

    pthread_mutex_lock(&cache->stream_heaps_lock);
    bool found = stretch_at(cache, pool, place, &stretch);
    pthread_mutex_unlock(&cache->stream_heaps_lock);
    bool is_target = found && target_find(&cache->shortage, pool, place, &target_bytes);
    if (is_target)
        is_wanted = stretch_bytes(&stretch) >= target_bytes;
    else if (found)
        is_wanted = waits(&cache->shortage, pool, stretch_bytes(&stretch), false) ||
                    (stretch_is_segment(&stretch) && waits(&cache->shortage, pool, 0, true));
    if (is_wanted)
        give_back_stretch(cache, pool, &stretch);
    if (is_wanted && is_target)
        target_end(cache, pool, place);
}

void shortage_offer(struct cache *cache, struct stream_heap *stream_heap, const char *place) {
    struct shortage *shortage = &cache->shortage;
    struct piece *piece;

    while (atomic_load(&shortage->waiting) > 0 && (piece = take_for_waiter(shortage, stream_heap)) != NULL)
        give_back_piece(cache, piece);
    if (place != NULL && shortage_has_waiter(shortage, stream_heap->pool)) {
        target_choose(cache, stream_heap->pool);
        offer_stretch(cache, stream_heap->pool, place);
    }
    if (waits(shortage, stream_heap->pool, 0, true))
        give_back_slots(cache, stream_heap);
}
