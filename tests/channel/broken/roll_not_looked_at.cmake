# The roll is looked at before a search alone, and not before an element is sent.
set(SOURCE client/core/sender.c)
set(FIND [==[    look_at_roll(sender);
    uint64_t sequence]==])
set(REPLACE [==[    uint64_t sequence]==])
set(EXPECTED "a queue has all that is sent|a queue is admitted")
