# A session is told to close segments for a request that the pool could grow for.
set(SOURCE daemon/core/plan.c)
set(FIND [==[    uint64_t comes = room + pool->retiring_bytes]==])
set(REPLACE [==[    uint64_t comes = pool->retiring_bytes]==])
set(EXPECTED "a session is to close segments, and the pool could grow")
