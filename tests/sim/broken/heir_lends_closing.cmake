# A successor lends of a segment that a session is about to close.
set(SOURCE daemon/core/heir_segments.c)
set(FIND [==[    if (kept->state != SEGMENT_CLOSING)
        return 0;
]==])
set(REPLACE [==[    if (kept->state != SEGMENT_CLOSING || kept->slot > 0)
        return 0;
]==])
set(EXPECTED "a successor|a session was told to close a segment that is in use")
