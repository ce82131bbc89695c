/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_INHERIT_FIXTURE_H
#define TESTS_UNIT_INHERIT_FIXTURE_H
/*
 * A scene with an object of each kind in each of its states, its estate, and cores that begin with that
 * (daemon/core/inherit.h); and records of it with right sums and other numbers.
 */
#include "daemon/core/inherit.h"

#include <errno.h>

#include "closing_fixture.h"
#include "daemon/core/name.h"
#include "daemon/core/scope.h"
#include "daemon/core/segment.h"
#include "names_fixture.h"
#include "tests/failing_memory.h"

#define CHUNKS      24u
#define SCOPE       7u
#define TIME_NS     1000u
#define FENCED_WORD 2u /* three leases of one session wait for it */

static _Alignas(64) char memory[CHUNKS * ESTATE_CHUNK_BYTES], whole[CHUNKS * ESTATE_CHUNK_BYTES];
static struct proto_page pages[16];
static unsigned n_pages;

static inline int grow_estate(void *argument, size_t size_bytes) {
    (void)argument;
    return size_bytes <= sizeof memory ? 0 : -ENOMEM;
}

static const struct estate_owner owner = {.grow = grow_estate};

/* --- the scene --- */

static inline void add_pools(struct core *core, bool is_ready) {
    struct scope_terms terms = {.id = SCOPE, .name = "pod"};
    struct scope *scope;

    for (unsigned i = 0; i < 2; i++) {
        struct pool *pool;
        const struct pool_config config = {
            .kind = PROTO_POOL_DEVICE,
            .name = "test pool",
            .numa_node = -1,
            .sizes = {.limit_bytes = (i == 0 ? 16 : 96) * MIB, .step_bytes = 2 * MIB},
            .needs_vmm = i == 1,
            .takes_descriptors = i == 1,
        };
        assert_int_equal(core_add_pool(core, &config, &pool), 0);
        if (is_ready)
            core_pool_ready(pool, 0);
    }
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        terms.limits[item] = POLICY_UNSET;
    assert_int_equal(scope_add(core, &terms, &scope), 0);
}

static inline struct session *open_scoped(struct core *core, pid_t pid) {
    const gid_t groups[] = {GROUP, OTHER};
    const struct peer peer = {
        .pid = pid, .uid = UID_A, .scope = SCOPE, .groups = groups, .n_groups = 2, .command = "worker"};
    struct session *session = NULL;

    assert_int_equal(core_session_open(core, &peer, 0, &session), 0);
    core_session_set_page(session, &page);
    core_session_want_reclaim(session);
    return session;
}

static inline void send_to_others(struct session *session, const struct lease *lease, uint8_t token,
                                  uint32_t flags) {
    const struct proto_token fresh[2] = {token_of(token), token_of((uint8_t)(token + 1))};
    const struct proto_send send = {{lease->id, lease->generation, 0, 0, 0}, NS_PER_S, 2, flags};
    struct proto_token sent;

    assert_int_equal(send_lease(session, &send, fresh, TIME_NS, &sent), 0);
}

/* The shell takes the answers that there are. */
static inline void take_answers(struct core *core) {
    struct answer answer;
    while (core_next_answer(core, &answer))
        ;
}

/* In a full pool: two segments that are to be closed, and requests that wait. */
static inline void fill_first_pool(struct core *core) {
    struct pool *pool = core_find_pool(core, 1);
    struct session *one = open_wanting(core, 1, UID_A), *two = open_wanting(core, 2, UID_C),
                   *other = open_session(core, 3, UID_B);
    struct session *asked;

    keep(one, pool, 8 * MIB);
    keep(two, pool, 8 * MIB);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    ask_least(other, pool, 2, 8 * MIB, 4 * MIB, PROTO_ACQUIRE_NO_RECLAIM, 1000 * NS_PER_S, 0);
    ask_least(one, pool, 3, 16 * MIB, 0, PROTO_ACQUIRE_IDLE_ONLY | PROTO_ACQUIRE_PROBE_ROOM, NS_FOREVER, 0);
    while (core_next_reclaim(core, &asked))
        ;
    assert_int_equal(idle(one, pool, 0).count, 1);
}

