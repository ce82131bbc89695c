# A session is to close a segment that it offered, which another session has mapped.
set(SOURCE daemon/core/closing.c)
set(FIND [==[        .mappers_max = 1,]==])
set(REPLACE [==[        .mappers_max = UINT_MAX,]==])
set(EXPECTED "a session is to close a segment that others have mapped")
set(SEED 54)
