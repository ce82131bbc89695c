# A message that the socket did not take is no record yet when another one takes its place on the desk.
set(SOURCE daemon/data/outbox.c)
set(FIND [==[    if (at_once)
        desk_end_step(outbox->desk); /*]==])
set(REPLACE [==[    if (false)
        desk_end_step(outbox->desk); /*]==])
set(EXPECTED "a client that has given back everything holds nothing|a request waits, and there is room for it")
set(SEED 20819)
