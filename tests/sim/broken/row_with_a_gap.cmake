# A row's part may end before its segment does, and another one follows.
set(SOURCE daemon/core/row.c)
set(FIND [==[from->held_bytes == from->capacity_bytes && end_of(last) == last->span->size &&]==])
set(REPLACE [==[from->held_bytes == from->capacity_bytes &&]==])
set(EXPECTED "a merge gets another answer than is right")
set(SEED 44)
