/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of rows: leases of several segments that are merged into one, shared, attached and given back. */
#include "core_fixture.h"

/* A lease whose segment the session was told of. */
static struct lease *take_told(struct session *session, struct pool *pool, uint64_t size) {
    struct lease *lease = take_growing(session, pool, size, 0);
    describe(lease, NULL);
    return lease;
}

static int merge_names(struct session *session, struct proto_lease_name lease,
                       struct proto_lease_name other) {
    const struct proto_merge merge = {lease.lease, lease.generation, other.lease, other.generation};
    int r = core_merge(session, &merge);
    assert_true(core_is_valid(session->core));
    return r;
}

static int merge(struct session *session, const struct lease *lease, const struct lease *other) {
    return merge_names(session, name_of(lease), name_of(other));
}

/* A row of as many whole segments of 2 MiB. */
static struct lease *make_row(struct session *session, struct pool *pool, unsigned parts) {
    struct lease *row = take_told(session, pool, 2 * MIB);
    for (unsigned i = 1; i < parts; i++)
        assert_int_equal(merge(session, row, take_told(session, pool, 2 * MIB)), 0);
    return row;
}

static struct proto_parts parts_of(struct session *session, const struct lease *row, uint32_t first) {
    const struct proto_part_name name = {row->id, row->generation, first, 0};
    struct proto_parts parts;
    assert_int_equal(core_ask_parts(session, &name, &parts), 0);
    return parts;
}

/* Host memory that is handed over as descriptors has the same flag in the core. */
static void host_pools_have_no_rows(void **state) {
    struct core *core = *state;
    const struct pool_config config = {
        .kind = PROTO_POOL_HOST,
        .device = -1,
        .name = "host pool",
        .sizes = {.limit_bytes = 8 * MIB, .step_bytes = 2 * MIB},
        .needs_vmm = true,
    };
    struct pool *pool = NULL;

    assert_int_equal(core_add_pool(core, &config, &pool), 0);
    core_pool_ready(pool, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *first = take_told(session, pool, 2 * MIB), *second = take_told(session, pool, 2 * MIB);
    assert_int_equal(merge(session, first, second), PROTO_E_INVALID);
    assert_int_equal(query(session, first).parts, 0);
}

static void leases_of_whole_segments_become_a_row(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 16 * MIB);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *first = take_told(session, pool, 2 * MIB), *second = take_told(session, pool, 4 * MIB),
                 *third = take_told(session, pool, 2 * MIB);
    const uint64_t segments[] = {first->block->segment->id, second->block->segment->id,
                                 third->block->segment->id};
    struct proto_lease_name gone = name_of(second);

    assert_int_equal(merge(session, first, second), 0);
    assert_int_equal(merge(session, first, third), 0);
    assert_int_equal(release(session, gone, 0), PROTO_E_STALE);
    struct proto_info info = query(session, first);
    assert_int_equal(info.parts, 3);
    assert_int_equal(info.segment, segments[0]);
    assert_int_equal(info.offset_bytes, 0);
    assert_int_equal(info.size_bytes, 8 * MIB);
    assert_int_equal(info.capacity_bytes, 8 * MIB);
    struct proto_parts parts = parts_of(session, first, 0);
    assert_int_equal(parts.total, 3);
    assert_int_equal(parts.count, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(parts.parts[i].segment, segments[i]);
        assert_int_equal(parts.parts[i].offset_bytes, 0);
        assert_int_equal(parts.parts[i].size_bytes, i == 1 ? 4 * MIB : 2 * MIB);
        assert_int_equal(parts.parts[i].segment_bytes, parts.parts[i].size_bytes);
    }
    assert_int_equal(pool->leased_bytes, 8 * MIB);
    assert_int_equal(session->leased_bytes, 8 * MIB);
    assert_int_equal(used(session, quota_item_of_pool(pool->id)), 8 * MIB);
    assert_int_equal(session->n_leases, 1);
    assert_int_equal(release(session, name_of(first), 0), 0);
    assert_int_equal(pool->leased_bytes, 0);
    assert_int_equal(pool_free_bytes(pool), 8 * MIB);
}

