# A lease with parts that stayed with it waits for one of their fences only.
set(SOURCE daemon/core/lease.c)
set(FIND [==[    if (lease->is_withheld_by_fences)
        next = ]==])
set(REPLACE [==[    if (false)
        next = ]==])
set(EXPECTED "a part that stayed with its lease is let go before its fence is ready|gets another answer than is right")
set(SEED 2229)
