/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants of one uid that come through sockets of their own. */
#include "daemon/core/scope.h"

#include <stdio.h>
#include <string.h>

#include "tests/sim/world.h"

/* All tenants of a world with scopes have this uid. */
static unsigned uid_tenant(const struct world *world, unsigned tenant) {
    return world->scopes[tenant].is_scoped ? 0 : tenant;
}

struct tenant_id model_tenant_id(const struct world *world, unsigned tenant) {
    return (struct tenant_id){.uid = SIM_UID + uid_tenant(world, tenant), .scope = world->scopes[tenant].id};
}

unsigned model_tenant_of(const struct world *world, struct tenant_id id) {
    for (unsigned tenant = 0; tenant < SIM_TENANTS; tenant++)
        if (tenant_id_is(model_tenant_id(world, tenant), id))
            return tenant;
    must(false, "there is a tenant that nobody is");
    return 0;
}

bool model_is_shut(const struct world *world, unsigned tenant) {
    return world->scopes[tenant].is_scoped && world->scopes[tenant].scope == NULL;
}

uint64_t model_scope_limit(const struct world *world, unsigned tenant, unsigned item) {
    const struct model_scope *scope = &world->scopes[tenant];

    if (!scope->is_scoped)
        return QUOTA_UNLIMITED;
    if (scope->limits[item] != POLICY_UNSET)
        return scope->limits[item];
    return world->policy.set ? world->policy.everybody[item] : QUOTA_UNLIMITED;
}

static void add_scope(struct world *world, unsigned tenant) {
    struct model_scope *scope = &world->scopes[tenant];
    struct scope_terms terms = {0};

    snprintf(terms.name, sizeof terms.name, "scope-%u", tenant);
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        scope->limits[item] = POLICY_UNSET;
    if (one_in(world, 3))
        scope->limits[QUOTA_POOLS] = random_below(world, world->limit_max);
    if (one_in(world, 3))
        scope->limits[QUOTA_LEASES] = random_below(world, 40);
    if (one_in(world, 3))
        scope->limits[QUOTA_SESSIONS] = random_below(world, SIM_SESSIONS);
    memcpy(terms.limits, scope->limits, sizeof terms.limits);
    int r = scope_add(world->core, &terms, &scope->scope);
    must(r == 0, "a scope cannot be made");
    scope->id = scope->scope->id;
}

void scopes_begin(struct world *world) {
    for (unsigned tenant = 1; tenant < SIM_TENANTS && world->seed % 4 == 3; tenant++) {
        world->scopes[tenant].is_scoped = true;
        add_scope(world, tenant);
    }
}

static bool has_session(const struct world *world, unsigned tenant) {
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        if (world->sessions[s].session != NULL && world->sessions[s].tenant == tenant)
            return true;
    return false;
}

void model_leave_scope(struct world *world, unsigned tenant) {
    if (!model_is_shut(world, tenant) || has_session(world, tenant))
        return;
    for (unsigned p = 0; p < SIM_PARCELS; p++)
        if (world->parcels[p].takers > 0 && world->parcels[p].tenant == tenant)
            parcel_end(world, p);
    names_end_all(world, tenant);
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) { /* a lost device's driver takes nothing back */
        struct model_segment *where = &world->segments[g];
        if (where->segment != NULL && where->tenant == tenant + 1 &&
            pool_is_closed(world->pools[where->pool].pool))
            where->tenant = 0;
    }
}

void step_scope(struct world *world) {
    unsigned tenant = 1 + (unsigned)random_below(world, SIM_TENANTS - 1);
    struct model_scope *scope = &world->scopes[tenant];
    if (scope->scope != NULL) {
        struct scope *dropped = scope->scope;
        scope->scope = NULL;
        model_leave_scope(world, tenant);
        core_scope_drop(dropped, world->now_ns);
        world->tally->scopes++;
    } else if (scope_find(world->core, scope->id) == NULL) {
        must(!has_session(world, tenant), "a scope is gone, and has a session");
        add_scope(world, tenant);
    }
}
