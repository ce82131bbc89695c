# A successor does not give its users their quotas.
set(SOURCE daemon/core/heir_sessions.c)
set(FIND [==[    tenant_apply_policy(tenant, NULL);
    return 0;
]==])
set(REPLACE [==[    return 0;
]==])
set(EXPECTED "a tenant has another quota than the policy says|a request for a name is not taken, or against the quota")
