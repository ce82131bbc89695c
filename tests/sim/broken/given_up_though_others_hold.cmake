# Memory of any process counts as held by the request's own, so that no other process can give it back.
set(SOURCE daemon/core/reach.c)
set(FIND [==[if (lease->fence == NULL && reach_is_own(session, lease->session))]==])
set(REPLACE [==[if (lease->fence == NULL)]==])
set(EXPECTED "a request is given up before its deadline")
set(SEED 39)
