# An edition stays whose publisher died before it had written the contents.
set(SOURCE daemon/core/edition.c)
set(FIND [==[    return is_whole;]==])
set(REPLACE [==[    return true;]==])
set(EXPECTED "a parcel has ended too early, or not at all")
