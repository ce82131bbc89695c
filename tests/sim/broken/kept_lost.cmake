# A session is lost, and its record does not say so: it could use its memory again.
set(SOURCE daemon/core/core_sessions.c)
set(FIND [==[    session->lost_ns = now_ns;
    kept_change(session->core, session->record);
]==])
set(REPLACE [==[    session->lost_ns = now_ns;
]==])
set(EXPECTED "does not agree with the core")
