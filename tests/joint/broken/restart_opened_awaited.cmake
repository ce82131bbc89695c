# The daemon waits for an OPENED that was said to the one before.
set(SOURCE daemon/data/inheritance.c)
set(FIND [==[        outbox_opened(outbox);
    int r]==])
set(REPLACE [==[        (void)outbox;
    int r]==])
set(EXPECTED "a request waits, and there is room for it")
set(SEED 621)
