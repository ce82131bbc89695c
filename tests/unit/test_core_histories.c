/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of the core beside a reference model that knows nothing of heaps, lists or plans: who owns
 * each granule of each segment, which session was told of which segment, which requests have no answer yet.
 * The test plays the shell: growths and retirements are done at once, late, or (growths) not at all.
 *
 * After each step the model and the core agree on every answer and every sum; every few steps the core walks
 * its own invariants. A history that fails is replayed with the numbers that it printed:
 * GPUPOOL_TEST_SEED=… GPUPOOL_TEST_STEPS=… (and then the invariants are walked after each step).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "core_fixture.h"

#define HISTORIES       10u
#define HISTORY_STEPS   4000u
#define VALIDATE_EVERY  16u
#define GRANULE         512u
#define MODEL_POOLS     3u
#define MODEL_TENANTS   4u
#define MODEL_SESSIONS  30u
#define MODEL_SEGMENTS  128u /* alive at a time; the pools' limits allow 3 * 32 */
#define MODEL_LEASES    4096u
#define MODEL_BLOCKS    4096u
#define MODEL_REQUESTS  1024u
#define MODEL_TOKENS    64u
#define MODEL_OLD_NAMES 16u
#define POOL_LIMIT_MAX  (64 * MIB)

/* A segment, and for each of its granules the block that has it, plus one; 0: nobody. */
struct model_segment {
    struct segment *segment; /* NULL: unused */
    uint64_t id, size;
    unsigned pool;
    unsigned tenant; /* plus one; 0: none yet */
    uint64_t taken;  /* bytes */
    unsigned mappers;
    bool retiring;
    uint16_t *owners;
};

struct model_block {
    unsigned segment;
    uint64_t offset, size, capacity, held;
    unsigned live, lost; /* leases; both 0: unused */
    bool shared;
    uint64_t token; /* its first bytes */
};

struct model_lease {
    uint64_t id, generation;
    unsigned session, block;
    bool used;
};

struct model_session {
    struct session *session; /* NULL: unused */
    unsigned tenant;
    bool lost;
    bool seen[MODEL_SEGMENTS];
    unsigned leases;
};

struct model_request {
    uint64_t id;
    unsigned session, pool;
    uint64_t size, deadline_ns;
    bool used;
};

struct model {
    struct core *core;
    uint64_t seed, now_ns, next_request, next_token, last_generation;
    unsigned step;
    struct model_segment segments[MODEL_SEGMENTS];
    struct model_block blocks[MODEL_BLOCKS];
    struct model_lease leases[MODEL_LEASES];
    struct model_session sessions[MODEL_SESSIONS];
    struct model_request requests[MODEL_REQUESTS];
    struct {
        struct pool *pool;
        uint64_t growing;           /* taken by the shell and not made yet */
        bool asked_while_no_driver; /* a growth has failed at some time */
    } pools[MODEL_POOLS];
    uint64_t tokens[MODEL_TOKENS]; /* of blocks alive or gone */
    struct proto_lease_name old_names[MODEL_OLD_NAMES];
    unsigned grants, refusals, retirements, attaches, parts;
};

/* xorshift64*: the same numbers on every machine. */
static uint64_t random_state;

static uint64_t random64(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(2685821657736338717);
}

static uint64_t random_below(uint64_t bound) {
    return random64() % bound;
}

static bool one_in(unsigned n) {
    return random_below(n) == 0;
}

#define must(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fail_msg("seed %llu, step %u: %s does not hold", (unsigned long long)model->seed, model->step,   \
                     #condition);                                                                            \
    } while (0)

static uint64_t round_up(uint64_t bytes, uint64_t granule) {
    return (bytes + granule - 1) / granule * granule;
}

static struct proto_token token_make(uint64_t number) {
    struct proto_token token = {{0}};
    uint64_t mixed = number * UINT64_C(0x9e3779b97f4a7c15); /* neighbours are to lie apart in the tree */
    memcpy(token.bytes, &mixed, sizeof mixed);
    memcpy(token.bytes + 8, &number, sizeof number);
    return token;
}

