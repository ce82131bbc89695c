# The target of a request that has left stays closed for others.
set(SOURCE client/core/pool.c)
set(FIND [==[    target_open_locked(pool, &waiter->target);]==])
set(REPLACE [==[    (void)waiter;]==])
set(TEST target)
set(EXPECTED a_segment_is_kept_for_the_request_that_was_passed)
