# A successor receives once more what its predecessor had released.
set(SOURCE client/core/receiver.c)
set(FIND [==[taken >= receiver->begins && taken != released]==])
set(REPLACE [==[taken >= receiver->begins]==])
set(EXPECTED "sound pages|what a dead process held is received once more")
