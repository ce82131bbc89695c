# 30: the mark of a short pool ends while the daemon still has it.
set(SOURCE client/cache/shortage.c)
set(FIND [==[    if (is_marked(cache, pool))
        return;
    if (core_pool_waits]==])
set(REPLACE [==[    if (core_pool_waits]==])
set(EXPECTED "a request waits, and there is room for it")
