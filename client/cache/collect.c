/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/collect.h"

#include "client/cache/cache.h"

void cache_collect(struct cache *cache, const struct thread_cache *except,
                   const struct stream_heap *stream_heap, bool idle_only) {
    thread_caches_lock();
    list_for_each_entry(struct thread_cache, thread, &cache->threads, link) {
        if (thread == except)
            continue;
        thread_cache_visit(thread);
        thread_cache_flush(thread, stream_heap, idle_only);
        thread_cache_part(thread);
    }
    thread_caches_unlock();
}
