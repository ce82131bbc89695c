# A chunk counts before its head is there.
set(SOURCE daemon/estate/estate.c)
set(FIND [==[    store(estate, chunk->memory, bytes, ESTATE_CHUNK_BYTES);
    store(estate, &head_of(estate)->n_chunks, &stamp, sizeof stamp); /* it counts from now on */
]==])
set(REPLACE [==[    store(estate, &head_of(estate)->n_chunks, &stamp, sizeof stamp);
    store(estate, chunk->memory, bytes, ESTATE_CHUNK_BYTES);
]==])
set(EXPECTED "a part of it is damaged")
