/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the parts of leases: released one by one, split off as leases of their own, and merged. */
#include "core_fixture.h"

static void parts_come_back_from_the_tail(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 8 * MIB - 100, 0);
    assert_int_equal(release_part(session, name_of(lease), 6 * MIB, 2 * MIB, 0), 0);
    struct proto_info info = query(session, lease);
    assert_int_equal(info.capacity_bytes, 6 * MIB);
    assert_int_equal(info.size_bytes, 6 * MIB); /* what was asked is there no more */
    assert_int_equal(pool->leased_bytes, 6 * MIB);
    assert_int_equal(session->leased_bytes, 6 * MIB);
    assert_int_equal(take(session, pool, 2 * MIB, 0)->block->offset_bytes, info.offset_bytes + 6 * MIB);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    assert_int_equal(pool->leased_bytes, 2 * MIB);
}

static void parts_come_back_from_the_head_and_the_middle(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 8 * MIB, 0);
    struct proto_lease_name name = name_of(lease);
    assert_int_equal(release_part(session, name, 0, MIB, 0), 0);
    assert_int_equal(release_part(session, name, 3 * MIB, 2 * MIB, 0), 0);
    assert_int_equal(pool->leased_bytes, 5 * MIB);
    assert_int_equal(query(session, lease).capacity_bytes, 8 * MIB); /* offsets stay what they were */
    assert_int_equal(take(session, pool, 2 * MIB, 0)->block->offset_bytes, 3 * MIB);
    assert_int_equal(take(session, pool, MIB, 0)->block->offset_bytes, 0);
    assert_int_equal(release(session, name, 0), 0); /* what is left of it, on both sides of the gap */
    assert_int_equal(pool->leased_bytes, 3 * MIB);
}

static void parts_may_cross_the_borders_of_earlier_parts(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 8 * MIB, 0);
    struct proto_lease_name name = name_of(lease);
    /* Refused parts that overlap what came back leave their borders behind at most. */
    assert_int_equal(release_part(session, name, 2 * MIB, 512, 0), 0);
    assert_int_equal(release_part(session, name, MIB, 2 * MIB, 0), PROTO_E_INVALID);
    assert_int_equal(release_part(session, name, 5 * MIB, 512, 0), 0);
    assert_int_equal(release_part(session, name, 2 * MIB + 512, 3 * MIB - 512, 0), 0); /* between the two */
    assert_int_equal(release_part(session, name, MIB, MIB, 0), 0);
    assert_int_equal(pool->leased_bytes, MIB + 3 * MIB - 512);
    assert_int_equal(release_part(session, name, 0, MIB, 0), 0);
    assert_int_equal(release_part(session, name, 5 * MIB + 512, 3 * MIB - 512, 0), 0); /* the last of it */
    assert_int_equal(release(session, name, 0), PROTO_E_STALE);
    assert_int_equal(pool->n_leases, 0);
    assert_int_equal(pool_largest_free_bytes(pool), 8 * MIB);
}

static void what_is_not_held_cannot_be_given_back(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    take_growing(session, pool, MIB, 0);
    struct lease *lease = take(session, pool, 4 * MIB, 0);
    struct proto_lease_name name = name_of(lease);
    assert_int_equal(release_part(session, name, 2 * MIB, MIB, 0), 0);
    assert_int_equal(release_part(session, name, 2 * MIB, MIB, 0), PROTO_E_INVALID); /* twice */
    assert_int_equal(release_part(session, name, 0, 4 * MIB, 0), PROTO_E_INVALID);   /* over the gap */
    assert_int_equal(release_part(session, name, 2 * MIB - 512, 1024, 0), PROTO_E_INVALID);
    assert_int_equal(release_part(session, name, 3 * MIB - 512, 1024, 0), PROTO_E_INVALID);
    assert_int_equal(release_part(session, name, 4 * MIB, 512, 0), PROTO_E_INVALID); /* beyond the end */
    assert_int_equal(release_part(session, name, 4 * MIB - 512, 1024, 0), PROTO_E_INVALID);
    assert_int_equal(release_part(session, name, UINT64_MAX - 511, 1024, 0), PROTO_E_INVALID);
    assert_int_equal(release_part(session, name, 512, UINT64_MAX - 511, 0), PROTO_E_INVALID);
    assert_int_equal(pool->leased_bytes, 4 * MIB);
}

