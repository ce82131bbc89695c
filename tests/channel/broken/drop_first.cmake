# An element is dropped before a free slot is looked for.
set(SOURCE client/core/sender.c)
set(FIND [==[    enum hold hold = find_free(sender, &slot);
]==])
set(REPLACE [==[    enum hold hold = sender->view->capacities.policy == PROTO_CHANNEL_DROP_OLDEST ? drop(sender, &slot)
                                                                                  : HOLD_HELD;
    if (hold == HOLD_HELD)
        hold = find_free(sender, &slot);
]==])
set(EXPECTED "no element is dropped beside a free slot")
