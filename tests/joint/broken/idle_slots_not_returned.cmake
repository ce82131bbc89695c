# 24: idle slots that were taken are not returned where no fence can be left.
set(SEED 106842)
set(SOURCE client/core/arena_plan.c)
set(FIND [==[        arena_return_locked(plan->arena, filling->from);
        filling->from]==])
set(REPLACE [==[        filling->from]==])
set(EXPECTED "the core of a client is valid|a client that has given back everything holds nothing")
