# A segment goes back to the driver, and to another tenant, while a process has it mapped.
set(SOURCE daemon/core/pool.c)
set(FIND [==[    if (segment->mappers > 0)
        return false;
    return segment->state]==])
set(REPLACE [==[    return segment->state]==])
set(EXPECTED "a segment is retired that a process may have mapped")
