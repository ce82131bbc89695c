# A channel that has ended is still charged as kept.
set(SOURCE daemon/core/channel.c)
set(FIND [==[    channel->name = NULL;
    charge_free(&channel->kept);]==])
set(REPLACE [==[    channel->name = NULL;]==])
set(EXPECTED "the core is not valid|a tenant is charged for other names than it keeps")
