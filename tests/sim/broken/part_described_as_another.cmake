# Each part of a row is described as its first one.
set(SOURCE daemon/core/core_leases.c)
set(FIND [==[*ret_segment = range->span->user;]==])
set(REPLACE [==[*ret_segment = lease->block->segment;]==])
set(EXPECTED "a part is described as another")
