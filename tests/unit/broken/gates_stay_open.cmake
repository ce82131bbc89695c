# The gates of a pool's stream heaps are not closed when a request begins to wait.
set(SOURCE client/core/pool.c)
set(FIND [==[        set_gates(pool, true);]==])
set(REPLACE [==[        (void)0;]==])
set(TEST client_pool)
set(EXPECTED gates_are_closed_while_a_request_waits)
