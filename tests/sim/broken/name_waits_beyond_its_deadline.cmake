# A request for a name is refused too late.
set(SOURCE daemon/core/name_wait.c)
set(FIND [==[node->key <= now_ns)]==])
set(REPLACE [==[node->key < now_ns)]==])
set(EXPECTED "a request for a name waits that could be answered|the ticks of one moment have an end")
