/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_CORE_FIXTURE_H
#define TESTS_UNIT_CORE_FIXTURE_H
/*
 * The fixture of the tests of the daemon's core, which play the shell. Every helper that changes the core
 * checks all of its invariants afterwards.
 *
 * A CORE_TEST() gets a core of its own as its state. After the test its sessions end, and nothing may be
 * left.
 */
#include "base/clock.h"
#include "base/units.h"
#include "daemon/core/core.h"
#include "daemon/core/plan.h"
#include "daemon/core/policy.h"
#include "daemon/core/pool.h"
#include "daemon/core/quota.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "unit.h"

#define UID_A 1001u
#define UID_B 1002u
#define GROUP 500u
#define OTHER 501u

/* The page of the sessions that are opened with one. A CORE_TEST() begins with a page of zeros. */
static struct proto_page page;

static inline struct core *core_make(void) {
    struct core *core = NULL;
    assert_int_equal(core_new(&core), 0);
    assert_non_null(core);
    return core;
}

static inline struct pool *add_starting_pool(struct core *core, uint64_t limit, uint64_t step,
                                             uint64_t reserve) {
    struct pool *pool = NULL;
    const struct pool_config config = {
        .kind = PROTO_POOL_DEVICE,
        .device = 0,
        .numa_node = -1,
        .name = "test pool",
        .sizes = {.limit_bytes = limit, .step_bytes = step, .reserve_bytes = reserve},
    };
    assert_int_equal(core_add_pool(core, &config, &pool), 0);
    assert_int_equal(pool->state, POOL_STARTING);
    return pool;
}

static inline struct pool *add_pool(struct core *core, uint64_t limit, uint64_t step, uint64_t reserve) {
    struct pool *pool = add_starting_pool(core, limit, step, reserve);
    core_pool_ready(pool, 0);
    assert_true(core_is_valid(core));
    return pool;
}

static inline void configure(struct pool *pool, uint64_t limit, uint64_t step, uint64_t reserve,
                             uint64_t low_water, uint64_t now_ns) {
    const struct pool_sizes sizes = {
        .limit_bytes = limit, .step_bytes = step, .reserve_bytes = reserve, .low_water_bytes = low_water};
    core_pool_configure(pool, &sizes, now_ns);
    assert_true(core_is_valid(pool->core));
}

static inline struct session *open_in_group(struct core *core, pid_t pid, uid_t uid, const gid_t *groups,
                                            unsigned n_groups) {
    struct session *session = NULL;
    struct peer peer = {.pid = pid, .uid = uid, .gid = uid, .groups = groups, .n_groups = n_groups};
    snprintf(peer.command, sizeof peer.command, "worker-%d", (int)pid);
    assert_int_equal(core_session_open(core, &peer, 0, &session), 0);
    assert_true(core_is_valid(core));
    return session;
}

static inline struct session *open_session(struct core *core, pid_t pid, uid_t uid) {
    return open_in_group(core, pid, uid, NULL, 0);
}

static inline struct session *open_with_page(struct core *core, pid_t pid, uid_t uid) {
    struct session *session = open_session(core, pid, uid);
    core_session_set_page(session, &page);
    return session;
}

/* A pool whose segments are handed over as descriptors. Each request of at least a segment gets one of its
 * own. */
static inline struct pool *add_vmm_pool(struct core *core, uint64_t limit) {
    struct pool *pool = NULL;
    const struct pool_config config = {
        .kind = PROTO_POOL_DEVICE,
        .device = 0,
        .numa_node = -1,
        .name = "test pool",
        .sizes = {.limit_bytes = limit, .step_bytes = 2 * MIB},
        .needs_vmm = true,
    };
    assert_int_equal(core_add_pool(core, &config, &pool), 0);
    core_pool_ready(pool, 0);
    return pool;
}

