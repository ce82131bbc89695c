# A release does not mark its pool as ready, so the pool serves no waiting request.
set(SOURCE daemon/core/lease.c)
set(FIND [==[        pool_wake(segment->pool);
]==])
set(REPLACE [==[]==])
set(EXPECTED "a request waits, and|the core is not valid")
