# A sleeping producer waits for one place alone.
set(SOURCE client/core/sender.c)
set(FIND [==[        if (i + 1 != sender->place && sender->places[i].counts)]==])
set(REPLACE [==[        if (i + 1 != sender->place && sender->place == 0)]==])
set(EXPECTED "does not sleep beside a free slot")
