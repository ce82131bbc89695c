# A request for several segments is granted those that are free.
set(SOURCE daemon/core/waiting.c)
set(FIND [==[    if (pool_lacking_bytes(request) > 0 || !wholes_find(&wholes, request))
        return -ENOSPC;]==])
set(REPLACE [==[    if (!wholes_find(&wholes, request) && wholes.count == 0)
        return -ENOSPC;
    request->n_segments = wholes.count;]==])
set(EXPECTED "another number of segments is granted than was asked")
