# A successor does not know which session builds a name.
set(SOURCE daemon/core/heir_names.c)
set(FIND [==[    if (builder != NULL)
        name_set_builder(name, builder);]==])
set(REPLACE [==[]==])
set(EXPECTED "a successor's records do not agree with its core|a successor has another session build")
