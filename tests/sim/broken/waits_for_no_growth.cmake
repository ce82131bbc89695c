# A request that waits for growth only waits on when none is under way.
set(SOURCE daemon/core/waiting.c)
set(FIND [==[bool may_grow = pool->state == POOL_STARTING || !plan_is_settled(pool) ||]==])
set(REPLACE [==[bool may_grow = true ||]==])
set(EXPECTED "a request waits for growth, and none is under way")