/* --- looking things up */

static unsigned find_segment(struct model *model, uint64_t id) {
    for (unsigned i = 0; i < MODEL_SEGMENTS; i++)
        if (model->segments[i].segment != NULL && model->segments[i].id == id)
            return i;
    fail_msg("seed %llu, step %u: nobody made segment %llu", (unsigned long long)model->seed, model->step,
             (unsigned long long)id);
    return 0;
}

/* A random session that is alive, or MODEL_SESSIONS. */
static unsigned pick_session(struct model *model, bool lost) {
    unsigned start = (unsigned)random_below(MODEL_SESSIONS);
    for (unsigned i = 0; i < MODEL_SESSIONS; i++) {
        unsigned s = (start + i) % MODEL_SESSIONS;
        if (model->sessions[s].session != NULL && model->sessions[s].lost == lost)
            return s;
    }
    return MODEL_SESSIONS;
}

/* A random lease of a session that is alive, or MODEL_LEASES. */
static unsigned pick_lease(struct model *model) {
    for (unsigned tries = 0; tries < 4; tries++) {
        unsigned s = pick_session(model, false);
        if (s == MODEL_SESSIONS || model->sessions[s].leases == 0)
            continue;
        uint64_t nth = random_below(model->sessions[s].leases);
        for (unsigned l = 0; l < MODEL_LEASES; l++)
            if (model->leases[l].used && model->leases[l].session == s && nth-- == 0)
                return l;
    }
    return MODEL_LEASES;
}

/* --- what happens to blocks and leases */

static void model_set_owner(struct model *model, unsigned segment, uint64_t offset, uint64_t size,
                            unsigned from, unsigned to) {
    struct model_segment *where = &model->segments[segment];
    must(offset % GRANULE == 0 && size % GRANULE == 0);
    must(offset <= where->size && size <= where->size - offset);
    for (uint64_t g = offset / GRANULE; g < (offset + size) / GRANULE; g++) {
        must(where->owners[g] == from);
        where->owners[g] = (uint16_t)to;
    }
    where->taken += to != 0 ? size : 0;
    where->taken -= from != 0 ? size : 0;
}

static void model_add_lease(struct model *model, unsigned session, unsigned block,
                            const struct lease *lease) {
    unsigned slot = MODEL_LEASES;
    for (unsigned l = 0; l < MODEL_LEASES; l++) {
        must(!model->leases[l].used || model->leases[l].id != lease->id);
        if (!model->leases[l].used && slot == MODEL_LEASES)
            slot = l;
    }
    must(slot < MODEL_LEASES);
    must(lease->generation > model->last_generation); /* never one that was there before */
    model->last_generation = lease->generation;
    model->leases[slot] = (struct model_lease){lease->id, lease->generation, session, block, true};
    model->sessions[session].leases++;
    model->blocks[block].live++;
}

/* The session is told of a lease: the segment is described exactly the first time. */
static struct proto_lease model_describe(struct model *model, unsigned session, struct lease *lease) {
    struct proto_lease wire;
    bool described;

    core_describe_lease(lease, &wire, &described);
    unsigned segment = find_segment(model, wire.segment);
    must(described == !model->sessions[session].seen[segment]);
    must(wire.description.id == (described ? wire.segment : 0));
    must(wire.description.size_bytes == (described ? model->segments[segment].size : 0));
    if (described) {
        model->sessions[session].seen[segment] = true;
        model->segments[segment].mappers++;
    }
    return wire;
}

