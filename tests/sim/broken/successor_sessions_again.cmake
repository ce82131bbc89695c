# The records do not say which session was the last: a successor gives its number to another one.
set(SOURCE daemon/core/kept.c)
set(FIND [==[        .session = core->next_session_id,
]==])
set(REPLACE [==[        .session = 0,
]==])
set(EXPECTED "a session's number is given again|a session has no name of its own")
