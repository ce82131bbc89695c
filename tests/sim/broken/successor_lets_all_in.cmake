# In a successor each session may use each pool.
set(SOURCE daemon/core/heir_sessions.c)
set(FIND [==[    session->pools_allowed = policy_pools(heir->core->policy, &session->peer);
]==])
set(REPLACE [==[    session->pools_allowed = UINT64_MAX;
]==])
set(EXPECTED "that it may not use")