/* Rows, shared blocks, parcels, fences, a lost session, and answers that were not sent. */
static inline void fill_second_pool(struct core *core) {
    struct pool *pool = core_find_pool(core, 2);
    struct session *one = open_scoped(core, 11), *two = open_scoped(core, 12),
                   *lost = open_with_page(core, 13, UID_B), *offering = open_wanting(core, 14, UID_C);
    struct lease *leases[8], *attached;
    struct proto_token token, fresh = token_of(1);

    core_session_set_board(one, 4, NULL);
    for (unsigned i = 0; i < 8; i++) {
        leases[i] = take_growing(one, pool, 2 * MIB, TIME_NS);
        describe(leases[i], NULL);
    }
    const struct proto_merge merge = {leases[0]->id, leases[0]->generation, leases[1]->id,
                                      leases[1]->generation};
    assert_int_equal(core_merge(one, &merge), 0);
    const struct proto_lease_name shared = name_of(leases[2]);
    assert_int_equal(share_lease(one, &shared, 0, &fresh, &token), 0);
    assert_int_equal(core_attach(two, &token, &attached), 0);
    describe(attached, NULL);
    send_to_others(one, leases[2], 10, 0);
    send_to_others(one, leases[3], 20, PROTO_SEND_HELD);
    const struct proto_release on_board = {.lease = attached->id,
                                           .generation = attached->generation,
                                           .fence = 3,
                                           .fence_value = UINT64_C(1) << 62,
                                           .board_word = 2,
                                           .board_value = 9};
    core_session_set_board(two, 5, NULL);
    assert_int_equal(release_as(two, &on_board, TIME_NS), 0);
    release_part_behind(one, name_of(leases[4]), MIB, MIB / 2, 6, 6, TIME_NS);
    for (unsigned i = 5; i < 8; i++)
        release_behind(one, name_of(leases[i]), FENCED_WORD, i);
    release_part(one, name_of(leases[4]), 0, MIB / 2, TIME_NS);
    describe(take_growing(lost, pool, 4 * MIB, TIME_NS), NULL);
    lose_session(lost, TIME_NS);
    const uint64_t kept_id = keep(offering, pool, 8 * MIB);
    struct proto_offer offer = {.pool = pool->id, .count = 1, .ids = {kept_id}};
    struct proto_segments segments;
    assert_int_equal(core_offer(offering, &offer, TIME_NS, &segments), 0);
    assert_int_equal(segments.count, 1);
    keep(offering, pool, 4 * MIB);
}

/* Answers that were not sent; those that came before must have been. */
static inline void ask_for_answers(struct core *core) {
    struct pool *pool = core_find_pool(core, 2), *growing;
    struct session *session = open_wanting(core, 21, UID_B);
    uint64_t bytes;

    ask_segments(session, pool, 41, 2, 2 * MIB, NS_FOREVER);
    ask(session, pool, 42, MIB, NS_FOREVER, TIME_NS);
    ask(session, pool, 43, 128 * MIB, 0, TIME_NS);
    const struct proto_acquire nowhere = {.pool = 9, .size_bytes = MIB};
    assert_int_equal(core_acquire(session, 44, &nowhere, TIME_NS), 0);
    while (core_next_growth(core, &growing, &bytes))
        segment_made(growing, bytes, TIME_NS);
}

/* A segment without a tenant, one of a user without a session, and one that goes back to the driver. */
static inline void leave_segments(struct core *core) {
    struct pool *pool = core_find_pool(core, 2);
    struct session *session = open_session(core, 31, 1009);

    uint64_t kept = keep(session, pool, 4 * MIB), retiring = keep(session, pool, 6 * MIB);
    ask(session, pool, 51, 14 * MIB, NS_FOREVER, TIME_NS);
    uint64_t bytes = expect_growth(core, pool);
    core_cancel(session, 51, TIME_NS);
    segment_made(pool, bytes, TIME_NS);
    take_answers(core);
    close_session(session, TIME_NS);
    pool_retire_one(segment_find(core, retiring));
    assert_int_equal(segment_find(core, kept)->state, SEGMENT_ASSIGNED);
}

#define NAMES_SLOT      6u
#define NAMES_DIRECTORY 1000u /* bytes: two records */
#define NAMES_WAIT_NS   (5000 * NS_PER_S)
#define NAMES_VALUE     (proto_board_first(3) + 1)

/* The bytes of the directory of "kept". */
static inline const uint8_t *directory_bytes(void) {
    static uint8_t bytes[NAMES_DIRECTORY];

    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + 1);
    return bytes;
}

static inline int try_join(struct session *session, uint64_t request, const char *name, uint32_t place,
                           uint64_t timeout_ns) {
    struct proto_join_channel join = {.timeout_ns = timeout_ns, .place = place};

    strcpy(join.name, name);
    return core_join_channel(session, request, &join, TIME_NS);
}

/* A channel of one's, kept, with two consumers: one is its producer, two a consumer, dead was the other one. Session two was
 * not told yet that it has joined, and waits for the other place, too. */
