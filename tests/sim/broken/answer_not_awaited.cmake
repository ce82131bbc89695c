# A request for idle memory ends although sessions owe an answer.
set(SOURCE daemon/core/idle_wait.c)
set(FIND [==[pool->reclaim.n_open == 0 || patience_ns(request) <= now_ns]==])
set(REPLACE [==[pool->reclaim.n_open <= 1 || patience_ns(request) <= now_ns]==])
set(EXPECTED "a request for idle memory ends, and a session has not answered")
