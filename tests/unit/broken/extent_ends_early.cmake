# An extent ends while a part of it has no fence.
set(SOURCE client/core/stream_heap.c)
set(FIND [==[extent->n_out == 0 && ]==])
set(REPLACE [==[]==])
set(TEST stream_heap)
set(EXPECTED a_part_whose_fence_cannot_be_left_is_free_again)
