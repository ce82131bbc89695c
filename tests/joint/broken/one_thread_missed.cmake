# 3: emptying the caches misses one thread.
set(SEED 4479)
set(SOURCE client/cache/thread_cache.c)
set(FIND [==[    pthread_mutex_lock(&registry);
    list_for_each_entry(struct thread_cache, cache, caches, link) {
        thread_cache_visit(cache);
        for (struct]==])
set(REPLACE [==[    pthread_mutex_lock(&registry);
    list_for_each_entry(struct thread_cache, cache, caches, link) {
        if (cache->link.next == caches && cache->link.previous != caches)
            continue;
        thread_cache_visit(cache);
        for (struct]==])
set(EXPECTED "a request waits, and there is room for it|the driver is told of streams that there are")
