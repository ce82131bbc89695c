# A successor of a daemon that died in its first step looks for what that step would have left.
set(SOURCE daemon/core/inherit.c)
set(FIND [==[    if (estate_is_empty(estate))
        return core_keep(core, estate);
]==])
set(REPLACE [==[]==])
set(EXPECTED "its numbers are missing")
