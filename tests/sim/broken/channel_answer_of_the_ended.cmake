# A session that was not told of its place keeps it when the channel ends.
set(SOURCE daemon/core/name_wait.c)
set(FIND [==[        if (wait->name == name && wait->state == NAME_WAIT_JOINED && has_joined(wait))]==])
set(REPLACE [==[        if (wait->name == name && wait->state == NAME_WAIT_JOINED && has_joined(wait) && channel == NULL)]==])
set(EXPECTED "a channel is told of that has not changed|a channel is there too long")
set(SEED 26)
