# The segment in which an overdue request waits for room is lent to others.
set(SOURCE daemon/core/wait_queue.c)
set(FIND [==[segment == overdue->target || collects(overdue, segment)]==])
set(REPLACE [==[collects(overdue, segment)]==])
set(EXPECTED "passed by later ones more often")
