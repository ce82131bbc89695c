# The time of a held parcel counts from its sending: what a living sender's receiver has not read yet ends with the sender.
set(SOURCE daemon/core/parcel.c)
set(FIND [==[        parcel->deadline_ns = clock_deadline_ns(now_ns, parcel->lifetime_ns);
        kept_change(session->core, parcel->record);
        move_up]==])
set(REPLACE [==[        parcel->deadline_ns = clock_deadline_ns(parcel->sent_ns, parcel->lifetime_ns);
        kept_change(session->core, parcel->record);
        move_up]==])
set(EXPECTED "a parcel has ended too early, or not at all")
