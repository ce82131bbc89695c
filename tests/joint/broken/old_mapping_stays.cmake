# 19: an old mapping is not taken away.
set(SOURCE client/core/arena.c)
set(FIND [==[if (slot->maps != 0 && !is_listed)]==])
set(REPLACE [==[if (slot->maps != 0 && !is_listed && i > from)]==])
set(EXPECTED "an address maps one segment")
set(SEED 35)
