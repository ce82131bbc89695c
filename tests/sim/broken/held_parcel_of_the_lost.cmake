# The time of a held parcel does not begin when its sender's session is lost: the memory is held for good.
set(SOURCE daemon/core/core_sessions.c)
set(FIND [==[    parcels_let_go(session, now_ns);
    leave_names(session);
    end_places(session, channel_lose);]==])
set(REPLACE [==[    leave_names(session);
    end_places(session, channel_lose);]==])
set(EXPECTED "a parcel has ended too early, or not at all|everybody is gone, and leases are left|a session is lost, and has what ends with that")
