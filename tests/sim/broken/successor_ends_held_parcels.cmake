# The record of a parcel that is held does not say how long it may take then.
set(SOURCE daemon/core/kept.c)
set(FIND [==[        .lifetime_ns = parcel->lifetime_ns,
]==])
set(REPLACE [==[        .lifetime_ns = 0,
]==])
set(EXPECTED "a parcel has ended too early")
