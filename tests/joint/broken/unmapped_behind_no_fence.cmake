# When the daemon is gone, memory that was released behind a fence is unmapped at once.
set(SOURCE client/session/held.c)
set(FIND [==[bool is_done = fences_are_ready(&session->fences);]==])
set(REPLACE [==[bool is_done = true;]==])
set(EXPECTED "nothing is unmapped that enqueued work uses")
set(SEED 321)
