# Memory that becomes idle is no reason for a plan.
set(SOURCE daemon/core/segment.c)
set(FIND [==[    if (is_idle || segment->is_idle || !list_is_empty(&segment->pool->waiters.overdue))
        segment->pool->is_plan_due = true;]==])
set(REPLACE [==[]==])
set(EXPECTED "the first in the queue waits, and")
set(SEED 1600)
