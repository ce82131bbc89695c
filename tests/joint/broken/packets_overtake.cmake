# 13: a packet overtakes packets that other threads left in the outbox.
set(SOURCE client/session/outbox.c)
set(FIND [==[return outbox->fd >= 0 && !outbox->is_sending && outbox->head == outbox->tail;]==])
set(REPLACE [==[return outbox->fd >= 0;]==])
set(EXPECTED "the daemon refuses a name|cannot become part of the lease|a buffer has bytes that the daemon lends its client")
