# The effects of a packet end their step before the answer is on the desk.
set(SOURCE daemon/loop/desk.c)
set(FIND [==[    begin(&desk->memory->sent, session, 0);
    return]==])
set(REPLACE [==[    desk_end_step(desk);
    begin(&desk->memory->sent, session, 0);
    return]==])
set(EXPECTED "a client that has given back everything holds nothing|a request waits, and there is room for it")
