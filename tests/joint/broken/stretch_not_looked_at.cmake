# 7: the stretch around a release is not looked at.
set(SEED 3441)
set(SOURCE client/cache/shortage.c)
set(FIND [==[    if (place != NULL)
        offer_stretch(]==])
set(REPLACE [==[    if (place == (const char *)1)
        offer_stretch(]==])
set(EXPECTED "a request waits, and there is room for it")