static void model_granted(struct model *model, const struct model_request *request, struct lease *lease) {
    unsigned s = request->session, b = 0;
    const struct proto_lease wire = model_describe(model, s, lease);
    unsigned segment = find_segment(model, wire.segment);
    struct model_segment *where = &model->segments[segment];

    must(wire.pool == model->pools[request->pool].pool->id && where->pool == request->pool);
    must(wire.size_bytes == request->size && wire.capacity_bytes == round_up(request->size, GRANULE));
    must(!where->retiring);
    must(where->tenant == 0 || where->tenant == model->sessions[s].tenant + 1); /* one tenant, for good */
    where->tenant = model->sessions[s].tenant + 1;
    while (b < MODEL_BLOCKS && model->blocks[b].live + model->blocks[b].lost > 0)
        b++;
    must(b < MODEL_BLOCKS);
    model_set_owner(model, segment, wire.offset_bytes, wire.capacity_bytes, 0, b + 1); /* nobody had it */
    model->blocks[b] = (struct model_block){.segment = segment,
                                            .offset = wire.offset_bytes,
                                            .size = wire.size_bytes,
                                            .capacity = wire.capacity_bytes,
                                            .held = wire.capacity_bytes};
    model_add_lease(model, s, b, lease);
    model->grants++;
}

static void model_block_empty(struct model *model, unsigned b) {
    struct model_block *block = &model->blocks[b];
    struct model_segment *where = &model->segments[block->segment];
    for (uint64_t g = block->offset / GRANULE; g < (block->offset + block->capacity) / GRANULE; g++)
        if (where->owners[g] == b + 1) {
            where->owners[g] = 0;
            where->taken -= GRANULE;
        }
    block->held = 0;
}

static void model_remove_lease(struct model *model, unsigned l) {
    struct model_lease *lease = &model->leases[l];
    struct model_block *block = &model->blocks[lease->block];

    model->old_names[random_below(MODEL_OLD_NAMES)] = (struct proto_lease_name){lease->id, lease->generation};
    if (model->sessions[lease->session].lost)
        block->lost--;
    else
        block->live--;
    model->sessions[lease->session].leases--;
    lease->used = false;
    if (block->live + block->lost == 0)
        model_block_empty(model, lease->block);
}

static void model_remove_session(struct model *model, unsigned s) {
    for (unsigned l = 0; l < MODEL_LEASES; l++)
        if (model->leases[l].used && model->leases[l].session == s)
            model_remove_lease(model, l);
    for (unsigned r = 0; r < MODEL_REQUESTS; r++)
        if (model->requests[r].session == s)
            model->requests[r].used = false;
    for (unsigned g = 0; g < MODEL_SEGMENTS; g++)
        if (model->sessions[s].seen[g])
            model->segments[g].mappers--;
    must(model->sessions[s].leases == 0);
    memset(&model->sessions[s], 0, sizeof model->sessions[s]);
}

/* --- what comes out of the core */

static void drain_answers(struct model *model) {
    struct answer answer;

    while (core_next_answer(model->core, &answer)) {
        unsigned r = 0;
        while (r < MODEL_REQUESTS && !(model->requests[r].used && model->requests[r].id == answer.request))
            r++;
        must(r < MODEL_REQUESTS); /* a request is answered once */
        struct model_request *request = &model->requests[r];
        const struct pool *pool = model->pools[request->pool].pool;
        must(model->sessions[request->session].session == answer.session);
        must(!model->sessions[request->session].lost);
        request->used = false;
        if (answer.lease != NULL) {
            model_granted(model, request, answer.lease);
            continue;
        }
        model->refusals++;
        switch (answer.failure.error) {
        case PROTO_E_EXHAUSTED:
            must(request->deadline_ns <= model->now_ns);
            break;
        case PROTO_E_TOO_LARGE:
            must(request->size > pool->limit_bytes);
            break;
        case PROTO_E_DRIVER:
            must(model->pools[request->pool].asked_while_no_driver && pool->leased_bytes == 0);
            break;
        case PROTO_E_LIMIT:
            must(model->sessions[request->session].leases == model->core->session_leases_limit);
            break;
        default:
            fail_msg("seed %llu, step %u: refused with %u", (unsigned long long)model->seed, model->step,
                     (unsigned)answer.failure.error);
        }
    }
}

