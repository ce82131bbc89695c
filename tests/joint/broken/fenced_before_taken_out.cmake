# 11: the fences are left before the memory is taken out of the stream heaps.
set(SEED 103607)
set(SOURCE client/cache/give_back.c)
set(FIND [==[    int taken = take_out(cache, choice);]==])
set(REPLACE [==[    struct { struct stream_heap *of; struct fence fence; } left[16];
    unsigned n_left = 0;
    pthread_mutex_lock(&cache->stream_heaps_lock);
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        left[n_left].of = stream_heap;
        if (n_left + 1 < ARRAY_LENGTH(left) && chooses(choice, stream_heap) && has_idle(stream_heap) &&
            cache_leave_fence(cache, stream_heap, &left[n_left].fence) == 0)
            n_left++;
    }
    pthread_mutex_unlock(&cache->stream_heaps_lock);
    int taken = take_out(cache, choice);
    for (size_t i = 0; i < cache->pending_count * n_left; i++)
        if (cache->pending[i / n_left].stream_heap == left[i % n_left].of)
            (void)settle_part(&cache->pending[i / n_left], 0, left[i % n_left].fence);]==])
set(EXPECTED "work on memory runs behind all work of the memory's earlier users|nothing is unmapped that enqueued work uses|the GPU is done with memory that no stream orders")