static inline void make_ring(struct session *one, struct session *two, struct session *dead,
                             struct pool *pool) {
    const struct proto_token tokens[2] = {{{0xc1}}, {{0xc2}}};
    struct lease *lease = take_growing(one, pool, MIB, TIME_NS);
    struct proto_make_channel make = {.name = "ring",
                                      .lease = lease->id,
                                      .generation = lease->generation,
                                      .slot_bytes = 4096,
                                      .n_slots = 4,
                                      .metadata_bytes = 8,
                                      .n_consumers = 2,
                                      .policy = PROTO_CHANNEL_WAIT,
                                      .flags = PROTO_MAKE_CHANNEL_KEEP};
    struct channel *channel;
    struct name_answer answer;

    assert_int_equal(core_make_channel(one, &make, tokens, TIME_NS, &channel), 0);
    core_channel_made(channel, NULL);
    assert_int_equal(try_join(one, 68, "ring", PROTO_CHANNEL_PRODUCER, 0), 0);
    assert_int_equal(try_join(dead, 69, "ring", 2, 0), 0);
    while (core_next_name_answer(one->core, &answer))
        ;
    assert_int_equal(try_join(two, 70, "ring", 1, 0), 0);
    assert_int_equal(try_join(two, 71, "ring", PROTO_CHANNEL_ANY_CONSUMER, NAMES_WAIT_NS), 0);
}

/* Editions: of a session that lives, of one that is gone, of one that is lost, and one that ends with its publisher.
 * Requests for names in each of their states, whose answers are not taken. */
static inline void publish_names(struct core *core) {
    struct pool *pool = core_find_pool(core, 2);
    struct session *one = open_scoped(core, 41), *two = open_scoped(core, 42), *gone = open_scoped(core, 43),
                   *dead = open_scoped(core, 44);
    const struct wish kept = {.name = "kept",
                              .leases = {take_growing(one, pool, 2 * MIB, TIME_NS)},
                              .count = 1,
                              .flags = PROTO_PUBLISH_KEEP | PROTO_PUBLISH_LIVE,
                              .layout = 5,
                              .directory_bytes = NAMES_DIRECTORY,
                              .has_fence = true,
                              .fence_value = NAMES_VALUE},
                      loose = {.name = "loose",
                               .leases = {take_growing(two, pool, MIB, TIME_NS),
                                          take_growing(two, pool, MIB, TIME_NS)},
                               .count = 2},
                      died = {.name = "dead",
                              .leases = {take_growing(dead, pool, MIB, TIME_NS)},
                              .count = 1,
                              .flags = PROTO_PUBLISH_KEEP,
                              .has_fence = true,
                              .fence_value = NAMES_VALUE};
    struct name_answer answer;
    uint64_t generation;

    core_session_set_board(one, NAMES_SLOT, NULL);
    core_session_set_board(dead, NAMES_SLOT + 1, NULL);
    open_name(two, 60, "told", 0, PROTO_OPEN_NAME_BUILD);
    assert_true(core_next_name_answer(core, &answer));
    assert_int_equal(write_directory(one, 0, directory_bytes(), NAMES_DIRECTORY), 0);
    assert_int_equal(publish(one, &kept, NULL), 0);
    assert_int_equal(publish(two, &loose, &generation), 0);
    publish_one(gone, "left", take_growing(gone, pool, MIB, TIME_NS), PROTO_PUBLISH_KEEP);
    assert_int_equal(publish(dead, &died, NULL), 0);
    make_ring(one, two, dead, pool);
    close_session(gone, TIME_NS);
    lose_session(dead, TIME_NS);
    open_name(two, 61, "built", 0, PROTO_OPEN_NAME_BUILD);
    assert_int_equal(try_open(one, 62, "built", 0, PROTO_OPEN_NAME_BUILD, NAMES_WAIT_NS, TIME_NS), 0);
    open_name(one, 63, "kept", 0, 0);
    assert_int_equal(try_open(one, 64, "nothing", 0, 0, 0, TIME_NS), 0);
    open_name(one, 65, "loose", generation, PROTO_OPEN_NAME_CHANGE);
    open_name(two, 66, "nothing", generation, PROTO_OPEN_NAME_CHANGE);
    open_name(two, 67, "told", 0, 0);
}

