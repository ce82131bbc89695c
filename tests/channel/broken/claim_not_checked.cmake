# The floor is not looked at after the claim.
set(SOURCE client/core/receiver.c)
set(FIND [==[    if (receiver->floor <= sequence)
        return is_entry]==])
set(REPLACE [==[    receiver->floor = receiver->floor > sequence ? sequence : receiver->floor;
    if (receiver->floor <= sequence)
        return is_entry]==])
set(EXPECTED "a slot is not reused while a place|a frame stays as it was|sound pages|an element has")
