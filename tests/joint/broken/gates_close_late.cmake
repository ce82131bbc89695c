# 2: the gates are closed after the process was searched.
set(SEED 5169)
set(SOURCE client/cache/miss.c)
set(FIND [==[    enter_queue(miss, needed, false);
    return collect_bytes(miss, needed, HEAP_GRANULE);]==])
set(REPLACE [==[    enum acquire_event event = collect_bytes(miss, needed, HEAP_GRANULE);
    enter_queue(miss, needed, false);
    return event;]==])
set(EXPECTED "a request waits, and there is room for it|a request that waits is passed so often and no more")
