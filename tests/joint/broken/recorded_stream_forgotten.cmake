# A release leaves no fence on the streams that were recorded.
set(SOURCE client/api/recorded.c)
set(FIND [==[        r = fence_stream(client, stream, &fences[filled]);
        filled++;]==])
set(REPLACE [==[        fences[filled] = FENCE_NONE;
        filled++;]==])
set(EXPECTED "work on memory runs behind all work of the memory's earlier users|the GPU is done with memory that no stream orders|nothing is unmapped that enqueued work uses")
