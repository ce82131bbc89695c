# The process's end is taken for the end of its GPU work, which a forked child keeps going.
set(SOURCE daemon/core/death.c)
set(FIND [==[    switch (death_rule(facts)) {
    case DEATH_BY_END:
        return DEATH_SAFE;
    case DEATH_BY_LISTING:]==])
set(REPLACE [==[    switch (DEATH_BY_END) {
    case DEATH_BY_END:
        return DEATH_SAFE;
    case DEATH_BY_LISTING:]==])
set(EXPECTED "while the GPU work of its last owner's process goes on")
set(SEED 59)
