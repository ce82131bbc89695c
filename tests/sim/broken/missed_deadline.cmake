# A request waits on when its deadline has passed.
set(SOURCE daemon/core/waiting.c)
set(FIND [==[if (request->deadline_ns <= now_ns) {
            request_time_out]==])
set(REPLACE [==[if (request->deadline_ns <= now_ns / 2) {
            request_time_out]==])
set(EXPECTED "a request waits beyond its deadline")
