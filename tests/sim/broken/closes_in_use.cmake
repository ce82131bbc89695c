# A session is told to close a segment in which memory waits behind a fence, or is lent.
set(SOURCE daemon/pool/closing.c)
set(FIND [==[segment->state == SEGMENT_ASSIGNED && segment->span->taken_bytes == 0 &&]==])
set(REPLACE [==[segment->state == SEGMENT_ASSIGNED &&]==])
set(EXPECTED "a session is to close a segment of which something is in use")
