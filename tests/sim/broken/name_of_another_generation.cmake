# A session withdraws another generation than it names.
set(SOURCE daemon/core/core_names.c)
set(FIND [==[    if (name == NULL || name->edition == NULL ||
        (wanted->generation != 0 && name->edition->generation != wanted->generation))]==])
set(REPLACE [==[    if (name == NULL || name->edition == NULL)]==])
set(EXPECTED "a name is withdrawn otherwise than is right")
