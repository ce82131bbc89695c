# A place that was left holds its queue back.
set(SOURCE client/core/sender.c)
set(FIND [==[proto_channel_state_of(word) != PROTO_CHANNEL_LEFT;]==])
set(REPLACE [==[true;]==])
set(EXPECTED "a free slot is found|does not sleep beside a free slot|no element is dropped")
