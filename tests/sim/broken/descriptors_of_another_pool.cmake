# A pool takes the descriptors that are kept for others.
set(SOURCE daemon/core/pool.c)
set(FIND [==[        taken += is_kept ? share : descriptors;]==])
set(REPLACE [==[        taken += descriptors;]==])
set(EXPECTED "a pool takes a descriptor that is kept, or that there is not")
set(SEED 140)
