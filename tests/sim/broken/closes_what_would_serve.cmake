# A session is told to close a segment for a request that could take it as it is.
set(SOURCE daemon/core/closing.c)
set(FIND [==[!(search->spares && plan_needs_segment(search->pool, segment))]==])
set(REPLACE [==[true]==])
set(EXPECTED "a session is to close a segment for a request that could take it")
set(SEED 26)
