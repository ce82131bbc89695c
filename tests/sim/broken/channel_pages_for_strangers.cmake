# A session gets pages of a channel in which it has no place.
set(SOURCE daemon/core/core_channels.c)
set(FIND [==[    if (channel == NULL || !channel_has_member(channel, session))]==])
set(REPLACE [==[    if (channel == NULL)]==])
set(EXPECTED "a session gets a page that it may not have, or not its own")