static void a_part_that_is_no_number_of_granules_is_refused(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *part = NULL;
    static const uint64_t parts[][2] = {{1, 512}, {0, 511}, {0, 1}, {511, 513}, {256, 256}, {512, 513}};

    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    struct proto_lease_name name = name_of(lease);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const struct proto_release one_way = {name.lease, name.generation, parts[i][0], parts[i][1]};
        assert_int_equal(release_part(session, name, parts[i][0], parts[i][1], 0), PROTO_E_INVALID);
        assert_int_equal(core_release_one_way(session, &one_way, 0), PROTO_E_INVALID);
        assert_int_equal(split(session, name, parts[i][0], parts[i][1], &part), PROTO_E_INVALID);
    }
    assert_null(part);
    assert_int_equal(query(session, lease).capacity_bytes, 4 * MIB);
    assert_int_equal(pool->leased_bytes, 4 * MIB);
}

static void a_part_serves_the_one_who_waits(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 8 * MIB, 0);
    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    assert_int_equal(release_part(session, name_of(lease), MIB, MIB, 0), 0);
    assert_int_equal(expect_granted(core, session, 1)->block->offset_bytes, MIB);
}

static void a_part_that_is_split_off_is_a_lease_of_its_own(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    struct lease *part = NULL;
    struct proto_lease wire;

    take_growing(session, pool, MIB, 0); /* so that the lease does not begin where its segment does */
    struct lease *lease = take(session, pool, 7 * MIB - 100, 0);
    assert_true(describe(lease, NULL));
    struct proto_lease_name name = name_of(lease);
    assert_int_equal(split(session, name, 2 * MIB, MIB, &part), 0);
    assert_false(describe(part, &wire));
    assert_int_equal(wire.offset_bytes, 3 * MIB);
    assert_int_equal(wire.size_bytes, MIB);
    assert_int_equal(wire.capacity_bytes, MIB);
    assert_int_equal(wire.segment, lease->block->segment->id);
    assert_int_not_equal(part->generation, name.generation);
    assert_int_equal(query(session, lease).capacity_bytes, 7 * MIB); /* offsets stay what they were */
    assert_int_equal(release_part(session, name, 2 * MIB, 512, 0), PROTO_E_INVALID); /* it is gone from it */
    assert_int_equal(release(other, name_of(part), 0), PROTO_E_STALE);
    assert_int_equal(pool->leased_bytes, 8 * MIB);
    assert_int_equal(session->leased_bytes, 8 * MIB);
    assert_int_equal(pool_free_bytes(pool), 0);
    assert_int_equal(pool->n_leases, 3);

    assert_int_equal(release(session, name, 0), 0); /* each goes without the other */
    assert_int_equal(pool->leased_bytes, 2 * MIB);
    assert_int_equal(query(session, part).capacity_bytes, MIB);
    assert_int_equal(release(session, name_of(part), 0), 0);
    assert_int_equal(pool->leased_bytes, MIB);
    assert_int_equal(pool->stats.n_acquires, pool->stats.n_releases + 1);
}

static void splitting_off_the_tail_shrinks_the_lease(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *part = NULL;

    struct lease *lease = take_growing(session, pool, 8 * MIB - 100, 0);
    assert_int_equal(split(session, name_of(lease), 6 * MIB, 2 * MIB, &part), 0);
    assert_int_equal(query(session, lease).capacity_bytes, 6 * MIB);
    assert_int_equal(query(session, lease).size_bytes, 6 * MIB);
    assert_int_equal(query(session, part).size_bytes, 2 * MIB);
}

static void a_lease_of_which_everything_is_split_off_ends(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *waiter = open_session(core, 2, UID_A);
    struct lease *first = NULL, *rest = NULL, *whole = NULL;

    struct proto_lease_name name = name_of(take_growing(session, pool, 8 * MIB, 0));
    ask(waiter, pool, 1, MIB, NS_FOREVER, 0);
    assert_int_equal(split(session, name, 0, 2 * MIB, &first), 0);
    assert_int_equal(split(session, name, 2 * MIB, 6 * MIB, &rest), 0);
    assert_int_equal(release(session, name, 0), PROTO_E_STALE);
    assert_int_equal(split(session, name, 0, 512, &whole), PROTO_E_STALE);
    assert_int_equal(split(session, name_of(first), 0, 2 * MIB, &whole), 0); /* and at one stroke */
    assert_int_equal(session->n_leases, 2);
    expect_no_answer(core); /* nothing came back in between */
    assert_int_equal(pool->leased_bytes, 8 * MIB);
    assert_int_equal(release(session, name_of(whole), 0), 0);
    assert_int_equal(expect_granted(core, waiter, 1)->block->offset_bytes, 0);
}