static void drain_decisions(struct model *model) {
    struct pool *pool;
    struct segment *segment;
    uint64_t size;

    while (core_next_growth(model->core, &pool, &size)) {
        unsigned p = pool->id - 1;
        must(model->pools[p].growing == 0 && pool->state == POOL_READY);
        must(size > 0 && size % SEGMENT_GRANULE == 0 && pool->reserved_bytes + size <= pool->limit_bytes);
        model->pools[p].growing = size;
    }
    while (core_next_retirement(model->core, &segment)) {
        struct model_segment *where = &model->segments[find_segment(model, segment->id)];
        must(where->segment == segment && !where->retiring);
        must(where->taken == 0 && where->mappers == 0); /* nobody has it in any sense */
        where->retiring = true;
        model->retirements++;
    }
}

static void finish_growth(struct model *model, unsigned p) {
    uint64_t size = model->pools[p].growing;
    unsigned g = 0;

    model->pools[p].growing = 0;
    if (one_in(6)) {
        model->pools[p].asked_while_no_driver = true;
        core_growth_failed(model->pools[p].pool, "cudaErrorMemoryAllocation", model->now_ns);
        return;
    }
    while (g < MODEL_SEGMENTS && model->segments[g].segment != NULL)
        g++;
    must(g < MODEL_SEGMENTS);
    struct model_segment *where = &model->segments[g];
    *where =
        (struct model_segment){.size = size, .pool = p, .owners = calloc(size / GRANULE, sizeof(uint16_t))};
    assert_non_null(where->owners);
    /* The core may lend of the segment before this returns: but the answers are taken later. */
    assert_int_equal(core_segment_made(model->pools[p].pool, size, where, model->now_ns), 0);
    for (size_t slot = 0; slot < model->core->segment_slots; slot++)
        if (model->core->segments[slot] != NULL && model->core->segments[slot]->backing == where &&
            model->core->segments[slot]->id > where->id)
            where->segment = model->core->segments[slot];
    must(where->segment != NULL && where->segment->size_bytes == size);
    where->id = where->segment->id;
}

static void finish_retirement(struct model *model, unsigned g) {
    struct segment *segment = model->segments[g].segment;
    free(model->segments[g].owners);
    memset(&model->segments[g], 0, sizeof model->segments[g]);
    core_segment_retired(segment, model->now_ns);
}

/* --- the steps */

static void step_open(struct model *model) {
    unsigned s = 0;
    while (s < MODEL_SESSIONS && model->sessions[s].session != NULL)
        s++;
    if (s == MODEL_SESSIONS)
        return;
    model->sessions[s].tenant = (unsigned)random_below(MODEL_TENANTS);
    model->sessions[s].session =
        open_session(model->core, (pid_t)(1000 + s), (uid_t)(UID_A + model->sessions[s].tenant));
}

static uint64_t random_size(void) {
    switch (random_below(8)) {
    case 0:
        return 1 + random_below(12 * MIB);
    case 1:
        return POOL_LIMIT_MAX / 4 + random_below(POOL_LIMIT_MAX);
    case 2:
        return SEGMENT_GRANULE * (1 + random_below(4));
    case 3:
    case 4:
        return 1 + random_below(MIB);
    default:
        return 1 + random_below(64 * KIB);
    }
}

static void step_acquire(struct model *model) {
    unsigned s = pick_session(model, false), p = (unsigned)random_below(MODEL_POOLS), r = 0;
    static const uint64_t timeouts_ns[] = {0, 0, 50 * NS_PER_MS, 3 * NS_PER_S, NS_FOREVER};

    if (s == MODEL_SESSIONS)
        return;
    while (r < MODEL_REQUESTS && model->requests[r].used)
        r++;
    if (r == MODEL_REQUESTS)
        return;
    uint64_t timeout_ns = timeouts_ns[random_below(sizeof timeouts_ns / sizeof *timeouts_ns)];
    model->requests[r] = (struct model_request){.id = ++model->next_request,
                                                .session = s,
                                                .pool = p,
                                                .size = random_size(),
                                                .deadline_ns = clock_deadline_ns(model->now_ns, timeout_ns),
                                                .used = true};
    const struct proto_acquire acquire = {
        .pool = p + 1, .size_bytes = model->requests[r].size, .timeout_ns = timeout_ns};
    assert_int_equal(core_acquire(model->sessions[s].session, model->requests[r].id, &acquire, model->now_ns),
                     0);
}

