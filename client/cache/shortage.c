/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/shortage.h"

#include "client/cache/cache.h"
#include "client/cache/give_back.h"
#include "client/client.h"

void shortage_begin(struct gpupool_client *client, uint32_t pool) {
    struct cache *cache = &client->cache;
    uint64_t bit = UINT64_C(1) << (pool - 1);

    if ((atomic_fetch_or(&cache->shortage.pools, bit) & bit) != 0)
        return;
    thread_caches_lock();
    list_for_each(position, &cache->threads) {
        struct thread_cache *thread = container_of(position, struct thread_cache, link);
        thread_cache_visit(thread);
        thread_cache_flush_pool(thread, pool);
        if (thread->last != NULL && thread->last->lane->pool == pool)
            thread->last = NULL;
        thread_cache_part(thread);
    }
    thread_caches_unlock();
}

/* Whether a thread of this process waits for room, or the daemon says that others do. */
static bool is_wanted(const struct gpupool_client *client, uint32_t pool) {
    const struct proto_page *page = client->page.memory;
    return atomic_load(&client->cache.shortage.waiting[pool - 1]) > 0 ||
           (page != NULL &&
            (atomic_load_explicit(&page->shortage.pools, memory_order_acquire) >> (pool - 1) & 1) != 0);
}

void shortage_end_if_over(struct gpupool_client *client, uint32_t pool) {
    if (is_wanted(client, pool))
        return;
    atomic_fetch_and(&client->cache.shortage.pools, ~(UINT64_C(1) << (pool - 1)));
    if (is_wanted(client, pool)) { /* since then, by a thread that found the mark still set */
        shortage_begin(client, pool);
        (void)give_back_pool(client, pool); /* what was released in between: nobody else gives it back */
    }
}
