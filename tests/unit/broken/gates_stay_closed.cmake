# The gates stay closed when the last request has left.
set(SOURCE client/core/pool.c)
set(FIND [==[        set_gates(pool, false);]==])
set(REPLACE [==[        (void)0;]==])
set(TEST client_pool)
set(EXPECTED gates_are_closed_while_a_request_waits)
