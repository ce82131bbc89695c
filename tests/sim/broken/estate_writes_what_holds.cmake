# The copy that holds is written to.
set(SOURCE daemon/estate/estate.c)
set(FIND [==[    slot->holding = slot->damaged == 0 || slot->damaged == 3 ? !slot->holding : slot->damaged == 1;
]==])
set(REPLACE [==[]==])
set(EXPECTED "heirs.c|successor.c")
