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
#include "core_model.h"

#define HISTORIES      10u
#define HISTORY_STEPS  4000u
#define VALIDATE_EVERY 16u

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
    model->sessions[s].wants = one_in(2);
    if (model->sessions[s].wants)
        core_session_want_reclaim(model->sessions[s].session);
    if (one_in(4))
        return;
    model->sessions[s].page = calloc(1, sizeof *model->sessions[s].page);
    assert_non_null(model->sessions[s].page);
    for (unsigned word = 0; word < MODEL_WORDS; word++) { /* words go round */
        model->sessions[s].written[word] = one_in(2) ? 0 : UINT64_MAX - random_below(4);
        atomic_store(&model->sessions[s].page->fences[word], model->sessions[s].written[word]);
    }
    core_session_set_page(model->sessions[s].session, model->sessions[s].page);
}

/* Puts a release behind a fence. Returns whether it has to wait. */
static bool add_fence(struct model *model, unsigned s, struct proto_release *release) {
    struct model_session *session = &model->sessions[s];
    uint32_t word = (uint32_t)random_below(MODEL_WORDS);

    release->fence = word + 1;
    release->fence_value = session->written[word] + random_below(3);
    if (one_in(8))
        release->fence_value -= random_below(6); /* it was overtaken */
    else
        session->written[word] = release->fence_value;
    return session->page != NULL && !model_is_ready(model, s, word, release->fence_value);
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
    struct proto_release release = {model->leases[l].id, model->leases[l].generation, 0, 0};
    unsigned s = model->leases[l].session;
    struct session *session = model->sessions[s].session;
    bool fenced = one_in(2), waits = fenced && add_fence(model, s, &release);
    if (fenced && model->sessions[s].page == NULL) {
        must(core_release(session, &release, model->now_ns) == PROTO_E_INVALID);
        return;
    }
    assert_int_equal(core_release(session, &release, model->now_ns), 0);
    if (waits)
        model_fence_lease(model, l, release.fence - 1, release.fence_value);
    else
        model_remove_lease(model, l);
    assert_int_equal(core_release(session, &release, model->now_ns), PROTO_E_STALE);
}

/* A random part of a lease, which may or may not be one that can be disposed of alone. Returns what the core
 * has to say to that: 0, INVALID or SHARED. */
static int random_part(struct model *model, unsigned l, struct proto_release *ret_part) {
    unsigned b = model->leases[l].block;
    const struct model_block *block = &model->blocks[b];
    const struct model_segment *where = &model->segments[block->segment];
    uint64_t granules = block->capacity / GRANULE, start = random_below(granules + 1),
             count = 1 + random_below(granules - (start < granules ? start : 0) + one_in(8));
    if (one_in(3)) {
        start = granules - count < granules ? granules - count : 0; /* a tail, as shrinking does */
    }
    *ret_part = (struct proto_release){model->leases[l].id, model->leases[l].generation, start * GRANULE,
                                       count * GRANULE};
    bool held = start + count <= granules;
    for (uint64_t g = 0; held && g < count; g++)
        held = where->owners[block->offset / GRANULE + start + g] == b + 1;
    return block->shared || block->live + block->lost > 1 ? PROTO_E_SHARED : held ? 0 : PROTO_E_INVALID;
}

/* The part has left the lease: for nobody (0) or for another block (plus one). */
static void model_cut(struct model *model, unsigned l, const struct proto_release *part, unsigned to) {
    unsigned b = model->leases[l].block;
    struct model_block *block = &model->blocks[b];
    const struct model_segment *where = &model->segments[block->segment];

    model_set_owner(model, block->segment, block->offset + part->offset_bytes, part->size_bytes, b + 1, to);
    block->held -= part->size_bytes;
    if (block->held == 0) {
        model_remove_lease(model, l);
        return;
    }
    while (where->owners[(block->offset + block->capacity) / GRANULE - 1] != b + 1)
        block->capacity -= GRANULE;
    if (block->size > block->capacity)
        block->size = block->capacity;
}

/* Whether the session may not have one more lease. */
static bool is_full(const struct model *model, unsigned s) {
    return model->sessions[s].leases - model_arrived(model, s) >= model->core->session_leases_limit;
}

