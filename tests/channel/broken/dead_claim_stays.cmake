# A successor keeps the claim of an element that was not received.
set(SOURCE client/core/receiver.c)
set(FIND [==[            word_store(&mark->taken, 0, WORD_ORDERED);
            is_cleared = true;]==])
set(REPLACE [==[            (void)is_cleared;]==])
set(EXPECTED "a free slot is found|no element is dropped beside a free slot|does not sleep beside a free slot")
