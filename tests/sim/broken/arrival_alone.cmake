# The oldest request is served first between tenants, too, however many bytes its tenant has.
set(SOURCE daemon/core/wait_queue.c)
set(FIND [==[    return bytes != other_bytes ? bytes < other_bytes : first->number < other->number;
]==])
set(REPLACE [==[    (void)bytes, (void)other_bytes;
    return first->number < other->number;
]==])
set(EXPECTED "served before one that has fewer bytes")
set(SEED 24)
