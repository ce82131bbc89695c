# The fence of a loan that was given back is not named.
set(SOURCE client/core/sender.c)
set(FIND [==[    if (fence.word != 0)
        sender->slots[slot].fence = fence;]==])
set(REPLACE [==[]==])
set(EXPECTED "a loan is behind the fence of one that was given back")
