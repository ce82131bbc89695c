# A request's record does not say until when it waits.
set(SOURCE daemon/core/kept.c)
set(FIND [==[        .deadline_ns = request->deadline_ns,
]==])
set(REPLACE [==[        .deadline_ns = 0,
]==])
set(EXPECTED "a request that waits for growth is given up|a request is given up before its deadline")
