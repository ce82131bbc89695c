# The mapping of a large segment is not found from the middle of its slots.
set(SOURCE client/core/arena.c)
set(FIND [==[        if (slot->maps != 0 && !is_listed)]==])
set(REPLACE [==[        if (slot->maps != 0 && !is_listed && slot->maps_from == i)]==])
set(TEST arena_large)
set(EXPECTED a_place_parts_vacant_slots_that_it_takes_a_part_of)
