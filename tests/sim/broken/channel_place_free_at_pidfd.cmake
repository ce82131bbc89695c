# A dead session leaves its places before its GPU work is over.
set(SOURCE daemon/core/core_sessions.c)
set(FIND [==[    end_places(session, channel_lose);]==])
set(REPLACE [==[    end_places(session, channel_leave);]==])
set(EXPECTED "a place of a channel is in another state|the pages of a channel are to be freed that is there|a request for a name is answered that another one comes before, or that has to wait")
