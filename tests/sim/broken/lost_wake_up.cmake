# After a release nobody looks at those who wait.
set(SOURCE daemon/core/core.c)
set(FIND [==[    if (pool != NULL)
        pool_serve(pool, now_ns);
    return 0;
]==])
set(REPLACE [==[    return 0;
]==])
set(EXPECTED "a request waits, and")
