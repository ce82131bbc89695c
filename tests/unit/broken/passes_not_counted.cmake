# Buffers that other requests get are no passes.
set(SOURCE client/core/target.c)
set(FIND [==[        waiter->passes++;]==])
set(REPLACE [==[        (void)0;]==])
set(TEST target)
set(EXPECTED a_segment_is_kept_for_the_request_that_was_passed)
