# A builder dies, and no session that waits is told to build.
set(SOURCE daemon/core/core_sessions.c)
set(FIND [==[        name_set_builder(name, NULL);
        name_serve(name);]==])
set(REPLACE [==[        name_set_builder(name, NULL);
        name_drop_if_unused(name);]==])
set(EXPECTED "a request for a name waits that could be answered")
