# A message that is sent once more does not say so.
set(SOURCE daemon/data/inheritance.c)
set(FIND [==[        message.header.flags |= PROTO_AGAIN;]==])
set(REPLACE [==[        message.header.flags |= 0;]==])
set(EXPECTED "a connection does not break")
