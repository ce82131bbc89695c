# A segment that a process was told to close does not count as memory that comes back.
set(SOURCE daemon/core/plan.c)
set(FIND [==[pool->closing_bytes == 0 &&]==])
set(REPLACE [==[]==])
set(EXPECTED "called hopeless that is not")
set(SEED 160)
