# A parcel was taken, and its record does not say so: it could be taken once more.
set(SOURCE daemon/core/parcel.c)
set(FIND [==[    kept_change(core, parcel->record);
    if (--parcel->takers == 0)
]==])
set(REPLACE [==[    if (--parcel->takers == 0)
]==])
set(EXPECTED "does not agree with the core")
