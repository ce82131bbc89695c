# A request without a deadline is not given up, although its own process alone has what it waits for.
set(SOURCE daemon/core/long_wait.c)
set(FIND [==[if (request->deadline_ns != NS_FOREVER) {]==])
set(REPLACE [==[if (request->deadline_ns != 0) {]==])
set(EXPECTED "a request waits for ever that no other process can serve")
set(SEED 63)
