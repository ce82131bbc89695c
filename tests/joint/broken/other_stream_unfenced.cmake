# A release on another stream leaves no fence.
set(SOURCE client/api/buffer.c)
set(FIND [==[return r < 0 || gpu == NULL ? r : fences_enqueue(&client->session, device, stream, ret_fence);]==])
set(REPLACE [==[return r < 0 || gpu == NULL ? r : 0;]==])
set(EXPECTED "work on memory runs behind all work of the memory's earlier users|the GPU is done with memory that no stream orders|nothing is unmapped that enqueued work uses")
