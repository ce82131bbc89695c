# A token is enough for another tenant.
set(SOURCE daemon/core/core_leases.c)
set(FIND [==[block == NULL || block->segment->owner->tenant != session->tenant ||]==])
set(REPLACE [==[block == NULL ||]==])
set(EXPECTED "a session attaches to what it may not know")