/* Asks for whole segments. */
static inline void ask_segments_as(struct session *session, const struct pool *pool, uint64_t request,
                                   uint32_t count, uint64_t segment_bytes, uint32_t flags,
                                   uint64_t timeout_ns, uint64_t now_ns) {
    const struct proto_acquire_segments acquire = {.pool = pool->id,
                                                   .flags = flags,
                                                   .segment_bytes = segment_bytes,
                                                   .count = count,
                                                   .timeout_ns = timeout_ns};
    assert_int_equal(core_acquire_segments(session, request, &acquire, now_ns), 0);
    assert_true(core_is_valid(session->core));
}

static inline void ask_segments(struct session *session, const struct pool *pool, uint64_t request,
                                uint32_t count, uint64_t segment_bytes, uint64_t timeout_ns) {
    ask_segments_as(session, pool, request, count, segment_bytes, 0, timeout_ns, 0);
}

/* Asks with all that an ACQUIRE can say. least: the needed size (0: only the size serves). */
static inline void ask_least(struct session *session, const struct pool *pool, uint64_t request,
                             uint64_t size, uint64_t least, uint32_t flags, uint64_t timeout_ns,
                             uint64_t now_ns) {
    const struct proto_acquire acquire = {
        .pool = pool->id, .flags = flags, .size_bytes = size, .least_bytes = least, .timeout_ns = timeout_ns};
    assert_int_equal(core_acquire(session, request, &acquire, now_ns), 0);
    assert_true(core_is_valid(session->core));
}

static inline void ask(struct session *session, const struct pool *pool, uint64_t request, uint64_t size,
                       uint64_t timeout_ns, uint64_t now_ns) {
    ask_least(session, pool, request, size, 0, 0, timeout_ns, now_ns);
}

/* Which segments the session has to close, for its own request of a size or for others that wait (0). */
static inline struct proto_segments idle_as(struct session *session, const struct pool *pool, uint64_t size,
                                            uint32_t flags, uint64_t now_ns) {
    const struct proto_idle idle = {.pool = pool->id, .flags = flags, .size_bytes = size};
    struct proto_segments segments;
    assert_int_equal(core_idle(session, &idle, now_ns, &segments), 0);
    assert_true(core_is_valid(session->core));
    return segments;
}

/* Returns the segments that a session without work on its GPU has to close. */
static inline struct proto_segments idle(struct session *session, const struct pool *pool, uint64_t size) {
    return idle_as(session, pool, size, 0, 0);
}

/* The session says that it has closed a segment. Returns what core_closed does. */
static inline int closed(struct session *session, uint64_t segment) {
    const struct proto_closed message = {.segment = segment};
    int r = core_closed(session, &message, 0);
    assert_true(core_is_valid(session->core));
    return r;
}

/* The next answer has to be this session's lease for this request. */
static inline struct lease *expect_granted(struct core *core, const struct session *session,
                                           uint64_t request) {
    struct answer answer = {0};
    assert_true(core_next_answer(core, &answer));
    assert_ptr_equal(answer.session, session);
    assert_int_equal(answer.request, request);
    assert_non_null(answer.lease);
    assert_true(core_is_valid(core));
    return answer.lease;
}

/* The next answer has to be this refusal. Returns its text, which lives until the next refusal. */
static inline const char *expect_refused(struct core *core, const struct session *session, uint64_t request,
                                         enum proto_error error) {
    static struct answer answer;
    answer = (struct answer){0};
    assert_true(core_next_answer(core, &answer));
    assert_ptr_equal(answer.session, session);
    assert_int_equal(answer.request, request);
    assert_null(answer.lease);
    assert_int_equal(answer.failure.error, error);
    assert_true(answer.failure.text_length > 0);
    assert_int_equal(answer.failure.text_length, strlen(answer.failure.text));
    assert_true(core_is_valid(core));
    return answer.failure.text;
}

/* The next answer has to be so many leases, each on a whole segment of the size. Returns their names in
 * ret_names, if that is not NULL. */
