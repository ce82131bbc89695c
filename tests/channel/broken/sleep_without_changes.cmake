# A sleeping producer does not see that a place is left.
set(SOURCE client/core/sender.c)
set(FIND [==[    channel_sleep_add(ret_sleep, &view->roll->changes);
    for]==])
set(REPLACE [==[    for]==])
set(EXPECTED "does not sleep beside a free slot")
