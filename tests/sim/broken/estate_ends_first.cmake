# A step has ended before its copies are written.
set(SOURCE daemon/estate/estate.c)
set(FIND [==[    for (record = estate->changed; record != 0; record = slot_of(estate, record)->next)
        write_copy(estate, chunk_of(estate, record), index_of(record));
    store(estate, &head_of(estate)->ended_ns, &now_ns, sizeof now_ns);
    store(estate, &head_of(estate)->step, &(const uint64_t){stamp_of(estate->step)}, sizeof(uint64_t));
]==])
set(REPLACE [==[    store(estate, &head_of(estate)->ended_ns, &now_ns, sizeof now_ns);
    store(estate, &head_of(estate)->step, &(const uint64_t){stamp_of(estate->step)}, sizeof(uint64_t));
    for (record = estate->changed; record != 0; record = slot_of(estate, record)->next)
        write_copy(estate, chunk_of(estate, record), index_of(record));
]==])
set(EXPECTED "heirs.c|successor.c")
