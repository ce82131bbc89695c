# A successor lets a parcel be taken by one more.
set(SOURCE daemon/core/heir_requests.c)
set(FIND [==[        .takers = kept->takers,
]==])
set(REPLACE [==[        .takers = kept->takers + 1,
]==])
set(EXPECTED "a successor|a parcel has ended too early, or not at all")
