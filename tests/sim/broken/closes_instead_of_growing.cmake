# A session is told to close segments for a request that the pool could grow for.
set(SOURCE daemon/core/plan.c)
set(FIND [==[        room + pool->retiring_bytes + pool->closing_bytes - pool->kept_bytes]==])
set(REPLACE [==[        pool->retiring_bytes + pool->closing_bytes - pool->kept_bytes]==])
set(EXPECTED "a session is to close segments, and the pool could grow")
