# The oldest request is served first between tenants, too, however many bytes its tenant has.
set(SOURCE daemon/core/wait_queue.c)
set(FIND [==[    if (bytes != other_bytes)
        return bytes < other_bytes;
]==])
set(REPLACE [==[]==])
set(EXPECTED "served before one that has fewer bytes")
