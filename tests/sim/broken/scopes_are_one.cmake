# A user is one tenant, whichever scope it came through.
set(SOURCE daemon/core/tenant.c)
set(FIND [==[if (tenant_id_is(tenant->id, id))]==])
set(REPLACE [==[if (tenant->id.uid == id.uid)]==])
set(EXPECTED "a tenant is charged with something else")
