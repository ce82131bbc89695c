# A range is of another block, and its record does not say so.
set(SOURCE daemon/core/lease.c)
set(FIND [==[    range->user = block;
    kept_change(session->core, range->record);
]==])
set(REPLACE [==[    range->user = block;
]==])
set(EXPECTED "does not agree with the core")
