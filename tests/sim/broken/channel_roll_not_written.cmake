# The shell is not told that a place is lost.
set(SOURCE daemon/core/channel.c)
set(FIND [==[    place->state = PROTO_CHANNEL_DYING;
    changed(place->channel);]==])
set(REPLACE [==[    place->state = PROTO_CHANNEL_DYING;
    kept_change(place->channel->core, place->channel->record);]==])
set(EXPECTED "a channel has changed, and the shell is not told")
