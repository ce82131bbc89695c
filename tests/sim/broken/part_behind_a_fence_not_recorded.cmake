# A part that joins others behind their fence is not recorded.
set(SOURCE daemon/core/lease.c)
set(FIND [==[record_lease(part->lease, PROTO_RECORD_FENCE, size_bytes, PROTO_RECORD_SPLIT);]==])
set(REPLACE [==[]==])
set(EXPECTED "other memory than the records say")
set(SEED 140)
