# A session makes another one leave its place.
set(SOURCE daemon/core/core_channels.c)
set(FIND [==[    if (channel == NULL || channel->places[left->page].session != session)]==])
set(REPLACE [==[    if (channel == NULL || channel->places[left->page].state != PROTO_CHANNEL_TAKEN)]==])
set(EXPECTED "a session leaves a place that it does not have, or not its own")
set(SEED 26)
