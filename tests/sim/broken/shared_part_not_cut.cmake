# A part that is shared stays in the lease that it was split from.
set(SOURCE daemon/core/core_leases.c)
set(FIND [==[        lease_end_split(&part, own);]==])
set(REPLACE [==[        (void)own;]==])
set(EXPECTED "leased bytes are counted wrong|the core is not valid")
