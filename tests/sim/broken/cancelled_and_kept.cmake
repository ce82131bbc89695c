# A request that its session has cancelled waits on.
set(SOURCE daemon/core/core_leases.c)
set(FIND [==[request_refuse(request, PROTO_E_CANCELLED);]==])
set(REPLACE [==[(void)pool;]==])
set(EXPECTED "a request that was cancelled waits on")
