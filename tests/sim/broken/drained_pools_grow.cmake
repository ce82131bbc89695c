# A pool that drains goes on growing towards its reserve.
set(SOURCE daemon/core/plan.c)
set(FIND [==[    if (pool->is_draining)
        return;
    if (pool->state]==])
set(REPLACE [==[    if (pool->state]==])
set(EXPECTED "a pool that drains grows")
set(SEED 5)
