# A process that the daemon cannot look into is taken for one that holds no descriptors.
set(SOURCE daemon/core/death.c)
set(FIND [==[    case HOLDERS_HIDDEN:
        return DEATH_HIDDEN;]==])
set(REPLACE [==[    case HOLDERS_HIDDEN:
        return DEATH_SAFE;]==])
set(EXPECTED "while the GPU work of its last owner's process goes on")
set(SEED 972)
