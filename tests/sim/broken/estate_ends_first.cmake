# A step has ended before its copies are written.
set(SOURCE daemon/estate/estate.c)
set(FIND [==[    write_changes(estate);
    store(estate, &head_of(estate)->step, &(const uint64_t){stamp_of(estate->step)}, sizeof(uint64_t));
]==])
set(REPLACE [==[    store(estate, &head_of(estate)->step, &(const uint64_t){stamp_of(estate->step)}, sizeof(uint64_t));
    write_changes(estate);
]==])
set(EXPECTED "heirs.c|successor.c")
