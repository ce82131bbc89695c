# The record of a name does not tell that a session builds it.
set(SOURCE daemon/core/name.c)
set(FIND [==[        list_append(&session->builds, &name->builder_link);
    kept_change(name->tenant->core, name->record);]==])
set(REPLACE [==[        list_append(&session->builds, &name->builder_link);]==])
set(EXPECTED "a record of kind 11 does not agree with the core")
