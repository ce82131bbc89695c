# A session that takes a place which another one left has the queue of that one.
set(SOURCE daemon/core/channel.c)
set(FIND [==[    if (place->state == PROTO_CHANNEL_LEFT)
        place->queue++;]==])
set(REPLACE [==[]==])
set(EXPECTED "a place of a channel is in another state")
