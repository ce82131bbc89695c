# A parcel is not closed when its time is up: a queue that is never read would keep memory for good.
set(SOURCE daemon/core/parcel.c)
set(FIND [==[parcels_next_ns(core) <= now_ns; n++)]==])
set(REPLACE [==[parcels_next_ns(core) <= now_ns / 2; n++)]==])
set(EXPECTED "the ticks of one moment have an end")