static void parts_of_parts_come_back_as_they_are(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *part = NULL, *piece = NULL;

    struct proto_lease_name name = name_of(take_growing(session, pool, 8 * MIB, 0));
    assert_int_equal(release_part(session, name, 7 * MIB, 512, 0), 0);
    assert_int_equal(split(session, name, 5 * MIB, MIB, &piece), 0);
    assert_int_equal(release(session, name_of(piece), 0), 0);
    /* not over a gap; and what is split off counts offsets from its own start */
    assert_int_equal(split(session, name, 4 * MIB, 2 * MIB, &part), PROTO_E_INVALID);
    assert_int_equal(split(session, name, 1 * MIB, 4 * MIB, &part), 0);
    assert_int_equal(split(session, name_of(part), 2 * MIB, MIB, &piece), 0);
    assert_int_equal(query(session, piece).offset_bytes, 3 * MIB);
    assert_int_equal(release_part(session, name_of(part), 0, MIB, 0), 0);
    assert_int_equal(release(session, name_of(part), 0), 0);
    assert_int_equal(release(session, name_of(piece), 0), 0);
    assert_int_equal(release(session, name, 0), 0);
    assert_int_equal(pool->leased_bytes, 0);
    assert_int_equal(pool_largest_free_bytes(pool), 8 * MIB);
}

static void what_cannot_be_split_stays_as_it_is(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    struct lease *lease = take_growing(session, pool, 4 * MIB, 0), *part = NULL, *attached = NULL;
    const struct proto_lease_name name = name_of(lease);
    const struct proto_token fresh = token_of(1);
    struct proto_token token;

    assert_int_equal(split(other, name, 0, MIB, &part), PROTO_E_STALE);
    assert_int_equal(split(session, name, 4 * MIB, 512, &part), PROTO_E_INVALID);
    assert_int_equal(split(session, name, 4 * MIB - 512, 1024, &part), PROTO_E_INVALID);
    assert_int_equal(split(session, name, UINT64_MAX - 511, 1024, &part), PROTO_E_INVALID);
    assert_int_equal(split(session, name, 512, UINT64_MAX - 511, &part), PROTO_E_INVALID);
    assert_int_equal(split(session, name, 0, 0, &part), PROTO_E_INVALID);
    core->session_leases_limit = 1;
    assert_int_equal(split(session, name, 0, MIB, &part), PROTO_E_LIMIT);
    core->session_leases_limit = 2;
    assert_int_equal(share_lease(session, &name, 0, &fresh, &token), 0);
    assert_int_equal(split(session, name, 0, MIB, &part), PROTO_E_SHARED);
    assert_int_equal(core_attach(other, &token, &attached), 0);
    assert_int_equal(split(other, name_of(attached), 0, MIB, &part), PROTO_E_SHARED);
    assert_null(part);
    assert_int_equal(query(session, lease).capacity_bytes, 4 * MIB);
    assert_int_equal(pool->leased_bytes, 4 * MIB);
    assert_int_equal(session->n_leases, 1);
}

