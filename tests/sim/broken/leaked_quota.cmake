# What a part of a lease was charged its tenant with stays charged.
set(SOURCE daemon/core/lease.c)
set(FIND [==[    charge_reduce(&block->charge, size_bytes);
]==])
set(REPLACE [==[]==])
set(EXPECTED "a tenant is charged with something else than it has")