/* A part behind a fence that is not ready becomes a lease and a block of its own, if there is a rest. */
static void release_part_later(struct model *model, unsigned l, const struct proto_release *part,
                               int expected) {
    unsigned s = model->leases[l].session;
    const struct model_block old = model->blocks[model->leases[l].block];
    bool all = expected == 0 && part->size_bytes == old.held;

    if (!all && is_full(model, s))
        expected = PROTO_E_LIMIT;
    must(core_release(model->sessions[s].session, part, model->now_ns) == expected);
    if (expected != 0)
        return;
    model->parts++;
    if (!all) {
        const struct lease_table *table = &model->core->leases;
        uint32_t slot = 0;
        while (slot < table->capacity &&
               (table->slots[slot] == NULL || table->slots[slot]->generation != table->next_generation))
            slot++;
        must(slot < table->capacity);
        unsigned b = model_new_block(model, &(struct model_block){.segment = old.segment,
                                                                  .offset = old.offset + part->offset_bytes,
                                                                  .size = part->size_bytes,
                                                                  .capacity = part->size_bytes,
                                                                  .held = part->size_bytes});
        model_add_lease(model, s, b, table->slots[slot]);
        model_cut(model, l, part, b + 1);
        for (l = 0; model->leases[l].id != slot + 1 || !model->leases[l].used; l++)
            must(l + 1 < MODEL_LEASES);
    }
    model_fence_lease(model, l, part->fence - 1, part->fence_value);
}

static void step_release_part(struct model *model) {
    struct proto_release part;
    unsigned l = pick_lease(model);
    if (l == MODEL_LEASES)
        return;
    int expected = random_part(model, l, &part);
    unsigned s = model->leases[l].session;
    if (model->sessions[s].page != NULL && one_in(2) && add_fence(model, s, &part)) {
        release_part_later(model, l, &part, expected);
        return;
    }
    must(core_release(model->sessions[model->leases[l].session].session, &part, model->now_ns) == expected);
    if (expected != 0)
        return;
    model->parts++;
    model_cut(model, l, &part, 0);
}

static void step_split(struct model *model) {
    struct proto_release part;
    struct lease *lease = NULL;
    unsigned l = pick_lease(model);
    if (l == MODEL_LEASES)
        return;
    unsigned s = model->leases[l].session;
    const struct model_block old = model->blocks[model->leases[l].block];
    int expected = random_part(model, l, &part);
    if (is_full(model, s))
        expected = PROTO_E_LIMIT;
    must(core_split(model->sessions[s].session, &part, &lease) == expected);
    if (expected != 0) {
        must(lease == NULL);
        return;
    }
    const struct proto_lease wire = model_describe(model, s, lease);
    must(wire.segment == model->segments[old.segment].id && wire.description.id == 0);
    must(wire.offset_bytes == old.offset + part.offset_bytes);
    must(wire.size_bytes == part.size_bytes && wire.capacity_bytes == part.size_bytes);
    unsigned b = model_new_block(model, &(struct model_block){.segment = old.segment,
                                                              .offset = wire.offset_bytes,
                                                              .size = part.size_bytes,
                                                              .capacity = part.size_bytes,
                                                              .held = part.size_bytes});
    model_add_lease(model, s, b, lease);
    model_cut(model, l, &part, b + 1);
    model->splits++;
}

/* Two leases of a session, often of one segment. What is merged is a block that has the ranges of both. */
static void step_merge(struct model *model) {
    unsigned l = pick_lease(model), k = MODEL_LEASES;
    if (l == MODEL_LEASES)
        return;
    unsigned s = model->leases[l].session, first = (unsigned)random_below(MODEL_LEASES);
    for (unsigned i = 0; i < MODEL_LEASES && k == MODEL_LEASES; i++) {
        unsigned c = (first + i) % MODEL_LEASES;
        if (model->leases[c].used && model->leases[c].session == s && !model->leases[c].fenced &&
            (model->blocks[model->leases[c].block].segment == model->blocks[model->leases[l].block].segment ||
             one_in(16)))
            k = c;
    }
    if (k == MODEL_LEASES)
        return;
    struct model_block *block = &model->blocks[model->leases[l].block],
                       *from = &model->blocks[model->leases[k].block];
    int expected =
        block->shared || from->shared || block->live + block->lost > 1 || from->live + from->lost > 1
            ? PROTO_E_SHARED
        : l == k || from->segment != block->segment || from->offset < block->offset ? PROTO_E_INVALID
                                                                                    : 0;
    const struct proto_merge merge = {model->leases[l].id, model->leases[l].generation, model->leases[k].id,
                                      model->leases[k].generation};
    must(core_merge(model->sessions[s].session, &merge) == expected);
    if (expected != 0)
        return;
    struct model_segment *where = &model->segments[block->segment];
    uint64_t end = block->offset + block->capacity, from_end = from->offset + from->capacity;
    for (uint64_t g = from->offset / GRANULE; g < from_end / GRANULE; g++)
        if (where->owners[g] == model->leases[k].block + 1)
            where->owners[g] = (uint16_t)(model->leases[l].block + 1);
    block->held += from->held;
    block->capacity = block->size = (end > from_end ? end : from_end) - block->offset;
    model_remove_lease(model, k);
    must(core_merge(model->sessions[s].session, &merge) == PROTO_E_STALE);
    model->merges++;
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
    must(core_share(model->sessions[model->leases[l].session].session, &name, 0, &fresh, &token) == 0);
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
        : is_full(model, s) ? PROTO_E_LIMIT
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
    model_lose_fences(model, s);
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
    struct proto_page *page = model->sessions[s].page;
    model_remove_session(model, s);
    if (lost)
        core_session_gone(session, model->now_ns);
    else
        core_session_close(session, model->now_ns);
    free(page);
}

