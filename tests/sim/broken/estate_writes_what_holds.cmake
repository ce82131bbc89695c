# The copy that holds is written to.
set(SOURCE daemon/estate/estate.c)
set(FIND [==[    slot->holding = !slot->holding;
    slot->is_damaged = false;
]==])
set(REPLACE [==[    slot->is_damaged = false;
]==])
set(EXPECTED "heirs.c|successor.c")
