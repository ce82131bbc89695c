# A session is told to close segments for others although no request waits.
set(SOURCE daemon/core/plan.c)
set(FIND [==[return plan_missing_for(pool, pool->reclaim.refused_bytes);]==])
set(REPLACE [==[return plan_missing_for(pool, pool->limit_bytes);]==])
set(EXPECTED "a session is to close what nobody waits for")
