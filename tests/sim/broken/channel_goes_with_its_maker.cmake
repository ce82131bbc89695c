# A channel without KEEP goes with its maker, though sessions are in it.
set(SOURCE daemon/core/channel.c)
set(FIND [==[        if (channel->places[i].session != NULL)
            return true;
    return channel->name]==])
set(REPLACE [==[        if (channel->places[i].session != NULL && channel->session != NULL)
            return true;
    return channel->name]==])
set(EXPECTED "the pages of a channel are to be freed that is there|a channel has ended too early|the core is not valid")
