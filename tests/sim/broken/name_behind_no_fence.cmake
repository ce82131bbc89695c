# A reader is not told of the fence.
set(SOURCE daemon/core/edition.c)
set(FIND [==[            .has_fence = parcel->has_fence,]==])
set(REPLACE [==[            .has_fence = false,]==])
set(EXPECTED "a buffer of a name is said to be behind another fence")
