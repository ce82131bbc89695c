# An overdue request keeps room back that can never suffice for it.
set(SOURCE daemon/core/wait_queue.c)
set(FIND [==[        if (keeping == NULL && keeps_room(overdue))]==])
set(REPLACE [==[        if (keeping == NULL)]==])
set(EXPECTED "a request waits, and the pool could grow")
