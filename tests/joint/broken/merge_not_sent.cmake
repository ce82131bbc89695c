# 12: parts are released of a lease that a MERGE has not made long enough.
set(SOURCE client/session/lease.c)
set(FIND [==[    return connection_put(&session->connection, &message);]==])
set(REPLACE [==[    (void)message;
    return true;]==])
set(EXPECTED "the daemon refuses a name")
