# A second session is told to build a name.
set(SOURCE daemon/core/name_wait.c)
set(FIND [==[(wait->flags & PROTO_OPEN_NAME_BUILD) != 0 && generation == 0 && name->builder == NULL]==])
set(REPLACE [==[(wait->flags & PROTO_OPEN_NAME_BUILD) != 0 && generation == 0]==])
set(EXPECTED "a request for a name is answered that another one comes before, or that has to wait")