/* Makes the scene, and has its estate in `whole`. */
static inline void make_scene(void) {
    struct core *core = core_make();
    struct estate estate;

    memset(memory, 0, sizeof memory);
    assert_int_equal(estate_make(&estate, memory, kept_kinds, KEPT_KINDS - 1, &owner), 0);
    assert_int_equal(core_keep(core, &estate), 0);
    add_pools(core, true);
    fill_first_pool(core);
    take_answers(core);
    fill_second_pool(core);
    publish_names(core);
    leave_segments(core);
    ask_for_answers(core);
    estate_end_step(&estate);
    memcpy(whole, memory, sizeof whole);
    core->estate = NULL;
    estate_deinit(&estate);
    core_destroy(core);
}

/* --- a successor --- */

static int segments_taken;
static uint64_t refused_segment, refused_session; /* the ids of those of which the shell has nothing */

static inline int take_segment(void *argument, struct segment *segment) {
    const struct core *core = argument;

    if (segment->id == refused_segment)
        return -ENOENT;
    assert_ptr_equal(core->segments[segment->slot], segment);
    segment->backing = &segments_taken;
    segments_taken++;
    return 0;
}

static inline int take_session(void *argument, struct session *session, const struct kept_session *kept) {
    (void)argument;
    if (session->id == refused_session)
        return -ENOENT;
    assert_true(n_pages < sizeof pages / sizeof *pages);
    session->page = &pages[n_pages++];
    session->peer.groups = kept->groups;
    session->peer.n_groups = kept->n_groups;
    return 0;
}

static struct inherit_loss loss; /* of the last successor */

static inline void tell_loss(void *argument, const struct inherit_loss *told) {
    (void)argument;
    loss = *told;
}

struct heir {
    struct core *core;
    struct estate estate;
    const char *reason;
};

/* Makes a successor of what is in the memory. Returns what core_inherit() does. fails: the allocation of it that
 * fails; 0: none. */
static inline int inherit(struct heir *heir, unsigned fails) {
    const struct inherit_shell shell = {
        .take_segment = take_segment, .take_session = take_session, .tell_loss = tell_loss};
    struct inherit_shell with_core = shell;

    heir->core = core_make();
    add_pools(heir->core, false);
    with_core.argument = heir->core;
    with_core.away_ns = NS_PER_S;
    memset(pages, 0, sizeof pages);
    n_pages = 0;
    segments_taken = 0;
    assert_int_equal(
        estate_open(&heir->estate, memory, sizeof memory, kept_kinds, KEPT_KINDS - 1, &owner, &heir->reason),
        0);
    memory_fail_nth(fails);
    int r = core_inherit(heir->core, &heir->estate, &with_core, &heir->reason);
    bool has_failed = memory_failed();
    memory_fail_nth(0);
    assert_true(has_failed == (r == -ENOMEM));
    return r;
}

/* Ends a core that could not inherit. */
static inline void expect_nothing_left(struct heir *heir) {
    assert_true(list_is_empty(&heir->core->sessions));
    assert_int_equal(heir->core->parcels.count, 0);
    assert_int_equal(heir->core->leases.used, 0);
    for (unsigned i = 0; i < heir->core->n_pools; i++) {
        assert_int_equal(heir->core->pools[i]->leased_bytes, 0);
        assert_int_equal(heir->core->pools[i]->waiters.count, 0);
    }
    core_free(heir->core);
    estate_deinit(&heir->estate);
}

/* The successor's core works: it serves the requests, and takes everything back. */
static inline void use_and_end(struct heir *heir) {
    struct core *core = heir->core;
    struct pool *growing;
    uint64_t bytes;
    unsigned kind;

    assert_true(core_is_valid(core));
    struct estate_found found = {0};
    while (estate_next(&heir->estate, 0, found.record, &found)) /* what no member says any more goes */
        estate_change(&heir->estate, found.record);
    estate_end_step(&heir->estate);
    assert_true(estate_is_valid(&heir->estate, &kind));
    take_answers(core);
    for (unsigned i = 0; i < core->n_pools; i++)
        core_pool_ready(core->pools[i], TIME_NS);
    retire_all(core, TIME_NS);
    while (core_next_growth(core, &growing, &bytes))
        segment_made(growing, bytes, TIME_NS);
    tick(core, 2000 * NS_PER_S);
    estate_end_step(&heir->estate);
    list_for_each_entry_safe(struct session, session, &core->sessions, link) {
        if (session->state == SESSION_ACTIVE)
            close_session(session, 3000 * NS_PER_S);
        else
            session_gone(session, 3000 * NS_PER_S);
    }
    take_answers(core);
    core_revoke_all(core, 0, 3000 * NS_PER_S, &bytes);
    core_unpublish_all(core, 3000 * NS_PER_S);
    retire_all(core, 3000 * NS_PER_S);
    estate_end_step(&heir->estate);
    assert_true(estate_is_valid(&heir->estate, &kind));
    core_destroy(core);
    estate_deinit(&heir->estate);
}

