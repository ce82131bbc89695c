# A successor tells readers that the contents are there.
set(SOURCE daemon/core/heir_names.c)
set(FIND [==[        .has_fence = kept->has_fence != 0,]==])
set(REPLACE [==[        .has_fence = false,]==])
set(EXPECTED "a buffer of a name is said to be behind another fence|a successor's records do not agree with its core")
