# A session is told to close a segment that others have mapped as well.
set(SOURCE daemon/pool/closing.c)
set(FIND [==[segment->span->taken_bytes == 0 && segment->mappers == 1 &&]==])
set(REPLACE [==[segment->span->taken_bytes == 0 &&]==])
set(EXPECTED "a session is to close a segment that it does not have alone")