/* --- patched records --- */

struct patched {
    size_t size_bytes;
    uint32_t group;
    char bytes[1024];
};

static inline void write_patched(const void *object, void *payload) {
    const struct patched *patched = object;
    memcpy(payload, patched->bytes, patched->size_bytes);
}

static inline uint32_t group_of_patched(const void *object) {
    return ((const struct patched *)object)->group;
}

static inline const struct estate_kind *patched_kinds(void) {
    static struct estate_kind kinds[KEPT_KINDS];

    for (unsigned kind = 1; kind < KEPT_KINDS; kind++) {
        kinds[kind] = kept_kinds[kind];
        kinds[kind].write = write_patched;
        kinds[kind].group = group_of_patched;
    }
    return kinds;
}

/* Goes on with what was changed. */
static inline struct estate patch_reopen(void) {
    struct estate estate;
    const char *reason;

    assert_int_equal(
        estate_open(&estate, memory, sizeof memory, patched_kinds(), KEPT_KINDS - 1, &owner, &reason), 0);
    return estate;
}

/* Begins with the scene's estate, to change records of it. */
static inline struct estate patch_begin(void) {
    memcpy(memory, whole, sizeof memory);
    return patch_reopen();
}

/* Bytes of a record, which is whole otherwise, and is written with a right sum. */
static inline void patch(struct estate *estate, uint32_t record, size_t at, const void *bytes,
                         size_t size_bytes) {
    static struct patched patched[8];
    static unsigned next;
    struct patched *own = &patched[next++ % 8];
    struct estate_found found;

    assert_true(estate_next(estate, 0, record - 1, &found));
    assert_int_equal(found.record, record);
    own->size_bytes = found.size_bytes;
    own->group = found.groups[0];
    memcpy(own->bytes, found.payload, found.size_bytes);
    memcpy(own->bytes + at, bytes, size_bytes);
    estate_bind(estate, record, own);
    estate_change(estate, record);
}

static inline void patch_end(struct estate *estate) {
    estate_end_step(estate);
    estate_deinit(estate);
}

/* The n-th record of a kind, from 0. */
static inline struct estate_found find_nth(const struct estate *estate, enum kept_kind kind, unsigned n) {
    struct estate_found found = {0};
    do
        assert_true(estate_next(estate, kind, found.record, &found));
    while (n-- > 0);
    return found;
}

static inline void expect_refused_for(const char *reason) {
    struct heir heir;

    assert_int_equal(inherit(&heir, 0), -EBADMSG);
    assert_string_equal(heir.reason, reason);
    expect_nothing_left(&heir);
}

#define MEMBER(type, member) offsetof(struct type, member), sizeof(((struct type *)NULL)->member)

/* A member of one record has the value that it has in the record before it. */
static inline void expect_twins_refused(enum kept_kind kind, size_t at, size_t size_bytes,
                                        const char *reason) {
    struct estate estate = patch_begin();
    struct estate_found first = find_nth(&estate, kind, 0), second = find_nth(&estate, kind, 1);

    patch(&estate, second.record, at, (const char *)first.payload + at, size_bytes);
    patch_end(&estate);
    expect_refused_for(reason);
}

/* The first record of a kind whose member has the value. */
static inline struct estate_found find_with(const struct estate *estate, enum kept_kind kind, size_t at,
                                            size_t size_bytes, const void *value) {
    struct estate_found found = {0};

    while (estate_next(estate, kind, found.record, &found))
        if (memcmp((const char *)found.payload + at, value, size_bytes) == 0)
            return found;
    fail_msg("the scene has no such record");
    return found;
}

/* Whether one number alone is refused, in the first record of a kind whose member has a value. */
static inline void expect_number_refused(enum kept_kind kind, size_t where, size_t where_bytes,
                                         uint64_t found_value, size_t at, size_t size_bytes, uint64_t value,
                                         const char *reason) {
    struct estate estate = patch_begin();
    struct estate_found found = find_with(&estate, kind, where, where_bytes, &found_value);

    patch(&estate, found.record, at, &value, size_bytes);
    patch_end(&estate);
    expect_refused_for(reason);
}

#define ANY                       0, 0, 0
#define WITH(type, member, value) MEMBER(type, member), value

/* A record is not there any more of which another one, or the session, has need. */
static inline void expect_missing_refused(enum kept_kind kind, const char *reason) {
    struct estate estate = patch_begin();

    estate_remove(&estate, find_nth(&estate, kind, 0).record);
    patch_end(&estate);
    expect_refused_for(reason);
}

#endif
