# The records do not say which generation was given last: a successor gives some again.
set(SOURCE daemon/core/kept.c)
set(FIND [==[        .generation = core->leases.next_generation,
]==])
set(REPLACE [==[        .generation = 0,
]==])
set(EXPECTED "a generation is used again|a lease has a name that was never given|a name has no text, or a number that was never given|what is published has impossible numbers|a generation is published again")
