# A lease that comes after its caller has given up is dropped.
set(SOURCE client/session/reader.c)
set(FIND [==[[PROTO_ACQUIRE] = {LATE_UNDO, PROTO_RELEASE},]==])
set(REPLACE [==[[PROTO_ACQUIRE] = {LATE_DROP, 0},]==])
set(EXPECTED "a client that has given back everything holds nothing|a request waits, and there is room for it")
set(SEED 10)
