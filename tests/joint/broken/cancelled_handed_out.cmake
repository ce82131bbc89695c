# 26: the buffer of a request that was cancelled goes back, and is handed out.
set(SOURCE client/api/requests.c)
set(FIND [==[        buffer_give_back(client, &request->buffer);
        r = say_cancelled();]==])
set(REPLACE [==[        buffer_give_back(client, &request->buffer);]==])
set(EXPECTED "a call with valid arguments|no two buffers have the same bytes|a buffer has bytes that the daemon lends its client")
set(SEED 7)
