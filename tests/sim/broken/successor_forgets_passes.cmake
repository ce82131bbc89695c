# A request's record does not say how often it was passed.
set(SOURCE daemon/core/kept.c)
set(FIND [==[        .passes = request->passes,
]==])
set(REPLACE [==[        .passes = 0,
]==])
set(EXPECTED "a successor forgets how often a request was passed")
