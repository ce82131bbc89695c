# The first part of a row can be given back alone, or split off.
set(SOURCE daemon/core/lease.c)
set(FIND [==[if (block->is_row || size_bytes == 0 ||]==])
set(REPLACE [==[if (size_bytes == 0 ||]==])
set(EXPECTED "gets another answer than is right")
