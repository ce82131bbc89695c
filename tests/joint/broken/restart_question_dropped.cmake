# A question that is read while the daemon is away is not answered.
set(SOURCE client/cache/purger.c)
set(FIND [==[    purger->is_put_off = asked && is_away;]==])
set(REPLACE [==[    purger->is_put_off = false;]==])
set(EXPECTED "a request waits, and there is room for it")
set(SEED 7002673)
