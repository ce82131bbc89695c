/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas and access: policies that an operator sets, and what the model says of them. Users are tenants, of
 * groups that each process brings along. */
#include <string.h>

#include "daemon/core/tenant.h"
#include "tests/sim/world.h"

#define FIRST_GROUP 500u

/* The items that the model limits: sessions, leases, ranges, segments, waiting requests, bytes of replies,
 * bytes of each pool.
 */
#define ITEMS (QUOTA_POOLS + SIM_POOLS)

gid_t policy_gid(unsigned group) {
    return FIRST_GROUP + group;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a == POLICY_UNSET || (b != POLICY_UNSET && b > a) ? b : a;
}

/* The limit of the user alone. */
static uint64_t user_limit(const struct world *world, unsigned tenant, unsigned item,
                           unsigned joining_group) {
    const struct model_policy *policy = &world->policy;
    uint64_t limit = policy->users[tenant][item], of_scope = world->scopes[tenant].limits[item];

    if (world->scopes[tenant].is_scoped && of_scope != POLICY_UNSET)
        return of_scope;
    if (!policy->set)
        return QUOTA_UNLIMITED;
    if (limit != POLICY_UNSET)
        return limit;
    if (joining_group < SIM_GROUPS)
        limit = larger(limit, policy->groups[joining_group][item]);
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        if (world->sessions[s].session != NULL && world->sessions[s].tenant == tenant)
            limit = larger(limit, policy->groups[world->sessions[s].group][item]);
    return limit != POLICY_UNSET ? limit : policy->everybody[item];
}

uint64_t model_limit(const struct world *world, unsigned tenant, unsigned item, unsigned joining_group) {
    uint64_t of_user = user_limit(world, tenant, item, joining_group),
             of_scope = model_scope_limit(world, tenant, item);
    return of_user < of_scope ? of_user : of_scope;
}

void model_add_up(const struct world *world, struct model_use *ret_use) {
    *ret_use = (struct model_use){0};
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        const struct model_session *session = &world->sessions[s];
        if (session->session == NULL)
            continue;
        uint64_t *used = ret_use->used[session->tenant];
        used[QUOTA_SESSIONS]++;
        used[QUOTA_LEASES] += session->leases;
        used[QUOTA_REPLIES] += session->replies + world->names.drafts[s].n_bytes;
    }
    for (unsigned tenant = 0; tenant < SIM_TENANTS; tenant++) {
        ret_use->used[tenant][QUOTA_LEASES] += parcels_of_tenant(world, tenant);
        ret_use->used[tenant][QUOTA_RANGES] = model_ranges(world, tenant);
        ret_use->used[tenant][QUOTA_SEGMENTS] = model_segments(world, tenant);
        ret_use->used[tenant][QUOTA_WAITING] = names_waiting(world, tenant);
        ret_use->used[tenant][QUOTA_REPLIES] += names_directory_bytes(world, tenant);
    }
    for (unsigned r = 0; r < SIM_REQUESTS; r++)
        if (world->requests[r].used && !world->requests[r].answered)
            ret_use->used[world->sessions[world->requests[r].session].tenant][QUOTA_WAITING]++;
    for (unsigned b = 0; b < world->blocks_end; b++) {
        const struct model_block *block = &world->blocks[b];
        if (!model_is_used(block))
            continue;
        const struct model_segment *segment = &world->segments[block->segment];
        ret_use->used[segment->tenant - 1][QUOTA_POOLS + segment->pool] += block->held;
    }
    for (unsigned g = 0; g < SIM_SEGMENTS; g++)
        if (world->segments[g].segment != NULL && world->segments[g].closing)
            ret_use->used[world->segments[g].tenant - 1][QUOTA_POOLS + world->segments[g].pool] +=
                world->segments[g].size;
}

bool model_may_use(const struct world *world, unsigned s, unsigned p) {
    const struct model_policy *policy = &world->policy;
    const struct model_session *session = &world->sessions[s];
    return !policy->set || !policy->restricted[p] || policy->user_allowed[p][session->tenant] ||
           policy->group_allowed[p][session->group];
}

void check_quotas(struct world *world, const struct model_use *use) {
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        const struct model_session *session = &world->sessions[s];
        if (session->session == NULL)
            continue;
        const struct quota *quota = &session->session->tenant->quota;
        for (unsigned item = 0; item < QUOTA_POOLS + world->n_pools; item++) {
            must(quota->used[item] == use->used[session->tenant][item],
                 "a tenant is charged with something else than it has");
            must(quota->limits[item] == user_limit(world, session->tenant, item, SIM_GROUPS),
                 "a tenant has another quota than the policy says");
            must(quota_limit(quota, item) == model_limit(world, session->tenant, item, SIM_GROUPS),
                 "a scope has another quota than it was given");
        }
    }
}

static uint64_t random_limit(struct world *world, unsigned item) {
    switch (item) {
    case QUOTA_SESSIONS:
        return random_below(world, SIM_SESSIONS);
    case QUOTA_LEASES:
        return random_below(world, 40);
    case QUOTA_RANGES:
        return random_below(world, 50);
    case QUOTA_SEGMENTS:
        return random_below(world, 12);
    case QUOTA_WAITING:
        return random_below(world, 8);
    case QUOTA_REPLIES:
        return random_below(world, 64 * KIB);
    default:
        return random_below(world, world->limit_max);
    }
}

