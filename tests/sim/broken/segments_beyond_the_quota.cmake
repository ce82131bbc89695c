# A tenant gets segments whatever its quota of them says.
set(SOURCE daemon/core/wait_queue.c)
set(FIND [==[    if (!request->pool->takes_descriptors || left >= wanted)]==])
set(REPLACE [==[    if (!request->pool->takes_descriptors || left + 100 >= wanted)]==])
set(EXPECTED "a tenant gets another segment than its quota allows")