/* Streams get on: to where they are to write, or not so far. One of the words is never written. */
static void step_streams(struct model *model) {
    for (unsigned s = 0; s < MODEL_SESSIONS; s++) {
        const struct model_session *session = &model->sessions[s];
        if (session->session == NULL || session->page == NULL || one_in(2))
            continue;
        for (unsigned word = 0; word < MODEL_WORDS - 1; word++) {
            uint64_t now = session->page->fences[word], left = session->written[word] - now;
            session->page->fences[word] = now + (one_in(3) ? left : random_below(left + 1));
        }
    }
}

static void step_trim(struct model *model) {
    struct pool *pool = model->pools[random_below(MODEL_POOLS)].pool;
    uint64_t before = pool->retiring_bytes, bytes = core_trim(pool);
    must(pool->retiring_bytes == before + bytes);
    must(bytes == 0 || pool->reserved_bytes - pool->retiring_bytes >= pool->reserve_bytes);
}

static void step_configure(struct model *model) {
    const struct pool_sizes sizes = {
        .limit_bytes = random_below(POOL_LIMIT_MAX + 1),
        .step_bytes = random_below(10 * MIB),
        .reserve_bytes = one_in(2) ? 0 : random_below(10 * MIB),
        .low_water_bytes = one_in(2) ? 0 : random_below(20 * MIB),
    };
    core_pool_configure(model->pools[random_below(MODEL_POOLS)].pool, &sizes, model->now_ns);
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

static void step_any(struct model *model) {
    static void (*const plain[])(struct model *) = {step_release, step_release, step_release_part,
                                                    step_split,   step_merge,   step_misuse,
                                                    step_query,   step_share,   step_attach};
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
    else if (choice < 89)
        step_shell(model);
    else if (choice < 93)
        step_streams(model);
    else
        step_time(model);
}

/* Returns how often a pool grew ahead of demand, which is rare. */
static unsigned history(uint64_t seed, unsigned steps, unsigned validate_every) {
    struct model *model = calloc(1, sizeof *model);
    assert_non_null(model);
    print_message("GPUPOOL_TEST_SEED=%llu GPUPOOL_TEST_STEPS=%u\n", (unsigned long long)seed, steps);
    random_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    model->seed = seed;
    model->core = core_make();
    model->core->session_leases_limit = 64;
    for (unsigned p = 0; p < MODEL_POOLS; p++) {
        model->pools[p].pool =
            add_starting_pool(model->core, POOL_LIMIT_MAX >> p, 8 * MIB >> p, p == 1 ? 6 * MIB : 0);
        model->pools[p].pool->low_water_bytes = p == 0 ? 4 * MIB : 0;
    }

    for (model->step = 0; model->step < steps; model->step++) {
        step_any(model);
        drain_answers(model);
        drain_decisions(model);
        check_sums(model);
        check_progress(model);
        if (model->step % validate_every == 0) {
            must(core_is_valid(model->core));
            check_line(model);
        }
    }
    must(core_is_valid(model->core));

    /* The end: everybody leaves, the shell does what it has at hand. */
    while (pick_session(model, false) != MODEL_SESSIONS || pick_session(model, true) != MODEL_SESSIONS) {
        bool lost = pick_session(model, false) == MODEL_SESSIONS;
        !lost &&one_in(2) ? step_lose(model) : step_end(model, lost);
        drain_answers(model);
        drain_decisions(model);
    }
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
          model->parts > 0 && model->splits > 0 && model->merges > 0 && model->reclaims > 0 &&
          model->fences > 50 && model->arrivals > 20));
    unsigned aheads = model->aheads;
    core_destroy(model->core);
    free(model);
    return aheads;
}

static void random_histories_agree_with_the_model(void **state) {
    const char *seed = getenv("GPUPOOL_TEST_SEED"), *steps = getenv("GPUPOOL_TEST_STEPS");
    unsigned aheads = 0, n_steps = steps != NULL ? (unsigned)strtoul(steps, NULL, 10) : HISTORY_STEPS;
    (void)state;

    if (seed != NULL) {
        history(strtoull(seed, NULL, 10), n_steps, 1);
        return;
    }
    for (uint64_t i = 1; i <= HISTORIES; i++)
        aheads += history(i, n_steps, VALIDATE_EVERY);
    assert_true(n_steps < HISTORY_STEPS || aheads > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_agree_with_the_model),
    };
    return cmocka_run_group_tests_name("histories of the core", tests, NULL, NULL);
}
