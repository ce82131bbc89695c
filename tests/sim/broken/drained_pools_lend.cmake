# A pool that drains grants what is free.
set(SOURCE daemon/core/waiting.c)
set(FIND [==[    if (pool->is_draining) {
        request_refuse(request, PROTO_E_SHUTDOWN);]==])
set(REPLACE [==[    if (pool->is_draining && pool->leased_bytes == 0) {
        request_refuse(request, PROTO_E_SHUTDOWN);]==])
set(EXPECTED "the core is not valid")
set(SEED 21)
