# The segments of a tenant of a dropped scope stay with it.
set(SOURCE daemon/core/core_sessions.c)
set(FIND [==[    pool_retire_all_of(tenant);
]==])
set(REPLACE [==[]==])
set(EXPECTED "the core is not valid")
set(SEED 35)
