/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound of what a user can make the daemon spend. The user's sessions do all that makes a lease, a range,
 * a parcel or a waiting request, in random order and as often as they can, behind fences that never come. The
 * objects are then counted by walking them, not by the quotas' own sums, and are no more than the quotas
 * allow. The cost of each object is that of docs/limits.md.
 */
#include "core_fixture.h"
#include "tests/random.h"

#define SESSIONS     5u
#define POOLS        2u
#define LEASES       40u
#define RANGES       90u
#define WAITING      2u
#define REPLIES      4000u
#define NAMES        256u
#define STEPS_ENOUGH 30000u

/* docs/limits.md names these: with the allocator's own 16 bytes for each object, two tree nodes for the
 * tokens of a lease's block and parcel, and a place in the table. A range costs a free one beside it, too. */
_Static_assert(sizeof(struct lease) + sizeof(struct block) + 4 * 16 + 2 * 32 + 12 <= 544, "a lease");
_Static_assert(sizeof(struct parcel) + sizeof(struct block) + 4 * 16 + 2 * 32 + 8 <= 544, "a parcel");
_Static_assert(2 * sizeof(struct heap_range) <= 192, "a range");
_Static_assert(sizeof(struct request) + 16 <= 320 && sizeof(struct name_wait) + 16 <= 320,
               "a waiting request");
_Static_assert(sizeof(struct name) + sizeof(struct edition) + 2 * 16 <= 1088,
               "a name; its parcels are leases");
_Static_assert(PROTO_PAGE_FENCES *(sizeof(struct fence_queue) + 16) <= 56 * 1024,
               "a session's fences in a pool");

struct scene {
    struct core *core;
    struct pool *pools[POOLS];
    struct session *sessions[SESSIONS];
    uint64_t state, next_request;
    struct {
        unsigned session;
        struct proto_lease_name name;
        uint64_t bytes;
    } names[NAMES];
    struct proto_token tokens[NAMES];
};

static uint64_t below(struct scene *scene, uint64_t bound) {
    return random_next(&scene->state) % bound;
}

static void note(struct scene *scene, const struct lease *lease) {
    unsigned i = (unsigned)below(scene, NAMES), s = 0;
    while (scene->sessions[s] != lease->session)
        s++;
    scene->names[i].session = s;
    scene->names[i].name = name_of(lease);
    scene->names[i].bytes = lease->block->capacity_bytes;
}

static void play_shell(struct scene *scene) {
    struct pool *pool;
    struct answer answer;
    struct segment *segment;
    struct session *asked;
    uint64_t bytes;

    while (core_next_growth(scene->core, &pool, &bytes))
        core_segment_made(pool, bytes, NULL, 0);
    while (core_next_answer(scene->core, &answer))
        for (struct lease *lease = answer.lease; lease != NULL; lease = core_answer_next(&answer, lease)) {
            struct proto_lease wire;
            bool described;
            core_describe_lease(lease, &wire, &described);
            note(scene, lease);
        }
    while (core_next_retirement(scene->core, &segment))
        core_segment_retired(segment, 0);
    while (core_next_reclaim(scene->core, &asked))
        ;
}

static void acquire(struct scene *scene, struct session *session, const struct pool *pool) {
    uint64_t timeout_ns = below(scene, 4) == 0 ? NS_FOREVER : 0;

    if (below(scene, 3) == 0) {
        const struct proto_acquire_segments segments = {.pool = pool->id,
                                                        .segment_bytes = 2 * MIB,
                                                        .count = (uint32_t)(1 + below(scene, 3)),
                                                        .timeout_ns = timeout_ns};
        assert_int_equal(core_acquire_segments(session, ++scene->next_request, &segments, 0), 0);
        return;
    }
    const struct proto_acquire acquire = {
        .pool = pool->id, .size_bytes = 512 * (1 + below(scene, 4096)), .timeout_ns = timeout_ns};
    assert_int_equal(core_acquire(session, ++scene->next_request, &acquire, 0), 0);
}

/* A part of a lease, mostly a small one in its middle, and mostly behind a fence. */
static struct proto_release part_of(struct scene *scene, unsigned i, bool fenced) {
    uint64_t granules = scene->names[i].bytes / 512 + 1;
    struct proto_release part = {.lease = scene->names[i].name.lease,
                                 .generation = scene->names[i].name.generation,
                                 .offset_bytes = 512 * below(scene, granules),
                                 .size_bytes = 512 * (1 + below(scene, 4))};
    if (fenced && below(scene, 4) > 0) {
        part.fence = (uint32_t)(1 + below(scene, PROTO_PAGE_FENCES));
        part.fence_value = 1 + below(scene, 100);
    }
    return part;
}

static void share(struct scene *scene, struct session *session, unsigned i) {
    const struct proto_token fresh[2] = {{{(uint8_t)random_next(&scene->state)}}, {{0}}};
    struct proto_token tokens[2], token;

    memcpy(tokens, fresh, sizeof tokens);
    for (unsigned t = 0; t < 2; t++)
        for (unsigned b = 0; b < 8; b++)
            tokens[t].bytes[b] = (uint8_t)random_next(&scene->state);
    const struct proto_send send = {
        .share = {.lease = scene->names[i].name.lease, .generation = scene->names[i].name.generation},
        .lifetime_ns = NS_PER_S,
        .takers = (uint32_t)(1 + below(scene, 2))};
    int r = below(scene, 2) == 0 ? share_lease(session, &scene->names[i].name, 0, &tokens[0], &token)
                                 : send_lease(session, &send, tokens, 0, &token);
    if (r == 0)
        scene->tokens[below(scene, NAMES)] = token;
}

