/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The estate of the core under test, and its heirs. After each step its records say what a successor has to know.
 * Now and then a successor's core is made of a copy of the memory as it is then. It has what the core under test
 * has, its own validators agree, and it gives everything back to the last byte when everybody is gone. Others are
 * made of what there is when the daemon dies before a store of a step, or in its middle.
 */
#include "daemon/core/inherit.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/scope.h"
#include "tests/sim/world.h"

#define CHUNKS 256u

static _Alignas(4096) char memory[CHUNKS * ESTATE_CHUNK_BYTES], copy[CHUNKS * ESTATE_CHUNK_BYTES];
static gid_t groups[4 * SIM_SESSIONS]; /* of a successor's sessions */
static unsigned n_groups;
static struct proto_page pages[4 * SIM_SESSIONS]; /* likewise: copies, which it may write to */
static unsigned n_pages;
static uint64_t draws;         /* of this file alone: the world's own go on as without it */
static unsigned dies_at;       /* before so many stores the daemon dies; 0: it does not, or has */
static size_t died_bytes;      /* of the memory of one that died */

static int grow(void *argument, size_t size_bytes) {
    const struct world *world = argument;
    must(size_bytes <= sizeof memory, "the estate is larger than any core here needs");
    return 0;
}

/* The daemon of another world dies here: its successor gets the memory as it is. */
static void before_store(void *argument, void *to, const void *from, size_t size_bytes) {
    const struct world *world = argument;
    size_t half_bytes = size_bytes / 16 * 8, n_bytes = world->estate.n_chunks * ESTATE_CHUNK_BYTES;

    if (dies_at == 0 || --dies_at > 0 || !((char *)to >= memory && (char *)to < memory + sizeof memory))
        return;
    died_bytes = n_bytes;
    memcpy(copy, memory, n_bytes);
    if (random_next(&draws) % 2 == 0)
        memcpy(copy + ((char *)to - memory), from, half_bytes);
}

void heirs_begin(struct world *world) {
    const struct estate_owner owner = {.grow = grow, .before_store = before_store, .argument = world};

    draws = random_seed(world->seed);
    dies_at = 0;
    memset(memory, 0, sizeof memory);
    must(estate_make(&world->estate, memory, kept_kinds, KEPT_KINDS - 1, &owner) == 0 &&
             core_keep(world->core, &world->estate) == 0,
         "there is memory");
}

void heirs_end(struct world *world) {
    estate_deinit(&world->estate);
}

/* --- a successor --- */

static int take_segment(void *argument, struct segment *segment) {
    const struct world *world = argument;
    const struct segment *own = segment_find(world->core, segment->id);

    segment->backing = own != NULL ? own->backing : NULL;
    return 0;
}

static int take_session(void *argument, struct session *session, const struct kept_session *kept) {
    const struct world *world = argument;

    must(n_groups + kept->n_groups <= sizeof groups / sizeof *groups, "a process here is in few groups");
    session->peer.groups = &groups[n_groups];
    session->peer.n_groups = kept->n_groups;
    for (unsigned i = 0; i < kept->n_groups; i++)
        groups[n_groups++] = kept->groups[i];
    must(n_pages < sizeof pages / sizeof *pages, "there are few sessions");
    struct proto_page *page = &pages[n_pages++];
    memset(page, 0, sizeof *page);
    atomic_store(&page->shortage.pools, UINT64_MAX);
    list_for_each_entry(const struct session, own, &world->core->sessions, link) {
        if (own->id == kept->id && own->page != NULL)
            memcpy(page->fences, own->page->fences, SIM_WORDS * sizeof *page->fences);
    }
    session->page = page;
    return 0;
}

static void add_pools(const struct world *world, struct core *core) {
    for (unsigned p = 0; p < world->n_pools; p++) {
        const struct pool *own = world->pools[p].pool;
        const struct pool_config config = {
            .kind = own->kind,
            .device = own->device,
            .numa_node = own->numa_node,
            .name = own->name,
            .sizes = {.limit_bytes = own->limit_bytes,
                      .reserve_bytes = own->reserve_bytes,
                      .step_bytes = own->step_bytes,
                      .low_water_bytes = own->low_water_bytes},
            .needs_vmm = world->is_vmm[p],
            .takes_descriptors = own->takes_descriptors,
        };
        struct pool *pool;
        must(core_add_pool(core, &config, &pool) == 0, "a successor has its pools");
    }
}

/* Also those that ended in the step in which the daemon died. */
static void add_scopes(const struct world *world, struct core *core) {
    for (unsigned tenant = 0; tenant < SIM_TENANTS; tenant++) {
        const struct model_scope *own = &world->scopes[tenant];
        struct scope_terms terms = {.id = own->id};
        struct scope *scope;
        if (!own->is_scoped)
            continue;
        snprintf(terms.name, sizeof terms.name, "scope-%u", tenant);
        memcpy(terms.limits, own->limits, sizeof terms.limits);
        must(scope_add(core, &terms, &scope) == 0, "a successor has its scopes");
    }
}

