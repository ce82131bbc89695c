# A session withdraws another generation than it names.
set(SOURCE daemon/core/core_names.c)
set(FIND [==[    if (present == 0 || (wanted->generation != 0 && present != wanted->generation))]==])
set(REPLACE [==[    if (present == 0)]==])
set(EXPECTED "a name is withdrawn otherwise than is right")
