# Kept messages are sent in another order.
set(SOURCE daemon/data/inheritance.c)
set(FIND [==[        return left->number < right->number ? -1 : 1;]==])
set(REPLACE [==[        return left->number < right->number ? 1 : -1;]==])
set(EXPECTED "a connection does not break")
set(SEED 5389)
