# Idle segments are not retired for their descriptors.
set(SOURCE daemon/core/plan.c)
set(FIND [==[    if (descriptor_comes(pool->core))
        return;]==])
set(REPLACE [==[    if (pool != NULL)
        return;]==])
set(EXPECTED "the first in the queue waits for a descriptor, and an idle segment has one|the first in the queue waits, and idle segments could be retired for it")
set(SEED 57)
