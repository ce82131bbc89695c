# A successor whose pools are smaller has requests wait for what these can never have.
set(SOURCE daemon/core/inherit.c)
set(FIND [==[        pool_refuse(core->pools[i], pool_segment_max(core->pools[i]) + 1, PROTO_E_TOO_LARGE);
]==])
set(REPLACE [==[        (void)core->pools[i];
]==])
set(EXPECTED "a request waits that can never be served")
