# A split that was refused leaves the one before it as the last.
set(SOURCE daemon/core/core_leases.c)
set(FIND [==[    session->last_split = (struct proto_lease_name){0};]==])
set(REPLACE [==[]==])
set(EXPECTED "a split that was refused can be shared")