static void step_release(struct model *model) {
    unsigned l = pick_lease(model);
    if (l == MODEL_LEASES)
        return;
    const struct proto_release release = {model->leases[l].id, model->leases[l].generation, 0, 0};
    struct session *session = model->sessions[model->leases[l].session].session;
    assert_int_equal(core_release(session, &release, model->now_ns), 0);
    model_remove_lease(model, l);
    assert_int_equal(core_release(session, &release, model->now_ns), PROTO_E_STALE);
}

/* Gives a random part back, which may or may not be one that can be given back. */
static void step_release_part(struct model *model) {
    unsigned l = pick_lease(model);
    if (l == MODEL_LEASES)
        return;
    unsigned b = model->leases[l].block;
    struct model_block *block = &model->blocks[b];
    struct model_segment *where = &model->segments[block->segment];
    uint64_t granules = block->capacity / GRANULE, start = random_below(granules + 1),
             count = 1 + random_below(granules - (start < granules ? start : 0) + one_in(8));
    if (one_in(3)) {
        start = granules - count < granules ? granules - count : 0; /* a tail, as shrinking does */
    }
    const struct proto_release release = {model->leases[l].id, model->leases[l].generation, start * GRANULE,
                                          count * GRANULE};
    bool held = start + count <= granules;
    for (uint64_t g = 0; held && g < count; g++)
        held = where->owners[block->offset / GRANULE + start + g] == b + 1;
    int expected = block->shared || block->live + block->lost > 1 ? PROTO_E_SHARED
                   : held                                         ? 0
                                                                  : PROTO_E_INVALID;
    must(core_release(model->sessions[model->leases[l].session].session, &release, model->now_ns) ==
         expected);
    if (expected != 0)
        return;
    model->parts++;
    model_set_owner(model, block->segment, block->offset + start * GRANULE, count * GRANULE, b + 1, 0);
    block->held -= count * GRANULE;
    if (block->held == 0) {
        model_remove_lease(model, l);
        return;
    }
    while (where->owners[(block->offset + block->capacity) / GRANULE - 1] != b + 1)
        block->capacity -= GRANULE;
    if (block->size > block->capacity)
        block->size = block->capacity;
}

static void step_misuse(struct model *model) {
    unsigned s = pick_session(model, false), l = pick_lease(model);
    struct proto_info info;
    if (s == MODEL_SESSIONS)
        return;
    const struct proto_lease_name *old = &model->old_names[random_below(MODEL_OLD_NAMES)];
    const struct proto_release stale = {old->lease, old->generation, 0, 0};
    must(core_release(model->sessions[s].session, &stale, model->now_ns) == PROTO_E_STALE);
    must(core_query(model->sessions[s].session, old, &info) == PROTO_E_STALE);
    if (l == MODEL_LEASES || model->leases[l].session == s)
        return;
    const struct proto_release foreign = {model->leases[l].id, model->leases[l].generation, 0, 0};
    must(core_release(model->sessions[s].session, &foreign, model->now_ns) == PROTO_E_STALE);
}

static void step_query(struct model *model) {
    unsigned l = pick_lease(model);
    struct proto_info info;
    if (l == MODEL_LEASES)
        return;
    const struct proto_lease_name name = {model->leases[l].id, model->leases[l].generation};
    const struct model_block *block = &model->blocks[model->leases[l].block];
    must(core_query(model->sessions[model->leases[l].session].session, &name, &info) == 0);
    must(info.segment == model->segments[block->segment].id && info.offset_bytes == block->offset);
    must(info.size_bytes == block->size && info.capacity_bytes == block->capacity);
    must(info.holders == block->live + block->lost && info.shared == block->shared);
}

