# A packet is dealt with twice: its step had ended.
set(SOURCE daemon/loop/desk.c)
set(FIND [==[    if (read->step == estate->step)]==])
set(REPLACE [==[    if (read->step + 1 >= estate->step)]==])
set(EXPECTED "a connection does not break|the daemon refuses a name")
