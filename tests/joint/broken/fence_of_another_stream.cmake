# Parts of several stream heaps go behind the fence of one.
set(SOURCE client/cache/give_back.c)
set(FIND [==[if (may_leave && !part.has_fence && part.stream_heap != fenced) {]==])
set(REPLACE [==[if (may_leave && !part.has_fence && fenced == NULL) {]==])
set(EXPECTED "work on memory runs behind all work of the memory's earlier users|nothing is unmapped that enqueued work uses|the GPU is done with memory that no stream orders")
set(SEED 9)
