# After a release nobody looks at those who wait.
set(SOURCE daemon/core/lease.c)
set(FIND [==[        pool_mark_ready(segment->pool);
]==])
set(REPLACE [==[]==])
set(EXPECTED "a request waits, and")
