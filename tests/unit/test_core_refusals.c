/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the texts of refusals: each number is true for the user who reads it, and the advice
 * helps. */
#include "core_fixture.h"
#include "publish_lease.h"

static void free_memory_of_other_users_is_not_called_free(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 16 * MIB, 0);
    struct session *foreign = open_session(core, 1, UID_B), *session = open_session(core, 2, UID_A);

    describe(take_growing(foreign, pool, 4 * MIB, 0), NULL);
    ask(session, pool, 1, MIB, 0, 0);
    const char *text = expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_text(text, "1 MiB asked of test pool, not free within the time given: 0 B free for user 1001 "
                      "(largest block 0 B), 12 MiB free in segments of other users");
    expect_text(text, "16 MiB reserved of at most 16 MiB; held by other users 4 MiB");
}

static void own_free_memory_is_told_with_its_largest_block(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 24 * MIB, 8 * MIB, 0);
    struct session *foreign = open_session(core, 1, UID_B), *session = open_session(core, 2, UID_A);

    describe(take_growing(foreign, pool, 2 * MIB, 0), NULL);
    describe(take_growing(session, pool, 5 * MIB, 0), NULL);
    describe(take_growing(session, pool, 6 * MIB, 0), NULL);
    ask(session, pool, 1, 4 * MIB, 0, 0);
    const char *text = expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_text(text,
                "5 MiB free for user 1001 (largest block 3 MiB), 6 MiB free in segments of other users");
}

/* Of a pool whose buffers can lie in several segments the number is not the largest buffer. */
static void the_largest_block_of_a_pool_with_rows_is_that_of_one_segment(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 8 * MIB);
    struct session *session = open_session(core, 2, UID_A);

    ask(session, pool, 1, 4 * MIB, 0, 0);
    const char *text = expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_text(text, "(largest block in one segment 0 B)");
}

/* The process that published it may be gone: no process can be told to give it back. */
static void memory_that_names_hold_is_told_apart_from_what_was_sent(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *publisher = open_session(core, 1, UID_A), *session = open_session(core, 2, UID_A);
    struct lease *lease = take_growing(publisher, pool, 8 * MIB, 0);

    describe(lease, NULL);
    publish_lease(publisher, lease, "weights", PROTO_PUBLISH_KEEP, 0);
    assert_int_equal(pool->n_named, 1);
    assert_int_equal(pool->named_bytes, 0);
    close_session(publisher, 0);
    assert_int_equal(pool->named_bytes, 8 * MIB);
    ask(session, pool, 1, MIB, 0, 0);
    const char *text = expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_text(text, "8 MiB that names hold, and no process (gpupoolctl names)");
    assert_null(strstr(text, "sent and not taken"));
    assert_int_equal(core_unpublish_of(core, (struct tenant_id){.uid = UID_A}, "weights", 0), 0);
    assert_int_equal(pool->n_named, 0);
    assert_int_equal(pool->named_bytes, 0);
    take(session, pool, MIB, 0);
}

static void memory_that_is_being_made_is_told(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 2, UID_A);

    ask(session, pool, 1, MIB, 0, 0);
    const char *text = expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_text(text, "0 B reserved of at most 16 MiB, 8 MiB being made");
    assert_null(strstr(text, "other users"));
}

static void a_request_that_a_smaller_size_serves_is_told_that_size(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_session(core, 2, UID_A);

    describe(take_growing(session, pool, 4 * MIB, 0), NULL);
    ask_least(session, pool, 1, 3 * MIB, MIB, 0, 0, 0);
    expect_text(expect_refused(core, session, 1, PROTO_E_EXHAUSTED), "1 MiB asked of test pool");
}

static void a_request_beyond_the_quota_itself_is_not_told_to_release(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 4 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    take_growing(session, pool, 3 * MIB, 0);
    ask(session, pool, 1, 9 * MIB, NS_FOREVER, 0);
    const char *text = expect_refused(core, session, 1, PROTO_E_LIMIT);
    expect_text(text,
                "9 MiB asked of test pool: QUOTA: user 1001 may have 8 MiB there in all: ask for less, or "
                "have the administrator raise 'device'");
    assert_null(strstr(text, "release"));
    assert_null(strstr(text, "held by"));
    ask(session, pool, 2, 6 * MIB, 0, 0); /* here a release would help, and the text says so */
    text = expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    expect_text(text, "user 1001 has 3 MiB of the 8 MiB");
    expect_text(text, "release buffers");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(free_memory_of_other_users_is_not_called_free),
        CORE_TEST(own_free_memory_is_told_with_its_largest_block),
        CORE_TEST(the_largest_block_of_a_pool_with_rows_is_that_of_one_segment),
        CORE_TEST(memory_that_names_hold_is_told_apart_from_what_was_sent),
        CORE_TEST(memory_that_is_being_made_is_told),
        CORE_TEST(a_request_that_a_smaller_size_serves_is_told_that_size),
        CORE_TEST(a_request_beyond_the_quota_itself_is_not_told_to_release),
    };
    return cmocka_run_group_tests_name("refusals", tests, NULL, NULL);
}
