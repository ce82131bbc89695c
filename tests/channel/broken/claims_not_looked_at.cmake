# A slot is taken as free after the floor was raised, although a place has claimed it.
set(SOURCE client/core/sender.c)
set(FIND [==[        if (hold == HOLD_NONE) {
            *ret_slot = slot;
            return HOLD_NONE;
        }
    }
    sender->place = holder;]==])
set(REPLACE [==[        if (hold != HOLD_PROTOCOL) {
            *ret_slot = slot;
            return HOLD_NONE;
        }
    }
    sender->place = holder;]==])
set(EXPECTED "a slot is not reused while a place|a frame stays as it was|sound pages")
