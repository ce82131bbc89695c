# The records do not say which request came last: in a successor's queues new ones are before those that wait.
set(SOURCE daemon/core/kept.c)
set(FIND [==[        .request = core->next_request_number,
]==])
set(REPLACE [==[        .request = 0,
]==])
set(EXPECTED "its records contradict each other|the core is not valid|a request has a number that was never given|a request for a name is in no state")
