# A mapping counts as there after its segment was closed.
set(SOURCE client/core/arena.c)
set(FIND [==[        if (arena->slots[i].maps == segment)]==])
set(REPLACE [==[        if (false)]==])
set(TEST arena)
set(EXPECTED a_slot_without_a_mapping_is_filled_again_at_once)
