/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The estate of the core under test, and its heirs. After each step its records say what a successor has to
 * know. Now and then a successor's core is made of a copy of the memory as it is then. It has what the core
 * under test has, its own validators agree, and it gives everything back to the last byte when everybody is
 * gone. Others are made of what there is when the daemon dies before a store of a step, or in its middle.
 * In some worlds the daemon dies in earnest: they go on with the successor (successor.c).
 */
#include "daemon/core/inherit.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/scope.h"
#include "tests/sim/world.h"

#define CHUNKS    256u
#define NEW_STEPS 64u

static _Alignas(4096) char memory[CHUNKS * ESTATE_CHUNK_BYTES], copy[CHUNKS * ESTATE_CHUNK_BYTES];
static gid_t groups[4 * SIM_SESSIONS]; /* of a successor's sessions */
static unsigned n_groups;
static struct proto_page pages[4 * SIM_SESSIONS]; /* likewise: copies, which it may write to */
static unsigned n_pages;
static uint64_t draws;         /* of this file alone: the world's own go on as without it */
static unsigned dies_at;       /* before so many stores the daemon dies; 0: it does not, or has */
static size_t died_bytes;      /* of the memory of one that died */
static size_t grown_bytes;     /* of the memory that the core under test keeps its records in */
static unsigned dies_one_in;   /* so many steps the daemon dies in earnest; 0: it never does */
static unsigned dies_soon;     /* so many steps it is likely to, because it is new */
static bool is_dying;          /* in the present step */
static bool is_new; /* a picture is taken before each step: the daemon may die where the memory grows, */
static unsigned dies_at_growth; /* before so many stores of that; 0: it does not */

static int grow(void *argument, size_t size_bytes) {
    const struct world *world = argument;
    must(size_bytes <= sizeof memory, "the estate is larger than any core here needs");
    return 0;
}

/* Memory may fail as it does elsewhere. */
static int grow_own(void *argument, size_t size_bytes) {
    void *volatile probe = malloc(1);
    int r = probe != NULL ? grow(argument, size_bytes) : -ENOMEM;

    free(probe);
    if (r < 0)
        return r;
    grown_bytes = size_bytes > grown_bytes ? size_bytes : grown_bytes;
    return 0;
}

/* The daemon of another world dies here: its successor gets the memory as it is. */
static void before_store(void *argument, void *to, const void *from, size_t size_bytes) {
    const struct world *world = argument;
    size_t half_bytes = size_bytes / 16 * 8, offset = (size_t)((char *)to - memory);
    bool grows = offset == offsetof(struct estate_head, n_chunks) || offset % ESTATE_CHUNK_BYTES == 0;

    if (!((char *)to >= memory && (char *)to < memory + sizeof memory) || died_bytes > 0)
        return;
    bool is_in_growth = is_new && grows && dies_at_growth > 0 && --dies_at_growth == 0;
    if (!is_in_growth && (dies_at == 0 || --dies_at > 0))
        return;
    world->tally->growths_died += is_in_growth;
    is_dying = is_dying || is_in_growth;
    died_bytes = grown_bytes;
    memcpy(copy, memory, grown_bytes);
    if (random_next(&draws) % 2 == 0)
        memcpy(copy + ((char *)to - memory), from, half_bytes);
}

static struct estate_owner owner_of(struct world *world) {
    return (struct estate_owner){.grow = grow_own, .before_store = before_store, .argument = world};
}

/* The first daemon makes the estate, or dies while it does. Then the next one goes on with that. */
static void begin_estate(struct world *world, const struct estate_owner *owner) {
    const struct inherit_shell shell = {.argument = world};
    const char *reason = NULL;
    bool is_first = true;

    for (;; is_first = false) {
        heirs_die_at(dies_one_in > 0 ? heirs_draw(12) : 0);
        int r = is_first ? estate_make(&world->estate, memory, kept_kinds, KEPT_KINDS - 1, owner)
                         : heirs_open(world, &reason);
        if (r == 0)
            r = is_first ? core_keep(world->core, &world->estate)
                         : core_inherit(world->core, &world->estate, &shell, &reason);
        must(r == 0, reason != NULL ? reason : "an estate cannot begin");
        if (!heirs_has_died())
            return;
        estate_deinit(&world->estate);
        world->core->estate = NULL;
        world->core->record = 0;
        heirs_leave_memory();
        world->tally->makers_died++;
    }
}

void heirs_begin(struct world *world) {
    static const unsigned deaths[] = {0, 0, 0, 16, 64, 64, 256, 256};
    const struct estate_owner owner = owner_of(world);

    draws = random_seed(world->seed);
    dies_one_in = deaths[random_next(&draws) % (sizeof deaths / sizeof *deaths)];
    dies_at = 0;
    dies_soon = dies_one_in > 0 ? 16 : 0;
    is_dying = is_new = false;
    memset(memory, 0, sizeof memory);
    grown_bytes = ESTATE_CHUNK_BYTES;
    begin_estate(world, &owner);
    dies_at_growth = dies_one_in > 0 ? heirs_draw(16) : 0;
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
        const struct pool_config config = {
            .kind = p == 2 ? PROTO_POOL_HOST : PROTO_POOL_DEVICE,
            .device = (int)p,
            .numa_node = -1,
            .name = "pool",
            .sizes = world->pools[p].sizes,
            .needs_vmm = world->is_vmm[p],
            .takes_descriptors = world->pools[p].takes_descriptors,
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
                     (item == QUOTA_REPLIES ? names_directory_bytes(world, model_tenant_of(world, own->id))
                                            : own->quota.used[item]),
                 "a successor's users are charged with something else");
    }
}

