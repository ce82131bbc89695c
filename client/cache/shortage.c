/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/shortage.h"

#include "base/clock.h"
#include "client/cache/cache.h"
#include "client/cache/give_back.h"
#include "client/core/stretch.h"
#include "client/session/session.h"
#include "client/session/submit.h"

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

/* A thread waits, and the pool was not tight for a moment: what threads have kept since then goes to the
 * daemon, which serves it. No other thread would give that back. */
static void tighten_late(struct cache *cache, uint32_t pool) {
    shortage_tighten(cache, pool);
    (void)give_back_pool(cache, pool);
}

void shortage_loosen(struct cache *cache, uint32_t pool) {
    struct core_pool *core_pool = cache_pool(cache, pool);

    if (core_pool_waits(core_pool))
        return;
    atomic_fetch_and(&cache->shortage.tight_pools, ~shortage_bit(pool));
    if (core_pool_waits(core_pool)) /* since then, a thread that found the mark still set */
        tighten_late(cache, pool);
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
    if (core_pool_waits(cache_pool(cache, pool))) /* it found the pool short, and did not tighten it */
        shortage_tighten(cache, pool);
    atomic_fetch_and(&cache->shortage.short_pools, ~shortage_bit(pool));
    if (is_marked(cache, pool)) { /* since then, and its question was answered while the mark was set */
        shortage_begin(cache, pool);
        (void)give_back_pool(cache, pool); /* as in tighten_late() */
    } else if (core_pool_waits(cache_pool(cache, pool)) && !shortage_is_tight(&cache->shortage, pool)) {
        tighten_late(cache, pool);
    }
}

void shortage_end_serving(struct cache *cache, const struct core_serving *serving) {
    if (serving->piece != NULL)
        give_back_piece(cache, serving->piece);
    else if (serving->question_id != 0)
        connection_cancel(&cache->session->connection, serving->question_id);
}

/* Serves a request that waits. False: there is nothing for one. */
static bool serve(struct cache *cache, struct stream_heap *stream_heap) {
    struct core_pool *pool = stream_heap->core_pool;
    struct core_serving serving;

    pthread_mutex_lock(&pool->lock);
    pthread_mutex_lock(&stream_heap->lock);
    bool any = core_pool_serve_locked(pool, stream_heap, clock_now_ns(), &serving);
    pthread_mutex_unlock(&stream_heap->lock);
    pthread_mutex_unlock(&pool->lock);
    if (any)
        shortage_end_serving(cache, &serving);
    return any;
}

/* Finds the stretch around a place that was released, if a request that waits may find room there. In a
 * target that is the request that it is kept for; *ret_is_target. */
static bool find_wanted(struct core_pool *pool, const char *place, struct stretch *ret_stretch,
                        bool *ret_is_target) {
    uint64_t target_bytes;

    target_choose_locked(pool);
    *ret_is_target = false;
    if (!stretch_at_locked(pool, place, ret_stretch))
        return false;
    *ret_is_target = target_find_locked(pool, place, &target_bytes);
    if (*ret_is_target)
        return stretch_bytes(ret_stretch) >= target_bytes;
    return core_pool_waits_for_locked(pool, stretch_bytes(ret_stretch)) ||
           (stretch_is_segment(ret_stretch) && core_pool_waits_for_segments_locked(pool));
}

/* Gives the daemon the stretch around a place that was released, if it is wanted. */
static void offer_stretch(struct cache *cache, uint32_t pool_id, const char *place) {
    struct core_pool *pool = cache_pool(cache, pool_id);
    struct stretch stretch;
    bool is_target;

    pthread_mutex_lock(&pool->lock);
    bool is_wanted = find_wanted(pool, place, &stretch, &is_target);
    pthread_mutex_unlock(&pool->lock);
    if (!is_wanted)
        return;
    give_back_stretch(cache, pool_id, &stretch);
    if (!is_target)
        return;
    pthread_mutex_lock(&pool->lock);
    target_end_locked(pool, place);
    pthread_mutex_unlock(&pool->lock);
}

void shortage_offer(struct cache *cache, struct stream_heap *stream_heap, const char *place) {
    struct core_pool *pool = stream_heap->core_pool;

    while (core_pool_waits(pool) && serve(cache, stream_heap))
        ;
    if (!core_pool_waits(pool))
        return;
    if (place != NULL)
        offer_stretch(cache, stream_heap->pool, place);
    if (core_pool_waits_for_segments(pool))
        give_back_slots(cache, stream_heap);
}
