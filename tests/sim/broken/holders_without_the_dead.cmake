# Of those that have a shared block, the dead are left out: others would write while their work goes on.
set(SOURCE daemon/core/core_leases.c)
set(FIND [==[block->live + block->quarantined + block->n_parcels - 1;]==])
set(REPLACE [==[block->live + block->n_parcels - 1;]==])
set(EXPECTED "a block is said to have other holders")
set(SEED 29)
