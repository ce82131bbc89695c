# Copies of a step that did not end are taken for those of the next one, which has its number.
set(SOURCE daemon/estate/estate.c)
set(FIND [==[        blank_copy(estate, chunk, copy);
        *ret_step = 0;
]==])
set(REPLACE [==[        *ret_step = 0;
]==])
set(EXPECTED "records do not agree with its core|is damaged|a part of it is damaged|contradict each other")
