# A lost session's memory is lent again at once, whatever its process still does.
set(SOURCE daemon/core/death.c)
set(FIND [==[return DEATH_AWAITS_PROCESS;
    switch]==])
set(REPLACE [==[return DEATH_SAFE;
    switch]==])
set(EXPECTED "while the GPU work of its last owner's process goes on")
