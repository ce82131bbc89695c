# A search looks at the oldest slot alone.
set(SOURCE client/core/sender.c)
set(FIND [==[            if (sender->slots[slot].sequence >= limit)
                break;]==])
set(REPLACE [==[            break;]==])
set(EXPECTED "a free slot is found|no element is dropped beside|does not sleep beside a free slot")
