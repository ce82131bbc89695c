# Who cannot be looked into is taken for nobody.
set(SOURCE daemon/core/death.c)
set(FIND [==[    case HOLDERS_HIDDEN:
        return DEATH_HIDDEN;]==])
set(REPLACE [==[    case HOLDERS_HIDDEN:
        return DEATH_SAFE;]==])
set(EXPECTED "while the GPU work of its last owner's process goes on")
