# Deferred pieces whose fences are ready do not serve a request that waits.
set(SOURCE client/core/pool.c)
set(FIND [==[        deferred_settle_locked(stream_heap, UINT_MAX);]==])
set(REPLACE [==[        (void)0;]==])
set(TEST client_pool)
set(EXPECTED deferred_memory_serves_when_its_fence_is_ready)
