# The fences of a place that was left since are not named.
set(SOURCE client/core/sender.c)
set(FIND [==[        if (word_load(&mark->released, WORD_ORDERED) != sequence)
            continue;]==])
set(REPLACE [==[        if (!sender->places[i].counts || word_load(&mark->released, WORD_ORDERED) != sequence)
            continue;]==])
set(EXPECTED "a loan is behind the fences of all releases")
