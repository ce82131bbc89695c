# Any user may revoke what was sent.
set(SOURCE daemon/core/core_leases.c)
set(FIND [==[if (parcel == NULL || parcel_is_held(parcel) || parcel->block->segment->owner->tenant != session->tenant)]==])
set(REPLACE [==[if (parcel == NULL || parcel_is_held(parcel))]==])
set(EXPECTED "a session revokes what it may not, or cannot revoke its own")
