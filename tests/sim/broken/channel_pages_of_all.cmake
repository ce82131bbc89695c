# A user has all pages of channels.
set(SOURCE daemon/core/channel.c)
set(FIND [==[           tenant->n_channel_pages + n <= core->channel_pages_limit / 2;]==])
set(REPLACE [==[           tenant->n_channel_pages + n <= core->channel_pages_limit;]==])
set(EXPECTED "the maker of a channel gets another answer than is right")
set(SEED 38)