static void the_ends_of_a_row_may_lie_within_their_segments(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 16 * MIB);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *first = take_told(session, pool, 2 * MIB), *second = take_told(session, pool, 2 * MIB),
                 *third = take_told(session, pool, 2 * MIB);

    /* Parts that lie side by side are one part of the row. */
    struct lease *head = NULL;
    assert_int_equal(split(session, name_of(second), 0, MIB, &head), 0);
    describe(head, NULL);
    assert_int_equal(merge(session, head, second), 0);
    assert_int_equal(release_part(session, name_of(first), 0, 512, 0), 0);
    struct lease *tail = NULL;
    assert_int_equal(split(session, name_of(first), 512, 2 * MIB - 512, &tail), 0);
    describe(tail, NULL);
    assert_int_equal(release_part(session, name_of(third), 1024, 2 * MIB - 1024, 0), 0);

    assert_int_equal(merge(session, tail, head), 0);
    assert_int_equal(merge(session, tail, third), 0);
    struct proto_parts parts = parts_of(session, tail, 1);
    assert_int_equal(parts.total, 3);
    assert_int_equal(parts.count, 2);
    assert_int_equal(parts.parts[1].size_bytes, 1024);
    parts = parts_of(session, tail, 0);
    assert_int_equal(parts.parts[0].offset_bytes, 512);
    assert_int_equal(query(session, tail).capacity_bytes, 4 * MIB + 512);
    assert_int_equal(merge(session, tail, take_told(session, pool, 4 * MIB)),
                     PROTO_E_INVALID); /* the row ends within its last segment */
    assert_int_equal(release(session, name_of(tail), 0), 0);
}

static void only_memory_that_can_lie_side_by_side_becomes_a_row(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 32 * MIB), *another = add_vmm_pool(core, 32 * MIB),
                *legacy = add_pool(core, 32 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *whole = take_told(session, pool, 2 * MIB), *next = take_told(session, pool, 2 * MIB),
                 *late = take_told(session, pool, 2 * MIB), *holed = take_told(session, pool, 2 * MIB);
    const struct proto_release hole = {holed->id, holed->generation, 512, 512, 0, 0, 0};

    assert_int_equal(release_part(session, name_of(late), 0, 512, 0), 0);
    struct lease *upper = NULL;
    assert_int_equal(split(session, name_of(late), 512, 2 * MIB - 512, &upper), 0);
    describe(upper, NULL);
    assert_int_equal(merge(session, whole, upper), PROTO_E_INVALID); /* it begins later */
    assert_int_equal(release_as(session, &hole, 0), 0);
    assert_int_equal(merge(session, whole, holed), PROTO_E_INVALID); /* a gap */
    assert_int_equal(merge(session, holed, whole), PROTO_E_INVALID);
    assert_int_equal(merge(session, whole, take_told(session, another, 2 * MIB)), PROTO_E_INVALID);
    assert_int_equal(merge(session, take_told(session, legacy, 2 * MIB), take_told(session, legacy, 2 * MIB)),
                     PROTO_E_INVALID);
    assert_int_equal(merge(session, whole, whole), PROTO_E_INVALID);
    assert_int_equal(merge(session, whole, next), 0);
    struct lease *row = make_row(session, pool, 2);
    assert_int_equal(merge(session, whole, row), PROTO_E_INVALID); /* a row is no part */
    const struct proto_token fresh = token_of(1);
    struct proto_token token;
    struct lease *shared = take_told(session, pool, 2 * MIB);
    const struct proto_lease_name name = name_of(shared);
    assert_int_equal(share_lease(session, &name, 0, &fresh, &token), 0);
    assert_int_equal(merge(session, whole, shared), PROTO_E_SHARED);
    assert_int_equal(merge(session, shared, whole), PROTO_E_SHARED);
}

