# A session is told to close segments for others although nobody waits.
set(SOURCE daemon/pool/pool.c)
set(FIND [==[return need > comes ? need - comes : 0;]==])
set(REPLACE [==[return need > comes ? need - comes : SEGMENT_GRANULE;]==])
set(EXPECTED "a session is to close what nobody waits for")
