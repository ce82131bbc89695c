# A successor receives once more by slot, and not in the order of sequences.
set(SOURCE client/core/receiver.c)
set(FIND [==[            receiver->again[sequence - held] = slot;]==])
set(REPLACE [==[            receiver->again[receiver->n_again++] = slot;]==])
set(EXPECTED "what a dead process held is received once more, in order")
