# A request for several segments is granted those that are free.
set(SOURCE daemon/core/waiting.c)
set(FIND [==[    if (found < request->n_segments)
        return -ENOSPC;]==])
set(REPLACE [==[    if (found == 0)
        return -ENOSPC;
    if (found < request->n_segments)
        request->n_segments = found;]==])
set(EXPECTED "another number of segments is granted than was asked")