static void step_share(struct model *model) {
    unsigned l = pick_lease(model);
    if (l == MODEL_LEASES)
        return;
    struct model_block *block = &model->blocks[model->leases[l].block];
    const struct proto_lease_name name = {model->leases[l].id, model->leases[l].generation};
    const struct proto_token fresh = token_make(++model->next_token);
    struct proto_token token;
    must(core_share(model->sessions[model->leases[l].session].session, &name, &fresh, &token) == 0);
    if (!block->shared)
        block->token = model->next_token;
    block->shared = true;
    const struct proto_token expected = token_make(block->token);
    must(memcmp(&token, &expected, sizeof token) == 0);
    model->tokens[random_below(MODEL_TOKENS)] = block->token;
}

static void step_attach(struct model *model) {
    unsigned s = pick_session(model, false), b = 0;
    uint64_t number = model->tokens[random_below(MODEL_TOKENS)];
    const struct proto_token token = token_make(number);
    struct lease *lease = NULL;
    if (s == MODEL_SESSIONS)
        return;
    while (b < MODEL_BLOCKS &&
           !(model->blocks[b].live > 0 && model->blocks[b].shared && model->blocks[b].token == number))
        b++;
    int expected =
        b == MODEL_BLOCKS || model->segments[model->blocks[b].segment].tenant != model->sessions[s].tenant + 1
            ? PROTO_E_NO_TOKEN
        : model->sessions[s].leases >= model->core->session_leases_limit ? PROTO_E_LIMIT
                                                                         : 0;
    must(core_attach(model->sessions[s].session, &token, &lease) == expected);
    if (expected != 0) {
        must(lease == NULL);
        return;
    }
    const struct proto_lease wire = model_describe(model, s, lease);
    must(wire.offset_bytes == model->blocks[b].offset && wire.capacity_bytes == model->blocks[b].capacity);
    must(wire.segment == model->segments[model->blocks[b].segment].id);
    model_add_lease(model, s, b, lease);
    model->attaches++;
}

static void step_lose(struct model *model) {
    unsigned s = pick_session(model, false);
    if (s == MODEL_SESSIONS)
        return;
    core_session_lose(model->sessions[s].session, model->now_ns, "test");
    model->sessions[s].lost = true;
    for (unsigned l = 0; l < MODEL_LEASES; l++)
        if (model->leases[l].used && model->leases[l].session == s) {
            model->blocks[model->leases[l].block].live--;
            model->blocks[model->leases[l].block].lost++;
        }
    for (unsigned r = 0; r < MODEL_REQUESTS; r++)
        if (model->requests[r].session == s)
            model->requests[r].used = false;
}

static void step_end(struct model *model, bool lost) {
    unsigned s = pick_session(model, lost);
    if (s == MODEL_SESSIONS)
        return;
    struct session *session = model->sessions[s].session;
    model_remove_session(model, s);
    if (lost)
        core_session_gone(session, model->now_ns);
    else
        core_session_close(session, model->now_ns);
}

static void step_trim(struct model *model) {
    struct pool *pool = model->pools[random_below(MODEL_POOLS)].pool;
    uint64_t before = pool->retiring_bytes, bytes = core_trim(pool);
    must(pool->retiring_bytes == before + bytes);
    must(bytes == 0 || pool->reserved_bytes - pool->retiring_bytes >= pool->reserve_bytes);
}

static void step_configure(struct model *model) {
    core_pool_configure(model->pools[random_below(MODEL_POOLS)].pool, random_below(POOL_LIMIT_MAX + 1),
                        random_below(10 * MIB), one_in(2) ? 0 : random_below(10 * MIB), model->now_ns);
}

