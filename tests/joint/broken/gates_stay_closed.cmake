# The gates stay closed when the last request has left.
set(SOURCE client/core/pool.c)
set(FIND [==[    if (before == 1) /* last: threads with an open gate find all that is free */
        set_gates(pool, false);]==])
set(REPLACE [==[]==])
set(EXPECTED "the core of a client is valid")
