# A request waits on when its deadline has passed.
set(SOURCE daemon/core/waiting.c)
set(FIND [==[is_due(request = wait_queue_next_due(pool), now_ns); any = true]==])
set(REPLACE [==[is_due(request = wait_queue_next_due(pool), now_ns / 2); any = true]==])
set(EXPECTED "a request waits beyond its deadline")
