# A session is believed to have closed what it was not told to close.
set(SOURCE daemon/core/closing.c)
set(FIND [==[segment->state != SEGMENT_CLOSING || !session_has_mapped(session, segment) ||
        !session_was_told(session, segment))]==])
set(REPLACE [==[!session_has_mapped(session, segment))]==])
set(EXPECTED "a session closes what it was not told to")
