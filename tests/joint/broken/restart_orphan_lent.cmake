# A request that was granted memory which the successor cannot describe is answered with that.
set(SOURCE daemon/core/heir_requests.c)
set(FIND [==[        if (cannot_be_told(request))]==])
set(REPLACE [==[        if (false)]==])
set(EXPECTED "the daemon describes memory that it has")
set(SEED 1532)
