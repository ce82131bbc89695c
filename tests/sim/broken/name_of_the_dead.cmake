# An edition without KEEP stays when its publisher dies.
set(SOURCE daemon/core/core_sessions.c)
set(FIND [==[        if ((edition->flags & PROTO_PUBLISH_KEEP) == 0)
            name_withdraw(edition->name);]==])
set(REPLACE [==[        if ((edition->flags & PROTO_PUBLISH_KEEP) == 0 && session->n_leases == 0)
            name_withdraw(edition->name);]==])
set(EXPECTED "a parcel has ended too early, or not at all|a request for a name is answered that another one comes before, or that has to wait")
