# A successor with another policy has requests wait for pools that their users may not use.
set(SOURCE daemon/core/inherit.c)
set(FIND [==[        session_refuse_forbidden(session);
]==])
set(REPLACE [==[        (void)session;
]==])
set(EXPECTED "a session gets of a pool that it may not use")