static void step_shell(struct model *model) {
    unsigned p = (unsigned)random_below(MODEL_POOLS), start = (unsigned)random_below(MODEL_SEGMENTS);
    if (model->pools[p].pool->state == POOL_STARTING && one_in(3))
        core_pool_ready(model->pools[p].pool, model->now_ns);
    else if (model->pools[p].growing > 0)
        finish_growth(model, p);
    for (unsigned i = 0; i < MODEL_SEGMENTS; i++) {
        unsigned g = (start + i) % MODEL_SEGMENTS;
        if (model->segments[g].retiring) {
            finish_retirement(model, g);
            return;
        }
    }
}

static void step_time(struct model *model) {
    uint64_t next = core_next_tick_ns(model->core);
    /* to the next appointment, as the shell's timer does, or somewhere */
    if (one_in(2) && next != NS_FOREVER && next > model->now_ns)
        model->now_ns = next;
    else
        model->now_ns += random_below(200 * NS_PER_MS);
    core_tick(model->core, model->now_ns);
    for (unsigned r = 0; r < MODEL_REQUESTS; r++)
        if (model->requests[r].used && model->requests[r].deadline_ns <= model->now_ns) {
            drain_answers(model);
            must(!model->requests[r].used); /* nobody waits beyond the deadline */
        }
    next = core_next_tick_ns(model->core);
    must(next > model->now_ns); /* or the shell's timer would never rest */
}

/* --- what must hold between steps */

static void check_sums(struct model *model) {
    uint64_t leased[MODEL_POOLS] = {0}, quarantined[MODEL_POOLS] = {0}, reserved[MODEL_POOLS] = {0};
    uint64_t retiring[MODEL_POOLS] = {0}, waiters[MODEL_POOLS] = {0};

    for (unsigned b = 0; b < MODEL_BLOCKS; b++) {
        const struct model_block *block = &model->blocks[b];
        if (block->live > 0)
            leased[model->segments[block->segment].pool] += block->held;
        else if (block->lost > 0)
            quarantined[model->segments[block->segment].pool] += block->held;
    }
    for (unsigned g = 0; g < MODEL_SEGMENTS; g++)
        if (model->segments[g].segment != NULL) {
            reserved[model->segments[g].pool] += model->segments[g].size;
            retiring[model->segments[g].pool] += model->segments[g].retiring ? model->segments[g].size : 0;
        }
    for (unsigned r = 0; r < MODEL_REQUESTS; r++)
        waiters[model->requests[r].pool] += model->requests[r].used;
    for (unsigned p = 0; p < MODEL_POOLS; p++) {
        const struct pool *pool = model->pools[p].pool;
        must(pool->leased_bytes == leased[p] && pool->quarantined_bytes == quarantined[p]);
        must(pool->reserved_bytes == reserved[p] && pool->retiring_bytes == retiring[p]);
        must(pool->n_waiters == waiters[p] && pool->growing_bytes == model->pools[p].growing);
    }
}

/* Nobody waits for what could be done now: no free segment that fits, no growth that would help, no idle
 * segments that are enough for the first in line. */
static void check_progress(struct model *model) {
    for (unsigned p = 0; p < MODEL_POOLS; p++) {
        const struct pool *pool = model->pools[p].pool;
        uint64_t room =
            pool->limit_bytes > pool->reserved_bytes ? pool->limit_bytes - pool->reserved_bytes : 0;
        uint64_t idle = 0, largest_unassigned = 0, first_id = UINT64_MAX, first_size = 0;
        for (unsigned g = 0; g < MODEL_SEGMENTS; g++) {
            const struct model_segment *segment = &model->segments[g];
            if (segment->segment == NULL || segment->pool != p || segment->retiring)
                continue;
            if (segment->taken == 0 && segment->mappers == 0)
                idle += segment->size;
            if (segment->tenant == 0 && segment->size > largest_unassigned)
                largest_unassigned = segment->size;
        }
        bool may_grow = pool->state == POOL_READY && pool->growing_bytes == 0 && pool->retiring_bytes == 0 &&
                        pool->grow_retry_ns <= model->now_ns;
        for (unsigned r = 0; r < MODEL_REQUESTS; r++) {
            const struct model_request *request = &model->requests[r];
            if (!request->used || request->pool != p)
                continue;
            must(request->size > largest_unassigned && request->size <= pool->limit_bytes);
            must(!may_grow || round_up(request->size, SEGMENT_GRANULE) > room);
            if (request->id < first_id) {
                first_id = request->id;
                first_size = request->size;
            }
        }
        must(!may_grow || first_id == UINT64_MAX || round_up(first_size, SEGMENT_GRANULE) > room + idle);
    }
}

