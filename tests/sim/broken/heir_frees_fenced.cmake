# A successor lends memory that work before a fence still uses.
set(SOURCE daemon/core/heir_leases.c)
set(FIND [==[    if (kept->fence_word == 0)
        return 0;
]==])
set(REPLACE [==[    if (kept->fence_word != 1)
        return 0;
]==])
set(EXPECTED "a successor")
