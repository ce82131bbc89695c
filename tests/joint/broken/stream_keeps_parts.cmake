# A stream that ends keeps small parts of memory, for which the driver is asked about it later.
set(SOURCE client/cache/give_back.c)
set(FIND [==[        .of_stream = true, .device = device, .stream = stream, .part_bytes = HEAP_GRANULE};]==])
set(REPLACE [==[        .of_stream = true, .device = device, .stream = stream, .part_bytes = PART_BYTES_MIN};]==])
set(EXPECTED "the driver is told of streams that there are")
set(SEED 1485)