static inline void expect_segments(struct core *core, const struct session *session, uint64_t request,
                                   uint32_t count, uint64_t segment_bytes,
                                   struct proto_lease_name *ret_names) {
    struct answer answer = {0};
    uint32_t n = 0;
    assert_true(core_next_answer(core, &answer));
    assert_ptr_equal(answer.session, session);
    assert_int_equal(answer.request, request);
    assert_int_equal(answer.n_leases, count);
    for (struct lease *lease = answer.lease; lease != NULL; lease = core_answer_next(&answer, lease), n++) {
        struct proto_lease wire;
        bool described;
        assert_false(lease->unanswered);
        assert_int_equal(lease->block->segment->size_bytes, segment_bytes);
        core_describe_lease(lease, &wire, &described);
        assert_int_equal(wire.offset_bytes, 0);
        assert_int_equal(wire.size_bytes, segment_bytes);
        assert_int_equal(wire.capacity_bytes, segment_bytes);
        if (ret_names != NULL)
            ret_names[n] = (struct proto_lease_name){lease->id, lease->generation};
    }
    assert_int_equal(n, count);
    assert_true(core_is_valid(core));
}

static inline void expect_no_answer(struct core *core) {
    struct answer answer;
    assert_false(core_next_answer(core, &answer));
}

/* The shell takes the growth that is decided. Returns its size. */
static inline uint64_t expect_growth(struct core *core, const struct pool *pool) {
    struct pool *growing = NULL;
    uint64_t size = 0;
    assert_true(core_next_growth(core, &growing, &size));
    assert_ptr_equal(growing, pool);
    assert_true(size > 0 && size % SEGMENT_GRANULE == 0);
    return size;
}

static inline void expect_no_growth(struct core *core) {
    struct pool *pool;
    uint64_t size;
    assert_false(core_next_growth(core, &pool, &size));
}

static inline void expect_no_retirement(struct core *core) {
    struct segment *segment;
    assert_false(core_next_retirement(core, &segment));
}

static inline void segment_made(struct pool *pool, uint64_t size, uint64_t now_ns) {
    assert_int_equal(core_segment_made(pool, size, NULL, now_ns), 0);
    assert_true(core_is_valid(pool->core));
}

static inline void growth_failed(struct pool *pool, const char *error, uint64_t now_ns) {
    core_growth_failed(pool, error, now_ns);
    assert_true(core_is_valid(pool->core));
}

/* Takes the growth and makes it, which has to be of this size. */
static inline void grow(struct pool *pool, uint64_t size, uint64_t now_ns) {
    assert_int_equal(expect_growth(pool->core, pool), size);
    segment_made(pool, size, now_ns);
}

/* Frees every segment that is to be retired. Returns their bytes. */
static inline uint64_t retire_all(struct core *core, uint64_t now_ns) {
    struct segment *segment;
    uint64_t bytes = 0;
    while (core_next_retirement(core, &segment)) {
        bytes += segment->size_bytes;
        core_segment_retired(segment, now_ns);
        assert_true(core_is_valid(core));
    }
    return bytes;
}

/* A lease that is there at once. */
static inline struct lease *take(struct session *session, const struct pool *pool, uint64_t size,
                                 uint64_t now_ns) {
    ask(session, pool, 77, size, 0, now_ns);
    return expect_granted(session->core, session, 77);
}

/* A lease for which the pool may have to grow. */
static inline struct lease *take_growing(struct session *session, struct pool *pool, uint64_t size,
                                         uint64_t now_ns) {
    struct pool *growing;
    uint64_t bytes;
    ask(session, pool, 78, size, NS_FOREVER, now_ns);
    while (core_next_growth(session->core, &growing, &bytes))
        segment_made(growing, bytes, now_ns);
    return expect_granted(session->core, session, 78);
}

/* Tells the session of its lease, as the shell does when it sends it. Returns whether the segment was
 * described. */
