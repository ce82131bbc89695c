# A request for whole segments overtakes an overdue one.
set(SOURCE daemon/core/waiting.c)
set(FIND [==[           !(wait_queue_is_behind(request) && wait_queue_is_reserved(request, segment));]==])
set(REPLACE [==[           true;]==])
set(EXPECTED "passed by later ones more often")
