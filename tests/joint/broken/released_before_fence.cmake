# 10: memory is released before the fence is left.
set(SOURCE client/cache/give_back.c)
set(FIND [==[int unheard = hear_unanswered(cache), failed = fence_pending(cache, unheard == 0);]==])
set(REPLACE [==[int unheard = hear_unanswered(cache), failed = 0;]==])
set(EXPECTED "work on memory runs behind all work of the memory's earlier users|nothing is unmapped that enqueued work uses|the GPU is done with memory that no stream orders")
set(SEED 2)