static void act(struct scene *scene) {
    unsigned i = (unsigned)below(scene, NAMES), k = (unsigned)below(scene, NAMES);
    struct session *session = scene->sessions[scene->names[i].session];
    struct pool *pool = scene->pools[below(scene, POOLS)];
    struct proto_release part = part_of(scene, i, true);
    struct lease *lease = NULL;

    switch (below(scene, 16)) {
    case 0:
    case 1:
        acquire(scene, scene->sessions[below(scene, SESSIONS)], pool);
        break;
    case 2:
        (void)core_release(session, &part, 0);
        break;
    case 3:
    case 4:
    case 5:
    case 6:
    case 7:
        (void)core_release_one_way(session, &part, 0);
        break;
    case 8:
    case 9:
        part = part_of(scene, i, false);
        (void)core_split(session, &part, &lease);
        break;
    case 10:
        share(scene, session, i);
        break;
    case 11:
    case 12:
        (void)core_attach(scene->sessions[below(scene, SESSIONS)], &scene->tokens[i], &lease);
        break;
    case 13: {
        const struct proto_merge merge = {scene->names[i].name.lease, scene->names[i].name.generation,
                                          scene->names[k].name.lease, scene->names[k].name.generation};
        (void)(below(scene, 2) == 0 ? core_merge : core_merge_one_way)(session, &merge);
        break;
    }
    case 14:
        if (below(scene, 4) == 0)
            (void)core_session_keep_reply(session, 1 + below(scene, 300));
        break;
    default:
        if (below(scene, 8) == 0) { /* all of it, so that there is room to go on */
            part.offset_bytes = part.size_bytes = 0;
            part.fence = part.fence_value = 0;
            (void)core_release_one_way(session, &part, 0);
        } else if (below(scene, 8) == 0) {
            (void)core_revoke(session, &scene->tokens[i], 0);
        }
    }
    if (lease != NULL)
        note(scene, lease);
}

struct spent {
    uint64_t leases, ranges, free_ranges, segments, waiting;
};

static struct spent count(const struct scene *scene) {
    struct spent spent = {.leases = scene->core->leases.used + scene->core->parcels.count};

    for (size_t slot = 0; slot < scene->core->segment_slots; slot++) {
        const struct segment *segment = scene->core->segments[slot];
        if (segment == NULL || segment->span == NULL)
            continue;
        spent.segments++;
        for (const struct heap_range *range = segment->span->lowest; range != NULL; range = range->upper) {
            spent.ranges += !range->free;
            spent.free_ranges += range->free;
        }
    }
    for (unsigned p = 0; p < POOLS; p++)
        spent.waiting += scene->pools[p]->waiters.count;
    return spent;
}

static void a_user_spends_no_more_than_its_quotas_whichever_way_it_tries(void **state) {
    struct scene scene = {.core = *state, .state = random_seed(1)};
    struct policy *policy = policy_make();
    struct spent most = {0};

    policy->everybody[QUOTA_SESSIONS] = SESSIONS;
    policy->everybody[QUOTA_LEASES] = LEASES;
    policy->everybody[QUOTA_RANGES] = RANGES;
    policy->everybody[QUOTA_WAITING] = WAITING;
    policy->everybody[QUOTA_REPLIES] = REPLIES;
    set_policy(scene.core, policy, 0);
    for (unsigned p = 0; p < POOLS; p++)
        scene.pools[p] =
            p == 0 ? add_vmm_pool(scene.core, 16 * MIB) : add_pool(scene.core, 16 * MIB, 2 * MIB, 0);
    for (unsigned s = 0; s < SESSIONS; s++) {
        scene.sessions[s] = open_session(scene.core, (pid_t)s + 1, UID_A);
        core_session_set_page(scene.sessions[s], &page);
    }
    for (unsigned step = 0; step < STEPS_ENOUGH; step++) {
        act(&scene);
        play_shell(&scene);
        const struct spent spent = count(&scene);
        assert_true(spent.leases <= LEASES);
        assert_true(spent.ranges <= RANGES);
        assert_true(spent.free_ranges <= spent.ranges + spent.segments);
        assert_true(spent.waiting <= WAITING);
        if (step % 64 == 0)
            assert_true(core_is_valid(scene.core));
        most.leases = spent.leases > most.leases ? spent.leases : most.leases;
        most.ranges = spent.ranges > most.ranges ? spent.ranges : most.ranges;
        most.waiting = spent.waiting > most.waiting ? spent.waiting : most.waiting;
    }
    /* it was tried in earnest */
    assert_int_equal(most.leases, LEASES);
    assert_int_equal(most.ranges, RANGES);
    assert_int_equal(most.waiting, WAITING);
    assert_int_equal(used(scene.sessions[0], QUOTA_REPLIES) > REPLIES - 300, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(a_user_spends_no_more_than_its_quotas_whichever_way_it_tries),
    };
    return cmocka_run_group_tests_name("spend", tests, NULL, NULL);
}