void heirs_empty(struct core *core, uint64_t now_ns) {
    static struct proto_page scratch;
    struct answer answer;
    struct name_answer named;
    struct session *session;
    uint64_t bytes;

    core->estate = NULL;
    list_for_each_entry(struct session, other, &core->sessions, link) {
        other->page = other->page != NULL ? &scratch : NULL;
    }
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
    core_unpublish_all(core, now_ns);
    while (core_next_name_answer(core, &named))
        ;
    while (core_next_answer(core, &answer))
        ;
    while (core_next_reclaim(core, &session))
        ;
}

struct heir_limits heirs_limits_of(const struct core *core) {
    return (struct heir_limits){.sessions = core->sessions_limit,
                                .session_leases = core->session_leases_limit,
                                .passes = core->passes_limit,
                                .segments = core->segments_limit,
                                .channel_pages = core->channel_pages_limit,
                                .long_wait_ns = core->long_wait_ns};
}

struct core *heirs_make_core(const struct world *world, const struct heir_limits *limits) {
    struct core *core;

    must(core_new(&core) == 0, "a core can be made");
    core->sessions_limit = limits->sessions;
    core->session_leases_limit = limits->session_leases;
    core->passes_limit = limits->passes;
    core->segments_limit = limits->segments;
    core->channel_pages_limit = limits->channel_pages;
    core->long_wait_ns = limits->long_wait_ns;
    add_pools(world, core);
    add_scopes(world, core);
    return core;
}

/* A successor inherits what is in the copy. is_present: it is the present core's. */
static void inherit(struct world *world, size_t size_bytes, bool is_present) {
    const struct estate_owner owner = {.grow = grow, .argument = world};
    const struct inherit_shell shell = {
        .take_segment = take_segment, .take_session = take_session, .argument = world};
    const char *reason = "";
    struct estate estate;
    unsigned kind;

    memory_fail_nth(0);
    n_groups = n_pages = 0;
    must(estate_open(&estate, copy, size_bytes, kept_kinds, KEPT_KINDS - 1, &owner, &reason) == 0,
         "an estate can be read");
    picture_note(world);
    const struct heir_limits limits = heirs_limits_of(world->core);
    struct core *core = heirs_make_core(world, &limits);
    int r = core_inherit(core, &estate, &shell, &reason);
    must(r == 0, reason != NULL ? reason : strerror(-r));
    estate_end_step(&estate);
    must(core_is_valid(core), "a successor's core is not valid");
    for (unsigned i = 0; i < n_pages; i++)
        must(atomic_load(&pages[i].shortage.pools) == 0,
             "a successor leaves a mark of a shortage that is over");
    must(estate_is_valid(&estate, &kind), "a successor's records do not agree with its core");
    for (unsigned p = 0; p < world->n_pools && is_present; p++)
        compare_pools(world, core->pools[p], world->pools[p].pool);
    if (is_present)
        compare_use(world, core);
    heirs_empty(core, world->now_ns);
    core_free(core);
    estate_deinit(&estate);
    world->tally->heirs++;
}

void heirs_check(struct world *world) {
    memcpy(copy, memory, grown_bytes);
    inherit(world, grown_bytes, true);
}

/* --- deaths in earnest --- */

unsigned heirs_draw(unsigned bound) {
    return (unsigned)(random_next(&draws) % bound);
}

void heirs_die_at(unsigned store) {
    dies_at = store;
    died_bytes = 0;
}

bool heirs_has_died(void) {
    dies_at = 0;
    return died_bytes > 0;
}

void heirs_leave_memory(void) {
    memcpy(memory, copy, died_bytes);
    memset(memory + died_bytes, 0, grown_bytes - died_bytes);
    died_bytes = 0;
}

int heirs_open(struct world *world, const char **ret_reason) {
    const struct estate_owner owner = owner_of(world);

    return estate_open(&world->estate, memory, grown_bytes, kept_kinds, KEPT_KINDS - 1, &owner, ret_reason);
}

void heirs_begin_step(struct world *world) {
    if (dies_one_in == 0)
        return;
    is_dying = heirs_draw(dies_soon > 0 ? 3 : dies_one_in) == 0;
    dies_soon -= dies_soon > 0;
    is_new = world->step < NEW_STEPS && dies_at_growth > 0;
    if (is_dying || is_new)
        picture_take(world);
    heirs_die_at(is_dying ? 1 + heirs_draw(heirs_draw(2) == 0 ? 4 : 32) : 0);
}

bool heirs_is_over(void) {
    bool is_over = is_dying;

    if (is_over)
        dies_soon = heirs_draw(4);
    is_dying = false;
    return is_over;
}

void heirs_end_step(struct world *world, bool checks) {
    char text[64];
    unsigned kind;

    if (!is_dying)
        heirs_die_at(heirs_draw(64) == 0 ? 1 + heirs_draw(16) : 0);
    estate_end_step(&world->estate);
    dies_at = 0;
    if (is_new && !is_dying)
        picture_drop();
    is_new = false;
    if (died_bytes > 0 && !is_dying)
        inherit(world, died_bytes, false);
    if ((!checks && !is_dying) || estate_is_valid(&world->estate, &kind))
        return;
    snprintf(text, sizeof text, "a record of kind %u does not agree with the core", kind);
    must(false, text);
}
