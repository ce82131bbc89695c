# A successor keeps the sequence of an element that was not sent.
set(SOURCE client/core/sender.c)
set(FIND [==[            word_store(&own_slot(sender, slot)->sequence, 0, WORD_PLAIN);]==])
set(REPLACE [==[]==])
set(EXPECTED "sound pages|at rest each slot is free|a free slot is found")
