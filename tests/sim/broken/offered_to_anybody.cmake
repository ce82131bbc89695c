# A segment that a session offered and closed has no tenant, and goes to the next one that asks.
set(SOURCE daemon/core/closing.c)
set(FIND [==[if (keeper == NULL || segment->is_orphan || tenant_adopt(keeper, segment) < 0)]==])
set(REPLACE [==[if (keeper == NULL)]==])
set(EXPECTED "a block is cut from another tenant's segment|a tenant is charged with something else than it has")
