# A successor does not receive once more what its predecessor held.
set(SOURCE client/core/receiver.c)
set(FIND [==[    receiver->n_again = n_held;]==])
set(REPLACE [==[    receiver->n_again = 0;]==])
set(EXPECTED "what a dead process held is received once more")
