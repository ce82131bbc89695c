# A request is answered with an older generation than it asks for.
set(SOURCE daemon/core/name_wait.c)
set(FIND [==[    if (generation != 0 && generation >= wait->generation)]==])
set(REPLACE [==[    if (generation != 0)]==])
set(EXPECTED "a request for a name is answered that another one comes before, or that has to wait|a request for a name gets another answer than is right")
