# 18: an old mapping goes before its fence is ready.
set(SEED 102)
set(SOURCE client/core/arena_place.c)
set(FIND [==[    return slot->maps == 0 ||
           (!slot->has_fences && fence_array_has(arena->extent.stream_heap->fences, slot->fence));]==])
set(REPLACE [==[    return true;]==])
set(EXPECTED "nothing is unmapped that enqueued work uses")
