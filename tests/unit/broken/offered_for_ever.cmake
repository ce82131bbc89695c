# A request is offered one range after another, all for the same need.
set(SOURCE client/core/pool.c)
set(FIND [==[            waiter->offered_ns = now_ns;]==])
set(REPLACE [==[            (void)0;]==])
set(TEST client_pool)
set(EXPECTED the_first_request_that_fits_is_served)
