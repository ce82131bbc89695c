# A request waits on when its deadline has passed.
set(SOURCE daemon/core/waiting.c)
set(FIND [==[if (request->deadline_ns <= now_ns) {
            long_wait_end]==])
set(REPLACE [==[if (request->deadline_ns <= now_ns / 2) {
            long_wait_end]==])
set(EXPECTED "a request waits beyond its deadline")
