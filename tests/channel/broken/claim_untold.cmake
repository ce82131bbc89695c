# A sleeping producer is not woken when a claim is given up.
set(SOURCE client/core/receiver.c)
set(FIND [==[        *ret_wakes |= count_release(receiver);]==])
set(REPLACE [==[        (void)count_release(receiver);]==])
set(EXPECTED "a change of a word wakes its sleepers|does not sleep beside a free slot")
