# A session is told to close segments for others although no request waits.
set(SOURCE daemon/core/plan.c)
set(FIND [==[first != NULL ? first->least_bytes : pool->reclaim.refused_bytes]==])
set(REPLACE [==[first != NULL ? first->least_bytes : pool->limit_bytes]==])
set(EXPECTED "a session is to close what nobody waits for")