static inline bool describe(struct lease *lease, struct proto_lease *ret_wire) {
    struct proto_lease wire;
    bool described;
    core_describe_lease(lease, &wire, &described);
    assert_int_equal(wire.lease, lease->id);
    assert_int_equal(wire.generation, lease->generation);
    assert_int_equal(wire.description.id, described ? wire.segment : 0);
    assert_true(core_is_valid(lease->session->core));
    if (ret_wire != NULL)
        *ret_wire = wire;
    return described;
}

/* A lease's name outlives it. */
static inline struct proto_lease_name name_of(const struct lease *lease) {
    return (struct proto_lease_name){lease->id, lease->generation};
}

static inline int release_as(struct session *session, const struct proto_release *release, uint64_t now_ns) {
    int r = core_release(session, release, now_ns);
    assert_true(core_is_valid(session->core));
    return r;
}

static inline int release_part(struct session *session, struct proto_lease_name name, uint64_t offset,
                               uint64_t size, uint64_t now_ns) {
    const struct proto_release release = {name.lease, name.generation, offset, size};
    return release_as(session, &release, now_ns);
}

static inline int release(struct session *session, struct proto_lease_name name, uint64_t now_ns) {
    return release_part(session, name, 0, 0, now_ns);
}

/* A stream gets to where it writes the word. */
static inline void arrive(uint32_t word, uint64_t value) {
    atomic_store(&page.fences[word], value);
}

/* A release, of a part or (size 0) of the whole, behind a word. */
static inline int release_part_behind(struct session *session, struct proto_lease_name name, uint64_t offset,
                                      uint64_t size, uint32_t word, uint64_t value, uint64_t now_ns) {
    const struct proto_release release = {.lease = name.lease,
                                          .generation = name.generation,
                                          .offset_bytes = offset,
                                          .size_bytes = size,
                                          .fence = word + 1,
                                          .fence_value = value};
    return release_as(session, &release, now_ns);
}

static inline int release_behind(struct session *session, struct proto_lease_name name, uint32_t word,
                                 uint64_t value) {
    return release_part_behind(session, name, 0, 0, word, value, 0);
}

/* Shares a whole lease. Returns what core_share() does. */
static inline int share_lease(struct session *session, const struct proto_lease_name *name,
                              uint64_t size_bytes, const struct proto_token *fresh,
                              struct proto_token *ret_token) {
    const struct proto_share wanted = {
        .lease = name->lease, .generation = name->generation, .size_bytes = size_bytes};
    struct lease *lease = NULL;

    int r = core_share(session, &wanted, fresh, 0, &lease, ret_token);
    assert_true((r == 0) == (lease != NULL));
    if (r == 0)
        assert_int_equal(lease->id, name->lease);
    return r;
}

static inline int send_lease(struct session *session, const struct proto_send *send,
                             const struct proto_token fresh[static 2], uint64_t now_ns,
                             struct proto_token *ret_token) {
    struct lease *lease = NULL;
    return core_send(session, send, fresh, now_ns, &lease, ret_token);
}

/* A part of a lease as a lease of its own. Returns what core_split does. */
static inline int split(struct session *session, struct proto_lease_name name, uint64_t offset, uint64_t size,
                        struct lease **ret_lease) {
    const struct proto_release part = {name.lease, name.generation, offset, size};
    int r = core_split(session, &part, ret_lease);
    assert_true(core_is_valid(session->core));
    return r;
}

static inline void close_session(struct session *session, uint64_t now_ns) {
    struct core *core = session->core;
    core_session_close(session, now_ns);
    assert_true(core_is_valid(core));
}

static inline void lose_session(struct session *session, uint64_t now_ns) {
    core_session_lose(session, now_ns, "waiting for its process to end");
    assert_true(core_is_valid(session->core));
}

static inline void session_gone(struct session *session, uint64_t now_ns) {
    struct core *core = session->core;
    core_session_gone(session, now_ns);
    assert_true(core_is_valid(core));
}

static inline void tick(struct core *core, uint64_t now_ns) {
    core_tick(core, now_ns);
    assert_true(core_is_valid(core));
}

