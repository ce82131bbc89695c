# Also between tenants whoever came first comes first, whatever its tenant has already.
set(SOURCE daemon/core/wait_queue.c)
set(FIND [==[    if (bytes != other_bytes)
        return bytes < other_bytes;
]==])
set(REPLACE [==[]==])
set(EXPECTED "served before one that has fewer bytes")