static void draw_limits(struct world *world, uint64_t limits[QUOTA_ITEMS], unsigned set_one_in,
                        uint64_t unset) {
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        limits[item] = item < ITEMS && one_in(world, set_one_in) ? random_limit(world, item) : unset;
}

static void add_rule(const struct world *world, struct policy *policy, bool is_group, uint32_t id,
                     const uint64_t limits[QUOTA_ITEMS]) {
    int r = policy_add_rule(policy, &(struct policy_subject){is_group, id}, limits);
    must(r == 0, "a rule cannot be added");
}

static void restrict_pool(const struct world *world, struct policy *policy, unsigned p) {
    const struct model_policy *model = &world->policy;
    int r = 0;

    policy_restrict(policy, p + 1);
    for (unsigned t = 0; t < SIM_TENANTS && r == 0; t++)
        if (!world->scopes[t].is_scoped && model->user_allowed[p][t])
            r = policy_allow(policy, p + 1, &(struct policy_subject){false, SIM_UID + t});
    for (unsigned g = 0; g < SIM_GROUPS && r == 0; g++)
        if (model->group_allowed[p][g])
            r = policy_allow(policy, p + 1, &(struct policy_subject){true, policy_gid(g)});
    must(r == 0, "a pool cannot be restricted");
}

struct policy *policy_make(const struct world *world) {
    const struct model_policy *model = &world->policy;
    struct policy *policy = NULL;

    if (!model->set)
        return NULL;
    int r = policy_new(&policy);
    must(r == 0, "a policy cannot be made");
    memcpy(policy->everybody, model->everybody, sizeof policy->everybody);
    for (unsigned t = 0; t < SIM_TENANTS; t++)
        if (!world->scopes[t].is_scoped)
            add_rule(world, policy, false, SIM_UID + t, model->users[t]);
    for (unsigned g = 0; g < SIM_GROUPS; g++)
        add_rule(world, policy, true, policy_gid(g), model->groups[g]);
    for (unsigned p = 0; p < world->n_pools; p++)
        if (model->restricted[p])
            restrict_pool(world, policy, p);
    return policy;
}

static void draw_access(struct world *world, unsigned p) {
    struct model_policy *drawn = &world->policy;

    drawn->restricted[p] = true;
    for (unsigned t = 0; t < SIM_TENANTS; t++)
        drawn->user_allowed[p][t] = world->scopes[t].is_scoped ? drawn->user_allowed[p][0] : one_in(world, 2);
    for (unsigned g = 0; g < SIM_GROUPS; g++)
        drawn->group_allowed[p][g] = one_in(world, 3);
}

void policy_draw(struct world *world) {
    world->policy = (struct model_policy){0};
    if (!one_in(world, 4)) {
        struct model_policy *drawn = &world->policy;
        drawn->set = true;
        draw_limits(world, drawn->everybody, 4, QUOTA_UNLIMITED);
        for (unsigned t = 0; t < SIM_TENANTS; t++) {
            if (world->scopes[t].is_scoped) {
                memcpy(drawn->users[t], drawn->users[0], sizeof drawn->users[t]);
                continue;
            }
            draw_limits(world, drawn->users[t], 6, POLICY_UNSET);
        }
        for (unsigned g = 0; g < SIM_GROUPS; g++)
            draw_limits(world, drawn->groups[g], 6, POLICY_UNSET);
        for (unsigned p = 0; p < world->n_pools; p++)
            if (one_in(world, 4))
                draw_access(world, p);
        if (world->names.are_there && names_draw(world, 2) == 0)
            drawn->everybody[QUOTA_KEPT] = names_draw(world, world->limit_max);
    }
}

void step_policy(struct world *world) {
    memory_fail_nth(0);
    shell_drain(world); /* what was decided under the old policy is seen as such */
    if (world->scopes[1].is_scoped && one_in(world, 2)) {
        step_scope(world);
        return;
    }
    policy_draw(world);
    core_set_policy(world->core, policy_make(world), world->now_ns);
    world->tally->policies++;
}

/* Replies that a client is slow to read. */
void step_reply(struct world *world) {
    unsigned s = pick_session(world, false);
    struct model_use use;
    if (s == SIM_SESSIONS)
        return;
    struct model_session *session = &world->sessions[s];
    if (session->replies > 0 && one_in(world, 2)) {
        uint64_t read = 1 + random_below(world, session->replies);
        core_session_drop_reply(session->session, read);
        session->replies -= read;
        return;
    }
    uint64_t bytes = 1 + random_below(world, 16 * KIB);
    model_add_up(world, &use);
    bool fits = use.used[session->tenant][QUOTA_REPLIES] + bytes <=
                model_limit(world, session->tenant, QUOTA_REPLIES, SIM_GROUPS);
    int r = core_session_keep_reply(session->session, bytes);
    must(r == (fits ? 0 : PROTO_E_LIMIT), "a reply is kept against the quota, or not within it");
    session->replies += fits ? bytes : 0;
}
