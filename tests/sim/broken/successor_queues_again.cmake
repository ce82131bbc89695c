# A successor counts the queues of a place anew.
set(SOURCE daemon/core/heir_names.c)
set(FIND [==[        place->queue = wanted->queue;]==])
set(REPLACE [==[]==])
set(EXPECTED "a successor's records do not agree with its core|a place of a channel is in another state")
