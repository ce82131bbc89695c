# A lease has a generation that a successor gives to another one.
set(SOURCE daemon/core/lease.c)
set(FIND [==[    lease_table_insert(&core->leases, lease);
    kept_number(core);
]==])
set(REPLACE [==[    lease_table_insert(&core->leases, lease);
]==])
set(EXPECTED "does not agree with the core|a generation is used again")
