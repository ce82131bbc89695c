# The tenant's charge for a part of a lease stays when the part is released.
set(SOURCE daemon/core/lease.c)
set(FIND [==[    charge_reduce(&block->charge, size_bytes);
]==])
set(REPLACE [==[]==])
set(EXPECTED "a tenant is charged with something else than it has")
