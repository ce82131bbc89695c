# 1: the gates are not closed.
set(SOURCE client/core/pool.c)
set(FIND [==[    if (atomic_fetch_add(&pool->n_waiting, 1) == 0)
        set_gates(pool, true);]==])
set(REPLACE [==[    atomic_fetch_add(&pool->n_waiting, 1);]==])
set(EXPECTED "the core of a client is valid|a request waits, and there is room for it")