static void a_row_does_not_begin_where_it_ends(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 8 * MIB);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *first = take_told(session, pool, 2 * MIB), *upper = NULL;

    assert_int_equal(split(session, name_of(first), MIB, MIB, &upper), 0);
    describe(upper, NULL);
    assert_int_equal(merge(session, upper, take_told(session, pool, 2 * MIB)), 0);
    assert_int_equal(merge(session, upper, first), PROTO_E_INVALID); /* the lower half of its own segment */
}

static void a_row_is_given_back_whole(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 8 * MIB);
    struct session *session = open_with_page(core, 1, UID_A);
    struct lease *row = make_row(session, pool, 2), *part = NULL;
    const struct proto_lease_name name = name_of(row);

    assert_int_equal(release_part(session, name, 0, 2 * MIB, 0), PROTO_E_INVALID);
    assert_int_equal(release_part(session, name, 2 * MIB, 2 * MIB, 0), PROTO_E_INVALID);
    assert_int_equal(release_part_behind(session, name, 0, MIB, 0, 1, 0), PROTO_E_INVALID);
    assert_int_equal(split(session, name, 0, 2 * MIB, &part), PROTO_E_INVALID);
    assert_int_equal(split(session, name, 0, 4 * MIB, &part), PROTO_E_INVALID);
    assert_int_equal(pool->leased_bytes, 4 * MIB);
    assert_int_equal(release_behind(session, name, 0, 1), 0);
    assert_int_equal(pool->fenced_bytes, 4 * MIB);
    arrive(0, 1);
    core_poll_fences(core);
    assert_int_equal(pool_free_bytes(pool), 4 * MIB);
    row = make_row(session, pool, 2);
    assert_int_equal(release_part(session, name_of(row), 0, 4 * MIB, 0), 0); /* all of it, by its size */
    assert_int_equal(pool->n_leases, 0);
}

static void a_row_has_as_many_parts_as_it_may(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, UINT64_C(16) << 30);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *row = take_told(session, pool, 2 * MIB);

    for (unsigned i = 1; i < PROTO_ROW_PARTS_MAX; i++) { /* without a look at everything at each step */
        const struct proto_acquire acquire = {
            .pool = pool->id, .size_bytes = 2 * MIB, .timeout_ns = NS_FOREVER};
        struct pool *growing;
        struct answer answer;
        uint64_t bytes;
        struct proto_lease wire;
        bool described;
        assert_int_equal(core_acquire(session, 5, &acquire, 0), 0);
        while (core_next_growth(core, &growing, &bytes))
            assert_int_equal(core_segment_made(growing, bytes, NULL, 0), 0);
        assert_true(core_next_answer(core, &answer));
        core_describe_lease(answer.lease, &wire, &described);
        const struct proto_merge one = {row->id, row->generation, answer.lease->id, answer.lease->generation};
        assert_int_equal(i % 2 == 0 ? core_merge_one_way(session, &one) : core_merge(session, &one), 0);
    }
    struct lease *last = take_told(session, pool, 2 * MIB);
    assert_int_equal(merge(session, row, last), PROTO_E_LIMIT);
    assert_int_equal(parts_of(session, row, 4000).count, PROTO_PARTS_MAX);
    assert_int_equal(parts_of(session, row, 4095).count, 1);
    assert_int_equal(release(session, name_of(row), 0), 0);
    assert_int_equal(pool->leased_bytes, 2 * MIB);
}

