# A message that may have been sent is not sent again.
set(SOURCE daemon/loop/desk.c)
set(FIND [==[if (sent == NULL || sent->step == 0 ||]==])
set(REPLACE [==[if (true || sent->step == 0 ||]==])
set(EXPECTED "a client that has given back everything holds nothing|a request waits, and there is room for it")
set(SEED 39)
