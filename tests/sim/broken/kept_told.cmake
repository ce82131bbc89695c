# A session was told to close a segment, and its record does not say so.
set(SOURCE daemon/core/session.c)
set(FIND [==[    session->segments[segment->slot / 64].told |= bit_of(segment);
    change_word(session, segment);
]==])
set(REPLACE [==[    session->segments[segment->slot / 64].told |= bit_of(segment);
]==])
set(EXPECTED "does not agree with the core|a successor has other memory")
