# Any user may revoke what was sent.
set(SOURCE daemon/core/core_leases.c)
set(FIND [==[if (parcel == NULL || parcel->edition != NULL || parcel->block->segment->owner->tenant != session->tenant)]==])
set(REPLACE [==[if (parcel == NULL || parcel->edition != NULL)]==])
set(EXPECTED "a session revokes what it may not, or cannot revoke its own")
