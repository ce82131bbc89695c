# Memory that a tenant gave back is no reason to try its requests again.
set(SOURCE daemon/core/segment.c)
set(FIND [==[    owner->waiting.tried = owner->waiting.weighed = owner->held.tried = 0;]==])
set(REPLACE [==[]==])
set(EXPECTED "waits, and|the core is not valid")
set(SEED 24)
