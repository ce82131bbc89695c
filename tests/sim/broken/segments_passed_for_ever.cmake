# A request for whole segments overtakes an overdue one.
set(SOURCE daemon/core/waiting.c)
set(FIND [==[if (!segment->is_orphan && (!wholes->is_behind || !wait_queue_is_kept(wholes->request, segment)))]==])
set(REPLACE [==[]==])
set(EXPECTED "passed by later ones more often")
set(SEED 33)
