# The pages of a channel that is gone are still counted as its user's.
set(SOURCE daemon/core/channel.c)
set(FIND [==[    channel->tenant->n_channel_pages -= n_pages(channel->capacities.n_consumers);]==])
set(REPLACE [==[]==])
set(EXPECTED "the core is not valid|a successor's core is not valid")
