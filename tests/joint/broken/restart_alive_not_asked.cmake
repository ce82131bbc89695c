# The client does not ask whether another daemon is there.
set(SOURCE client/session/alive.c)
set(FIND [==[    bool asks = alive->is_used && alive->fd < 0 && !alive->is_asked && connection->broken == 0;]==])
set(REPLACE [==[    bool asks = alive->is_used && alive->fd < 0 && !alive->is_asked && connection->broken == 0 && alive->n_pauses == 0;]==])
set(EXPECTED "a request waits, and there is room for it")
set(SEED 64)
