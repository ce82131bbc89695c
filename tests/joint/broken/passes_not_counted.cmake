# 28: passes in the process are not counted.
set(SOURCE client/core/target.c)
set(FIND [==[    if (waiter != NULL)
        waiter->passes++;]==])
set(REPLACE [==[    (void)waiter;]==])
set(EXPECTED "a request that waits is passed so often and no more")
set(SEED 263)
