# A range of its own stream heap does not serve a request for segments.
set(SOURCE client/core/pool.c)
set(FIND [==[        return waiter->stream_heap == stream_heap && waiter->piece == NULL;]==])
set(REPLACE [==[        return false;]==])
set(TEST client_pool)
set(EXPECTED a_request_for_segments_is_served_in_its_own_stream_heap)
