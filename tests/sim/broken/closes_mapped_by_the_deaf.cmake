# A session is told to close a segment that another session has mapped, which cannot be told.
set(SOURCE daemon/core/closing.c)
set(FIND [==[segment->deaf_mappers == search->deaf_mappers]==])
set(REPLACE [==[segment->deaf_mappers <= segment->mappers]==])
set(EXPECTED "that another one has mapped which cannot be asked")
set(SEED 42)
