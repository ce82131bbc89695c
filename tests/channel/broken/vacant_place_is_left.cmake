# A place whose process died holds nothing back.
set(SOURCE client/core/sender.c)
set(FIND [==[proto_channel_state_of(word) != PROTO_CHANNEL_LEFT;]==])
set(REPLACE [==[proto_channel_state_of(word) != PROTO_CHANNEL_LEFT &&
                                   proto_channel_state_of(word) != PROTO_CHANNEL_VACANT;]==])
set(EXPECTED "a slot is not reused while a place|a frame stays as it was|sound pages")
