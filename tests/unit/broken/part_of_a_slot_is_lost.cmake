# A part of a slot whose fence cannot be left does not come back.
set(SOURCE client/core/arena.c)
set(FIND [==[    give_absent(arena, start, start + size_bytes);]==])
set(REPLACE [==[    (void)start;]==])
set(TEST arena)
set(EXPECTED a_part_whose_fence_cannot_be_left_is_free_again)