/* Both cores agree about a pool. */
static void compare_pools(const struct world *world, const struct pool *pool, const struct pool *own) {
    must(pool->reserved_bytes == own->reserved_bytes && pool->leased_bytes == own->leased_bytes &&
             pool->fenced_bytes == own->fenced_bytes && pool->quarantined_bytes == own->quarantined_bytes &&
             pool->closing_bytes == own->closing_bytes && pool->retiring_bytes == own->retiring_bytes &&
             pool->unassigned_bytes == own->unassigned_bytes && pool->occupied_bytes == own->occupied_bytes &&
             pool->idle_bytes == own->idle_bytes && pool->deaf_bytes == own->deaf_bytes &&
             pool->kept_bytes == own->kept_bytes && pool->sessions_bytes == own->sessions_bytes &&
             pool->parcel_bytes == own->parcel_bytes,
         "a successor has other memory");
    must(pool->n_segments == own->n_segments && pool->n_retiring == own->n_retiring &&
             pool->n_leases == own->n_leases && pool->n_parcels == own->n_parcels &&
             pool->waiters.count == own->waiters.count,
         "a successor has something else");
}

static void compare_use(const struct world *world, struct core *core) {
    list_for_each_entry(const struct tenant, own, &world->core->tenants, link) {
        const struct tenant *tenant = tenant_find(core, own->id);
        must(tenant != NULL || own->sessions == 0, "a successor has other users");
        for (unsigned item = 0; item < QUOTA_ITEMS; item++)
            must((tenant != NULL ? tenant->quota.used[item] : 0) ==
                     own->quota.used[item] - (item == QUOTA_REPLIES ? own->quota.used[item] : 0),
                 "a successor's users are charged with something else");
    }
}

/* All that it inherited is given back. */
static void empty(struct core *core, uint64_t now_ns) {
    struct answer answer;
    struct session *session;
    uint64_t bytes;

    core->estate = NULL;
    while (core_next_answer(core, &answer))
        ;
    list_for_each_entry_safe(struct session, other, &core->sessions, link) {
        if (other->state == SESSION_ACTIVE)
            core_session_lose(other, now_ns, "");
    }
    list_for_each_entry_safe(struct session, other, &core->sessions, link) {
        core_session_gone(other, now_ns);
    }
    core_revoke_all(core, 0, now_ns, &bytes);
    while (core_next_answer(core, &answer))
        ;
    while (core_next_reclaim(core, &session))
        ;
}

/* A successor inherits what is in the copy. is_present: it is the present core's. */
static void inherit(struct world *world, size_t size_bytes, bool is_present) {
    const struct estate_owner owner = {.grow = grow, .argument = world};
    const struct inherit_shell shell = {
        .take_segment = take_segment, .take_session = take_session, .argument = world};
    const char *reason = "";
    struct estate estate;
    struct core *core;
    unsigned kind;

    memory_fail_nth(0);
    n_groups = n_pages = 0;
    must(core_new(&core) == 0 &&
             estate_open(&estate, copy, size_bytes, kept_kinds, KEPT_KINDS - 1, &owner, &reason) == 0,
         "an estate can be read");
    core->sessions_limit = world->core->sessions_limit;
    core->session_leases_limit = world->core->session_leases_limit;
    core->passes_limit = world->core->passes_limit;
    core->segments_limit = world->core->segments_limit;
    add_pools(world, core);
    add_scopes(world, core);
    int r = core_inherit(core, &estate, &shell, &reason);
    must(r == 0, reason != NULL ? reason : strerror(-r));
    estate_end_step(&estate, world->now_ns);
    must(core_is_valid(core), "a successor's core is not valid");
    for (unsigned i = 0; i < n_pages; i++)
        must(atomic_load(&pages[i].shortage.pools) == 0,
             "a successor leaves a mark of a shortage that is over");
    must(estate_is_valid(&estate, &kind), "a successor's records do not agree with its core");
    for (unsigned p = 0; p < world->n_pools && is_present; p++)
        compare_pools(world, core->pools[p], world->pools[p].pool);
    if (is_present)
        compare_use(world, core);
    empty(core, world->now_ns);
    core_free(core);
    estate_deinit(&estate);
    world->tally->heirs++;
}

void heirs_check(struct world *world) {
    size_t size_bytes = world->estate.n_chunks * ESTATE_CHUNK_BYTES;

    memcpy(copy, memory, size_bytes);
    inherit(world, size_bytes, true);
}

void heirs_end_step(struct world *world, bool checks) {
    char text[64];
    unsigned kind;

    died_bytes = 0;
    dies_at = random_next(&draws) % 64 == 0 ? 1 + (unsigned)(random_next(&draws) % 16) : 0;
    estate_end_step(&world->estate, world->now_ns);
    dies_at = 0;
    if (died_bytes > 0)
        inherit(world, died_bytes, false);
    if (!checks || estate_is_valid(&world->estate, &kind))
        return;
    snprintf(text, sizeof text, "a record of kind %u does not agree with the core", kind);
    must(false, text);
}