/* Ends every session and parcel and the core, which asserts that nothing is left. */
static inline void core_destroy(struct core *core) {
    struct answer answer;
    while (!list_is_empty(&core->sessions)) {
        struct session *session = container_of(core->sessions.next, struct session, link);
        if (session->state == SESSION_ACTIVE)
            core_session_close(session, NS_FOREVER - 1);
        else
            core_session_gone(session, NS_FOREVER - 1);
    }
    while (core_next_answer(core, &answer))
        ;
    uint64_t sent_bytes;
    core_revoke_all(core, 0, NS_FOREVER - 1, &sent_bytes);
    core_unpublish_all(core, NS_FOREVER - 1);
    for (unsigned i = 0; i < core->n_pools; i++) {
        assert_int_equal(core->pools[i]->leased_bytes, 0);
        assert_int_equal(core->pools[i]->fenced_bytes, 0);
        assert_int_equal(core->pools[i]->quarantined_bytes, 0);
        assert_int_equal(core->pools[i]->n_leases, 0);
        assert_int_equal(core->pools[i]->waiters.count, 0);
    }
    assert_true(core_is_valid(core));
    assert_null(core_free(core));
}

static inline int core_set_up(void **state) {
    memset(&page, 0, sizeof page);
    *state = core_make();
    return 0;
}

static inline int core_tear_down(void **state) {
    core_destroy(*state);
    return 0;
}

#define CORE_TEST(test) cmocka_unit_test_setup_teardown(test, core_set_up, core_tear_down)

static inline struct proto_token token_of(uint8_t byte) {
    struct proto_token token;
    memset(token.bytes, byte, sizeof token.bytes);
    return token;
}

static inline struct proto_info query(struct session *session, const struct lease *lease) {
    const struct proto_lease_name name = name_of(lease);
    struct proto_info info;
    assert_int_equal(core_query(session, &name, &info), 0);
    return info;
}

/* A session that keeps idle memory, and gives it back when it is asked. */
static inline struct session *open_wanting(struct core *core, pid_t pid, uid_t uid) {
    struct session *session = open_session(core, pid, uid);
    core_session_want_reclaim(session);
    return session;
}

static inline void expect_reclaim(struct core *core, const struct session *session) {
    struct session *asked = NULL;
    assert_true(core_next_reclaim(core, &asked));
    assert_ptr_equal(asked, session);
    assert_true(core_is_valid(core));
}

static inline void expect_no_reclaim(struct core *core) {
    struct session *asked;
    assert_false(core_next_reclaim(core, &asked));
}

/* --- quotas and policies --- */

/* A policy in the making: limits of everybody. */
static inline struct policy *policy_make(void) {
    struct policy *policy = NULL;
    assert_int_equal(policy_new(&policy), 0);
    return policy;
}

static inline void add_rule(struct policy *policy, bool is_group, uint32_t id, unsigned item,
                            uint64_t limit) {
    const struct policy_subject subject = {is_group, id};
    uint64_t limits[QUOTA_ITEMS];

    for (unsigned i = 0; i < QUOTA_ITEMS; i++)
        limits[i] = i == item ? limit : POLICY_UNSET;
    assert_int_equal(policy_add_rule(policy, &subject, limits), 0);
}

static inline void set_policy(struct core *core, struct policy *policy, uint64_t now_ns) {
    core_set_policy(core, policy, now_ns);
    assert_true(core_is_valid(core));
}

/* Everybody may have so much of an item. */
static inline void limit_all(struct core *core, unsigned item, uint64_t limit, uint64_t now_ns) {
    struct policy *policy = policy_make();
    policy->everybody[item] = limit;
    set_policy(core, policy, now_ns);
}

static inline uint64_t used(const struct session *session, unsigned item) {
    return session->tenant->quota.used[item];
}

static inline void expect_text(const char *text, const char *part) {
    if (strstr(text, part) == NULL)
        fail_msg("the text has no '%s': %s", part, text);
}

#endif
