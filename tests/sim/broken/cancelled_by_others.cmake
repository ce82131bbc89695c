# A session cancels the requests of others.
set(SOURCE daemon/core/core_leases.c)
set(FIND [==[    list_for_each_entry(struct request, request, &session->requests, session_link) {
        if (request->id == request_id && request->state == REQUEST_WAITING)
            return request;
    }]==])
set(REPLACE [==[    list_for_each_entry(struct session, other, &session->core->sessions, link)
    list_for_each_entry(struct request, request, &other->requests, session_link) {
        if (request->id == request_id && request->state == REQUEST_WAITING)
            return request;
    }]==])
set(EXPECTED "a request is called cancelled that is not")
set(SEED 26)