static void step_any(struct model *model) {
    static void (*const plain[])(struct model *) = {step_release, step_release_part, step_misuse,
                                                    step_query,   step_share,        step_attach};
    uint64_t choice = random_below(100);

    if (choice < 36)
        step_acquire(model);
    else if (choice < 62)
        plain[random_below(sizeof plain / sizeof *plain)](model);
    else if (choice < 68)
        step_open(model);
    else if (choice < 70)
        step_lose(model);
    else if (choice < 73)
        step_end(model, true);
    else if (choice < 75)
        step_end(model, false);
    else if (choice < 77)
        step_trim(model);
    else if (choice < 78)
        step_configure(model);
    else if (choice < 92)
        step_shell(model);
    else
        step_time(model);
}

static void history(uint64_t seed, unsigned steps, unsigned validate_every) {
    struct model *model = calloc(1, sizeof *model);
    assert_non_null(model);
    print_message("GPUPOOL_TEST_SEED=%llu GPUPOOL_TEST_STEPS=%u\n", (unsigned long long)seed, steps);
    random_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    model->seed = seed;
    model->core = core_make();
    model->core->session_leases_limit = 64;
    for (unsigned p = 0; p < MODEL_POOLS; p++)
        model->pools[p].pool =
            add_starting_pool(model->core, POOL_LIMIT_MAX >> p, 8 * MIB >> p, p == 1 ? 6 * MIB : 0);

    for (model->step = 0; model->step < steps; model->step++) {
        step_any(model);
        drain_answers(model);
        drain_decisions(model);
        check_sums(model);
        check_progress(model);
        if (model->step % validate_every == 0)
            must(core_is_valid(model->core));
    }
    must(core_is_valid(model->core));

    /* The end: everybody leaves, the shell does what it has at hand. */
    while (pick_session(model, false) != MODEL_SESSIONS)
        one_in(2) ? step_lose(model) : step_end(model, false);
    while (pick_session(model, true) != MODEL_SESSIONS)
        step_end(model, true);
    drain_answers(model);
    drain_decisions(model);
    for (unsigned r = 0; r < MODEL_REQUESTS; r++)
        must(!model->requests[r].used);
    for (unsigned g = 0; g < MODEL_SEGMENTS; g++) {
        if (model->segments[g].segment == NULL)
            continue;
        must(model->segments[g].taken == 0 && model->segments[g].mappers == 0);
        if (model->segments[g].retiring)
            finish_retirement(model, g);
        free(model->segments[g].owners);
        model->segments[g].owners = NULL;
    }
    must(model->core->leases.used == 0 && model->core->tokens == NULL);
    must(steps < HISTORY_STEPS || /* it was no idle talk */
         (model->grants > 100 && model->refusals > 50 && model->retirements > 0 && model->attaches > 0 &&
          model->parts > 0));
    core_destroy(model->core);
    free(model);
}

static void random_histories_agree_with_the_model(void **state) {
    const char *seed = getenv("GPUPOOL_TEST_SEED"), *steps = getenv("GPUPOOL_TEST_STEPS");
    unsigned n_steps = steps != NULL ? (unsigned)strtoul(steps, NULL, 10) : HISTORY_STEPS;
    (void)state;

    if (seed != NULL) {
        history(strtoull(seed, NULL, 10), n_steps, 1);
        return;
    }
    for (uint64_t i = 1; i <= HISTORIES; i++)
        history(i, n_steps, VALIDATE_EVERY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_agree_with_the_model),
    };
    return cmocka_run_group_tests_name("histories of the core", tests, NULL, NULL);
}
