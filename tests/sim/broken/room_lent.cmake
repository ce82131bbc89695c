# An overdue request keeps no room back, although that could come together.
set(SOURCE daemon/core/wait_queue.c)
set(FIND [==[    return segment_bytes_for(overdue->least_bytes) <= attainable_bytes(overdue->pool);]==])
set(REPLACE [==[    return false && overdue != NULL && attainable_bytes(overdue->pool) > 0;]==])
set(EXPECTED "passed by later ones more often")
