# 9: what lies idle of a stretch in a second extent stays there.
set(SEED 204927)
set(SOURCE client/cache/give_back.c)
set(FIND [==[        if (stream_heap->pool == pool && has_idle(stream_heap)) /* deferred memory has fences of its own */
            take_of_stretch(cache, stream_heap, stretch, check_stream(cache, stream_heap) == 0);]==])
set(REPLACE [==[        if (stream_heap->pool == pool && has_idle(stream_heap)) {
            take_of_stretch(cache, stream_heap, stretch, check_stream(cache, stream_heap) == 0);
            break;
        }]==])
set(EXPECTED "a request waits, and there is room for it")
