/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_CLOSING_FIXTURE_H
#define TESTS_UNIT_CLOSING_FIXTURE_H
/* Sessions that keep mapped segments without a lease in them, and a full pool in which a request waits for
 * these segments. */
#include "core_fixture.h"
#include "daemon/core/fence.h"

#define UID_C 1003u

/* Takes a lease with a segment of that size for itself, which the session maps. Returns the segment's id. */
static inline uint64_t map(struct session *session, struct pool *pool, uint64_t size) {
    struct proto_lease wire;
    struct lease *lease = take_growing(session, pool, size, 0);

    assert_true(describe(lease, &wire));
    assert_int_equal(lease->block->segment->size_bytes, size);
    return wire.segment;
}

/* The session gives back all that it holds. Its segments stay mapped. */
static inline void let_go(struct session *session) {
    while (!list_is_empty(&session->leases)) {
        struct lease *lease = container_of(session->leases.next, struct lease, session_link);
        assert_int_equal(release(session, name_of(lease), 0), 0);
    }
}

/* Makes a segment of that size, which the session has mapped and in which nothing is leased. Returns its id.
 */
static inline uint64_t keep(struct session *session, struct pool *pool, uint64_t size) {
    uint64_t segment = map(session, pool, size);
    let_go(session);
    return segment;
}

static inline void close_all(struct session *session, const struct proto_segments *segments) {
    for (uint32_t i = 0; i < segments->count; i++)
        assert_int_equal(closed(session, segments->ids[i]), 0);
}

static inline struct proto_segments idle_busy(struct session *session, const struct pool *pool,
                                              uint64_t size) {
    return idle_as(session, pool, size, PROTO_IDLE_BUSY, 0);
}

static inline void expect_one(const struct proto_segments *segments, uint64_t segment) {
    assert_int_equal(segments->count, 1);
    assert_int_equal(segments->ids[0], segment);
}

/* A pool at its limit: two sessions keep a segment of 8 MiB each, and a session of another user waits for as
 * much. Both have been asked. */
struct full {
    struct core *core;
    struct pool *pool;
    struct session *one, *two, *other;
    uint64_t segment_one, segment_two;
};

static inline void make_full(struct full *full, struct core *core) {
    full->core = core;
    full->pool = add_pool(full->core, 16 * MIB, 2 * MIB, 0);
    full->one = open_wanting(full->core, 1, UID_A);
    full->two = open_wanting(full->core, 2, UID_C);
    full->other = open_session(full->core, 3, UID_B);
    full->segment_one = keep(full->one, full->pool, 8 * MIB);
    full->segment_two = keep(full->two, full->pool, 8 * MIB);
    ask(full->other, full->pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_growth(full->core);
    expect_reclaim(full->core, full->one);
    expect_reclaim(full->core, full->two);
    expect_no_reclaim(full->core);
}

/* The waiting request is granted when the session has closed this segment. */
static inline void expect_served(struct full *full, struct session *session, uint64_t segment) {
    assert_int_equal(closed(session, segment), 0);
    assert_int_equal(retire_all(full->core, 0), 8 * MIB);
    grow(full->pool, 8 * MIB, 0);
    expect_granted(full->core, full->other, 1);
}

#endif
