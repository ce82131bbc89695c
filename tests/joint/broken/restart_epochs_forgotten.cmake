# A successor begins the epochs of a board anew.
set(SOURCE daemon/data/board.c)
set(FIND [==[    slot->epoch = epoch;]==])
set(REPLACE [==[    slot->epoch = 0;]==])
set(EXPECTED "a record of kind 19 agrees")
