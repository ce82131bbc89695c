# The daemon hears that a segment is closed which is mapped.
set(SOURCE client/session/lease.c)
set(FIND [==[    int r = rows_remove_segment(session, segment, pool_id);
    if (r == -EBADMSG)]==])
set(REPLACE [==[    int r = 0;
    if (r == -EBADMSG)]==])
set(EXPECTED "no process has a segment mapped that goes back|something that does not check out")
