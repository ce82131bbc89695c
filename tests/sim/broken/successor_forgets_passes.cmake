# A request's record does not say how often it was passed.
set(SOURCE daemon/core/kept.c)
set(FIND [==[        .passes = request->passes,
]==])
set(REPLACE [==[        .passes = 0,
]==])
set(EXPECTED "a request is passed by later ones more often")
set(SEED 440)