/* One granule in two comes back, and then what is between them. */
static void a_lease_gets_into_no_more_ranges_than_may_be_searched(void **state) {
    const uint64_t step = 2 * HEAP_GRANULE, size = 2 * (uint64_t)BLOCK_RANGES_MAX * step;
    struct core *core = *state;
    struct pool *pool = add_pool(core, size, size, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *lease = take_growing(session, pool, size, 0), *part = NULL;
    const struct proto_lease_name name = name_of(lease);
    unsigned gaps = 0;
    int r;

    do {
        const struct proto_release release = {name.lease, name.generation, size - (gaps + 2) * step,
                                              HEAP_GRANULE};
        r = core_release(session, &release, 0); /* the fixture's checks of everything would take too long */
        gaps += r == 0;
    } while (r == 0 && gaps < size / step - 2);
    assert_int_equal(r, PROTO_E_LIMIT);
    assert_int_equal(gaps, BLOCK_RANGES_MAX - 1);
    assert_int_equal(split(session, name, MIB, MIB, &part), PROTO_E_LIMIT);
    assert_int_equal(pool->leased_bytes, size - gaps * HEAP_GRANULE);
    /* what makes no range more can go: at an end, and beside a gap */
    assert_int_equal(release_part(session, name, size - HEAP_GRANULE, HEAP_GRANULE, 0), 0);
    assert_int_equal(release_part(session, name, 0, HEAP_GRANULE, 0), 0);
    assert_int_equal(release_part(session, name, size - 3 * step + HEAP_GRANULE, HEAP_GRANULE, 0),
                     0); /* between two */
    assert_int_equal(split(session, name, MIB, MIB, &part), 0);
    assert_int_equal(release(session, name, 0), 0);
    assert_int_equal(session->n_ranges, 1);
    assert_int_equal(release(session, name_of(part), 0), 0);
    assert_int_equal(session->n_ranges, 0);
}

static void a_session_gets_into_no_more_ranges_than_its_leases_need(void **state) {
    const uint64_t step = 2 * HEAP_GRANULE, size = 4 * MIB;
    const unsigned most = BLOCK_RANGES_MAX + SESSION_RANGES_PER_LEASE * 4;
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * size, 4 * size, 0);
    struct session *session = open_session(core, 1, UID_A);
    int r = 0;

    core->session_leases_limit = 4;
    for (unsigned i = 0; i < 4; i++) {
        const struct proto_lease_name name =
            name_of(i == 0 ? take_growing(session, pool, size, 0) : take(session, pool, size, 0));
        for (uint64_t offset = size - step; offset > 0 && r == 0; offset -= step) {
            const struct proto_release release = {name.lease, name.generation, offset, HEAP_GRANULE};
            r = core_release(session, &release, 0);
        }
    }
    assert_int_equal(r, PROTO_E_LIMIT);
    assert_in_range(session->n_ranges, most - 1, most + 2); /* leases themselves are counted elsewhere */
    assert_true(core_is_valid(core));
}

static void a_lease_that_was_split_off_is_shared_without_the_rest(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct lease *part = NULL, *attached = NULL;
    const struct proto_token fresh = token_of(1);
    struct proto_token token;

    struct proto_lease_name name = name_of(take_growing(one, pool, 8 * MIB, 0));
    assert_int_equal(split(one, name, MIB, MIB, &part), 0);
    const struct proto_lease_name part_name = name_of(part);
    assert_int_equal(share_lease(one, &part_name, 0, &fresh, &token), 0);
    assert_int_equal(core_attach(two, &token, &attached), 0);
    assert_int_equal(query(two, attached).offset_bytes, MIB);
    assert_int_equal(query(two, attached).capacity_bytes, MIB);
    assert_int_equal(release_part(one, name, 0, MIB, 0), 0); /* the rest is still its holder's alone */
    lose_session(one, 1);
    assert_int_equal(pool->leased_bytes, MIB);
    assert_int_equal(pool->quarantined_bytes, 6 * MIB);
    session_gone(one, 2);
    assert_int_equal(pool_free_bytes(pool), 7 * MIB);
}

static struct proto_merge merge_of(const struct lease *lease, const struct lease *other) {
    return (struct proto_merge){lease->id, lease->generation, other->id, other->generation};
}

static void neighbouring_leases_become_one(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *part = NULL;

    struct lease *lower = take_growing(session, pool, 2 * MIB, 0), *upper = take(session, pool, 3 * MIB, 0);
    struct proto_merge merge = merge_of(lower, upper);
    assert_int_equal(core_merge(session, &merge), 0);
    assert_true(core_is_valid(core));
    assert_int_equal(core_merge(session, &merge), PROTO_E_STALE); /* the upper one has ended */
    assert_int_equal(query(session, lower).capacity_bytes, 5 * MIB);
    assert_int_equal(pool->leased_bytes, 5 * MIB);
    assert_int_equal(session->leased_bytes, 5 * MIB);
    assert_int_equal(pool->n_leases, 1);
    assert_ptr_equal(lower->block->ranges.next, lower->block->ranges.previous); /* one range */
    /* Parts may lie across the border that was, and no longer matters. */
    assert_int_equal(split(session, name_of(lower), MIB, 2 * MIB, &part), 0);
    assert_int_equal(release(session, name_of(lower), 0), 0);
    assert_int_equal(pool->leased_bytes, 2 * MIB);
}

