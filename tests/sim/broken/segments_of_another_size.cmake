# A larger segment that some session has mapped serves a request for whole segments of one size.
set(SOURCE daemon/core/pool.c)
set(FIND [==[segment->size_bytes != request->segment_bytes)]==])
set(REPLACE [==[(segment->size_bytes != request->segment_bytes &&
         (segment->mappers == 0 || segment->size_bytes < request->segment_bytes)))]==])
set(EXPECTED "a block is no whole segment of the size that was asked")
