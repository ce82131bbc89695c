# The number of a slot in an entry is not checked.
set(SOURCE client/core/receiver.c)
set(FIND [==[found != sequence || slot >= capacities->n_slots ||]==])
set(REPLACE [==[found != sequence ||]==])
set(EXPECTED "an element is within the capacities|an access lies in the pages|a process writes into its own page|broke off")
