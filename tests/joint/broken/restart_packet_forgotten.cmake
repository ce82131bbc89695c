# The packet that the daemon had in hand is not dealt with.
set(SOURCE daemon/loop/desk.c)
set(FIND [==[    if (n == 0)
        return 0;
    *ret_session = read->session;
    *ret_n_deaths]==])
set(REPLACE [==[    return 0;
    *ret_session = read->session;
    *ret_n_deaths]==])
set(EXPECTED "a client that has given back everything holds nothing|a request waits, and there is room for it")
