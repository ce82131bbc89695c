# 4: a release into a thread's cache does not look at the mark.
set(SEED 231)
set(SOURCE client/cache/cache.c)
set(FIND [==[if (room == SHORTAGE_ROOMY && own != NULL)]==])
set(REPLACE [==[if (room != SHORTAGE_SHORT && own != NULL)]==])
set(EXPECTED "a request waits, and there is room for it")
