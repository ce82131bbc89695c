# The time without a daemon moves deadlines of parcels, and the records do not say so.
set(SOURCE daemon/core/inherit.c)
set(FIND [==[        kept_change(core, core->parcels.entries[i]->record);]==])
set(REPLACE [==[        ;]==])
set(EXPECTED "a record of kind 8 agrees")