static void an_attached_row_is_described_part_by_part(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 16 * MIB);
    struct session *owner = open_session(core, 1, UID_A), *reader = open_session(core, 2, UID_A),
                   *stranger = open_session(core, 3, UID_B);
    struct lease *row = make_row(owner, pool, 3), *lease = NULL;
    const struct proto_lease_name name = name_of(row);
    const struct proto_token fresh = token_of(1);
    struct proto_token token;
    struct proto_lease wire;
    struct segment *segment;
    bool described;

    assert_int_equal(share_lease(owner, &name, 6 * MIB - 100, &fresh, &token), 0);
    assert_int_equal(core_attach(stranger, &token, &lease), PROTO_E_NO_TOKEN);
    assert_int_equal(core_attach(reader, &token, &lease), 0);
    assert_true(core_is_valid(core));
    assert_true(describe(lease, &wire));
    assert_int_equal(wire.parts, 3);
    assert_int_equal(wire.size_bytes, 6 * MIB - 100);
    assert_int_equal(wire.capacity_bytes, 6 * MIB);
    struct proto_parts parts = parts_of(reader, lease, 0);
    for (uint32_t i = 0; i < 3; i++)
        for (unsigned again = 0; again < 2; again++) {
            const struct proto_part_name part = {lease->id, lease->generation, i, 0};
            assert_int_equal(core_describe_part(reader, &part, &wire, &segment, &described), 0);
            assert_true(core_is_valid(core));
            assert_int_equal(described, i > 0 && again == 0); /* the LEASE described the first */
            assert_int_equal(wire.parts, 0);
            assert_int_equal(wire.segment, parts.parts[i].segment);
            assert_int_equal(wire.capacity_bytes, 2 * MIB);
            assert_int_equal(wire.description.id, described ? segment->id : 0);
        }
    assert_int_equal(reader->n_segments, 3);
    assert_int_equal(query(reader, lease).holders, 2);
    struct lease *other = take_told(owner, pool, 2 * MIB);
    assert_int_equal(merge(owner, row, other), PROTO_E_SHARED);
    assert_int_equal(release(owner, name, 0), 0);
    assert_int_equal(pool->leased_bytes, 8 * MIB);
    assert_int_equal(release(reader, name_of(lease), 0), 0);
    assert_int_equal(pool->leased_bytes, 2 * MIB);
}

static void parts_that_are_not_there_are_not_told(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 16 * MIB);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    struct lease *row = make_row(session, pool, 2), *plain = take_told(session, pool, 2 * MIB);
    const struct proto_part_name beyond = {row->id, row->generation, 2, 0},
                                 stale = {row->id, row->generation + 1, 0, 0},
                                 of_plain = {plain->id, plain->generation, 0, 0},
                                 first = {row->id, row->generation, 0, 0};
    struct proto_parts parts;
    struct proto_lease wire;
    struct segment *segment;
    bool described;

    assert_int_equal(core_ask_parts(session, &beyond, &parts), PROTO_E_INVALID);
    assert_int_equal(core_ask_parts(session, &stale, &parts), PROTO_E_STALE);
    assert_int_equal(core_ask_parts(session, &of_plain, &parts), PROTO_E_INVALID);
    assert_int_equal(core_ask_parts(other, &first, &parts), PROTO_E_STALE);
    assert_int_equal(core_describe_part(session, &beyond, &wire, &segment, &described), PROTO_E_INVALID);
    assert_int_equal(core_describe_part(other, &first, &wire, &segment, &described), PROTO_E_STALE);
    assert_int_equal(query(session, plain).parts, 0);
}

static void a_lost_session_keeps_all_parts_of_its_row(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 4 * MIB);
    struct session *writer = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    make_row(writer, pool, 2);
    lose_session(writer, 0);
    assert_int_equal(pool->quarantined_bytes, 4 * MIB);
    ask(other, pool, 1, 512, 0, 0);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    session_gone(writer, 0);
    assert_int_equal(pool_free_bytes(pool), 4 * MIB);
    take(other, pool, 2 * MIB, 0);
    take(other, pool, 2 * MIB, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(leases_of_whole_segments_become_a_row),
        CORE_TEST(the_ends_of_a_row_may_lie_within_their_segments),
        CORE_TEST(only_memory_that_can_lie_side_by_side_becomes_a_row),
        CORE_TEST(host_pools_have_no_rows),
        CORE_TEST(a_row_does_not_begin_where_it_ends),
        CORE_TEST(a_row_is_given_back_whole),
        CORE_TEST(a_row_has_as_many_parts_as_it_may),
        CORE_TEST(an_attached_row_is_described_part_by_part),
        CORE_TEST(parts_that_are_not_there_are_not_told),
        CORE_TEST(a_lost_session_keeps_all_parts_of_its_row),
    };
    return cmocka_run_group_tests_name("rows", tests, NULL, NULL);
}
