# Deferred memory goes to the daemon while a stream is made to wait for it.
set(SOURCE client/core/stretch.c)
set(FIND [==[(!piece->is_deferred || stream_heap->ordering > 0)]==])
set(REPLACE [==[!piece->is_deferred]==])
set(TEST stretch)
set(EXPECTED deferred_pieces_that_a_stream_is_being_ordered_behind_stay)
