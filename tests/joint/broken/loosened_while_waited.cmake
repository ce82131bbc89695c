# 32: a release that is not what a request waits for clears the mark.
set(SEED 477)
set(SOURCE client/cache/shortage.c)
set(FIND [==[    if (core_pool_waits(core_pool))
        return;
    atomic_fetch_and(&cache->shortage.tight_pools, ~shortage_bit(pool));
    if (core_pool_waits(core_pool)) /* since then, a thread that found the mark still set */
        tighten_late(cache, pool);]==])
set(REPLACE [==[    (void)core_pool;
    atomic_fetch_and(&cache->shortage.tight_pools, ~shortage_bit(pool));]==])
set(EXPECTED "a request waits, and there is room for it")
