# The driver is asked of a stream whose heap holds nothing.
set(SOURCE client/cache/give_back.c)
set(FIND [==[if (stream_heap->pool == pool && has_idle(stream_heap))]==])
set(REPLACE [==[if (stream_heap->pool == pool)]==])
set(EXPECTED "the driver is told of streams that there are")
set(SEED 24)
