# A parcel serves one taker more than it was sent to.
set(SOURCE daemon/core/parcel.c)
set(FIND [==[if (--parcel->takers == 0)]==])
set(REPLACE [==[if (parcel->takers-- == 0)]==])
set(EXPECTED "a parcel has ended too early, or not at all")
