# A block goes back with its last lease, although a parcel holds it: others get the memory of what was sent.
set(SOURCE daemon/core/lease.c)
set(FIND [==[list_is_empty(&block->leases) && block->n_parcels == 0)]==])
set(REPLACE [==[list_is_empty(&block->leases))]==])
set(EXPECTED "a segment is retired of which something is in use")
