# A segment that a session offered and closed goes back to the driver.
set(SOURCE daemon/core/closing.c)
set(FIND [==[        set_keeper(segment, session->tenant);]==])
set(REPLACE [==[]==])
set(EXPECTED "a segment that was offered goes back to the driver|a successor has another segment closed")
