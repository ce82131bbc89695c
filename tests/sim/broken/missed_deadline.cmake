# A request waits on when its deadline has passed.
set(SOURCE daemon/pool/pool.c)
set(FIND [==[if (request->deadline_ns <= now_ns) {
                request_refuse]==])
set(REPLACE [==[if (request->deadline_ns <= now_ns / 2) {
                request_refuse]==])
set(EXPECTED "a request waits beyond its deadline")
