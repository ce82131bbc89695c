# A request for idle memory ends although processes were told to close segments.
set(SOURCE daemon/core/idle_wait.c)
set(FIND [==[pool->closing_bytes > 0 ||]==])
set(REPLACE [==[]==])
set(EXPECTED "a request for idle memory ends while segments are being closed")
set(SEED 40)
