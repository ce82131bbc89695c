# 27: a request whose time is over counts as one that waits.
set(SOURCE client/core/pool.c)
set(FIND [==[    unsigned before = atomic_fetch_sub(&pool->n_waiting, 1);]==])
set(REPLACE [==[    unsigned before = 2;]==])
set(EXPECTED "the core of a client is valid")
