# Memory whose fence cannot be left does not come back.
set(SOURCE client/core/stream_heap.c)
set(FIND [==[    give_absent(extent, part->offset_bytes, part->offset_bytes + part->size_bytes);]==])
set(REPLACE [==[    (void)part;]==])
set(TEST stream_heap)
set(EXPECTED a_part_whose_fence_cannot_be_left_is_free_again)
