# A step has ended before its copies are written.
set(SOURCE daemon/estate/estate.c)
set(FIND [==[    for (record = estate->changed; record != 0; record = slot_of(estate, record)->next)
        write_copy(estate, chunk_of(estate, record), index_of(record));
    store(estate, &head_of(estate)->ended_ns, &now_ns, sizeof now_ns);
    store(estate, (void *)&head_of(estate)->step, &estate->step, sizeof estate->step);
]==])
set(REPLACE [==[    store(estate, &head_of(estate)->ended_ns, &now_ns, sizeof now_ns);
    store(estate, (void *)&head_of(estate)->step, &estate->step, sizeof estate->step);
    for (record = estate->changed; record != 0; record = slot_of(estate, record)->next)
        write_copy(estate, chunk_of(estate, record), index_of(record));
]==])
set(EXPECTED "heirs.c")
