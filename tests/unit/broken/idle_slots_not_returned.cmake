# Idle slots that were taken stay taken where no fence can be left.
set(SOURCE client/core/arena_plan.c)
set(FIND [==[        arena_return_locked(plan->arena, filling->from);]==])
set(REPLACE [==[        (void)0;]==])
set(TEST arena_plan)
set(EXPECTED an_idle_segment_stays_where_no_fence_can_be_left)
