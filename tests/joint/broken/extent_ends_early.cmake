# 15: an extent ends while a part of it has no fence.
set(SOURCE client/core/stream_heap.c)
set(FIND [==[if (!extent->is_arena && extent->n_out == 0 && extent->absent_bytes == extent->size_bytes)]==])
set(REPLACE [==[if (!extent->is_arena && extent->absent_bytes == extent->size_bytes)]==])
set(EXPECTED "broke off|a buffer has bytes that the daemon lends its client|a client that has given back everything holds nothing|the core of a client is valid")