static void a_lease_takes_back_what_it_lacks(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 8 * MIB, 0);
    assert_int_equal(release_part(session, name_of(lease), 6 * MIB, 2 * MIB, 0), 0);
    struct lease *tail = take(session, pool, MIB, 0);
    assert_int_equal(tail->block->offset_bytes, 6 * MIB);
    assert_int_equal(release_part(session, name_of(lease), 2 * MIB, 2 * MIB, 0), 0);
    struct lease *middle = take(session, pool, 2 * MIB, 0);
    struct proto_merge merge = merge_of(lease, tail);
    assert_int_equal(core_merge(session, &merge), 0);
    assert_int_equal(release_part(session, name_of(lease), MIB, 2 * MIB, 0),
                     PROTO_E_INVALID); /* the middle is not there */
    merge = merge_of(lease, middle);
    assert_int_equal(core_merge(session, &merge), 0);
    assert_true(core_is_valid(core));
    assert_int_equal(query(session, lease).capacity_bytes, 7 * MIB);
    assert_int_equal(release_part(session, name_of(lease), 0, 7 * MIB, 0), 0);
    assert_int_equal(pool->leased_bytes, 0);
}

static void what_cannot_be_merged_stays_as_it_is(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    const struct proto_token fresh = {{1}};
    struct proto_token token;

    struct lease *lower = take_growing(session, pool, 2 * MIB, 0), *upper = take(session, pool, 2 * MIB, 0);
    struct lease *foreign = take(other, pool, 4 * MIB, 0);
    struct lease *elsewhere = take_growing(session, pool, 8 * MIB, 0);
    const struct proto_merge refused[] = {merge_of(upper, lower), merge_of(lower, lower),
                                          merge_of(lower, elsewhere)};
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(core_merge(session, &refused[i]), PROTO_E_INVALID);
    struct proto_merge merge = merge_of(lower, foreign);
    assert_int_equal(core_merge(session, &merge), PROTO_E_STALE);
    const struct proto_lease_name name = name_of(upper);
    assert_int_equal(share_lease(session, &name, 0, &fresh, &token), 0);
    merge = merge_of(lower, upper);
    assert_int_equal(core_merge(session, &merge), PROTO_E_SHARED);
    assert_int_equal(query(session, lower).capacity_bytes, 2 * MIB);
    assert_int_equal(query(session, upper).capacity_bytes, 2 * MIB);
    assert_true(core_is_valid(core));
}

/* A session that attaches is told one range, and what came back of it can be another session's by then. */
static void a_block_of_which_a_part_came_back_is_not_shared(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    const struct proto_token fresh = {.bytes = {1}};
    struct proto_token token;

    ask(session, pool, 1, 2048, NS_FOREVER, 0);
    grow(pool, 8 * MIB, 0);
    struct lease *lease = expect_granted(core, session, 1);
    const struct proto_lease_name name = {lease->id, lease->generation};
    struct proto_release part = {
        .lease = lease->id, .generation = lease->generation, .offset_bytes = 512, .size_bytes = 512};
    assert_int_equal(core_release(session, &part, 0), 0);
    assert_int_equal(share_lease(session, &name, 0, &fresh, &token), PROTO_E_INVALID);
    part.offset_bytes = 1024, part.size_bytes = 1024; /* the tail: what is left is one range again */
    assert_int_equal(core_release(session, &part, 0), 0);
    assert_int_equal(share_lease(session, &name, 0, &fresh, &token), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(a_block_of_which_a_part_came_back_is_not_shared),
        CORE_TEST(parts_come_back_from_the_tail),
        CORE_TEST(parts_come_back_from_the_head_and_the_middle),
        CORE_TEST(parts_may_cross_the_borders_of_earlier_parts),
        CORE_TEST(what_is_not_held_cannot_be_given_back),
        CORE_TEST(a_part_that_is_no_number_of_granules_is_refused),
        CORE_TEST(a_part_serves_the_one_who_waits),
        CORE_TEST(a_part_that_is_split_off_is_a_lease_of_its_own),
        CORE_TEST(splitting_off_the_tail_shrinks_the_lease),
        CORE_TEST(a_lease_of_which_everything_is_split_off_ends),
        CORE_TEST(parts_of_parts_come_back_as_they_are),
        CORE_TEST(what_cannot_be_split_stays_as_it_is),
        CORE_TEST(a_lease_gets_into_no_more_ranges_than_may_be_searched),
        CORE_TEST(a_session_gets_into_no_more_ranges_than_its_leases_need),
        CORE_TEST(a_lease_that_was_split_off_is_shared_without_the_rest),
        CORE_TEST(neighbouring_leases_become_one),
        CORE_TEST(a_lease_takes_back_what_it_lacks),
        CORE_TEST(what_cannot_be_merged_stays_as_it_is),
    };
    return cmocka_run_group_tests_name("parts of leases", tests, NULL, NULL);
}
