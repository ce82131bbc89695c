# A session that wants any place gets the first free one, not one that holds elements.
set(SOURCE daemon/core/channel.c)
set(FIND [==[static const enum proto_channel_state states[] = {PROTO_CHANNEL_VACANT, PROTO_CHANNEL_EMPTY,
                                                      PROTO_CHANNEL_LEFT};]==])
set(REPLACE [==[static const enum proto_channel_state states[] = {PROTO_CHANNEL_EMPTY, PROTO_CHANNEL_VACANT,
                                                      PROTO_CHANNEL_LEFT};]==])
set(EXPECTED "a session is told of another place than it has|a place of a channel is in another state")
set(SEED 250)
