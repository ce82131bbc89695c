# A spared session is not asked when another session begins to wait.
set(SOURCE daemon/core/wait_queue.c)
set(FIND [==[pool->reclaim.spared != NULL && !request->no_reclaim]==])
set(REPLACE [==[false && !request->no_reclaim]==])
set(EXPECTED "a session is spared that others wait for")
