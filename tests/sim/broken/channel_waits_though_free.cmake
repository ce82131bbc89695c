# No request is answered when a place is left.
set(SOURCE daemon/core/name_wait.c)
set(FIND [==[    if (name != NULL)
        name_serve(name);
    name = channel_drop_if_unused(channel);]==])
set(REPLACE [==[    name = channel_drop_if_unused(channel);]==])
set(EXPECTED "a request for a name waits that could be answered|the core is not valid")
