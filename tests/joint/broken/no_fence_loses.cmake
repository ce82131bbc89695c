# 14: memory whose fence cannot be left is not returned.
set(SOURCE client/core/stream_heap.c)
set(FIND [==[    assert(extent->n_out > 0);
    extent->n_out--;
    give_absent(extent, part->offset_bytes, part->offset_bytes + part->size_bytes);]==])
set(REPLACE [==[    extent->n_out--;
    extent_end_if_gone(extent);]==])
set(EXPECTED "a client that has given back everything holds nothing|the core of a client is valid")
set(SEED 19)
