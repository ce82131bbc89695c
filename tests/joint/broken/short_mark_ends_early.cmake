# 30: the mark of a short pool ends while the daemon still has it.
set(SOURCE client/cache/shortage.c)
set(FIND [==[    return page != NULL &&]==])
set(REPLACE [==[    return false && page != NULL &&]==])
set(EXPECTED "a client that was asked for a pool has it as short|a request waits, and there is room for it")
