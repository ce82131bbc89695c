# Idle segments that a request for whole segments could take count as room for those that it lacks.
set(SOURCE daemon/core/plan.c)
set(FIND [==[    return need > room && need > room + pool->retiring_bytes + pool_idle_bytes(pool, first);]==])
set(REPLACE [==[    return need > room && need > room + pool->retiring_bytes + pool_idle_bytes(pool, NULL);]==])
set(EXPECTED "nobody will be asked for what it keeps idle")
set(SEED 156)
