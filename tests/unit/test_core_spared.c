/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a spared session: only its own requests wait for room, and it looks after its own memory
 * (GAVE_BACK). It is not asked until others wait, or it has waited for long, or it could close a segment.
 */
#include "core_fixture.h"

struct world {
    struct core *core;
    struct pool *pool;
    struct session *session, *holder;
};

/* A pool of 16 MiB that two sessions hold, who want to be asked. */
static struct world world_make(struct core *core) {
    struct world world = {.core = core};

    world.pool = add_pool(world.core, 16 * MIB, 8 * MIB, 0);
    world.session = open_wanting(world.core, 1, UID_A);
    world.holder = open_wanting(world.core, 2, UID_A);
    take_growing(world.session, world.pool, 8 * MIB, 0);
    take_growing(world.holder, world.pool, 8 * MIB, 0);
    return world;
}

static void wait_for(const struct world *world, struct session *session, uint64_t request, uint32_t flags,
                     uint64_t now_ns) {
    ask_least(session, world->pool, request, 4 * MIB, 0, flags, NS_FOREVER, now_ns);
}

static void one_that_waits_alone_is_not_asked_but_the_others_are(void **state) {
    struct world world = world_make(*state);

    wait_for(&world, world.session, 1, PROTO_ACQUIRE_GAVE_BACK, 0);
    wait_for(&world, world.session, 2, PROTO_ACQUIRE_GAVE_BACK, 0);
    expect_reclaim(world.core, world.holder);
    expect_no_reclaim(world.core);
}

static void one_that_does_not_say_so_is_asked(void **state) {
    struct world world = world_make(*state);

    wait_for(&world, world.session, 1, 0, 0);
    expect_reclaim(world.core, world.session);
    expect_reclaim(world.core, world.holder);
}

static void when_another_begins_to_wait_it_is_asked_at_once(void **state) {
    (void)state;
    for (unsigned way = 0; way < 2; way++) {
        struct world world = world_make(core_make());
        wait_for(&world, world.session, 1, PROTO_ACQUIRE_GAVE_BACK, 0);
        expect_reclaim(world.core, world.holder);
        if (way == 0)
            wait_for(&world, world.holder, 2, PROTO_ACQUIRE_GAVE_BACK, 1);
        else
            wait_for(&world, world.session, 2, 0, 1);
        expect_reclaim(world.core, world.session);
        core_destroy(world.core);
    }
}

static void after_an_interval_it_is_asked_as_well(void **state) {
    struct world world = world_make(*state);

    wait_for(&world, world.session, 1, PROTO_ACQUIRE_GAVE_BACK, 0);
    expect_reclaim(world.core, world.holder);
    tick(world.core, RECLAIM_INTERVAL_NS);
    expect_reclaim(world.core, world.session);
    expect_reclaim(world.core, world.holder);
}

static void one_with_a_segment_to_close_is_asked(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *session = open_wanting(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 8 * MIB, 0);
    assert_true(describe(lease, NULL)); /* it has the segment mapped */
    take_growing(session, pool, 8 * MIB, 0);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    ask_least(session, pool, 1, 16 * MIB, 0, PROTO_ACQUIRE_GAVE_BACK, NS_FOREVER, 0);
    expect_reclaim(core, session);
}

static void its_end_is_survived(void **state) {
    struct world world = world_make(*state);

    wait_for(&world, world.session, 1, PROTO_ACQUIRE_GAVE_BACK, 0);
    expect_reclaim(world.core, world.holder);
    close_session(world.session, 1);
    wait_for(&world, world.holder, 2, 0, 1);
    expect_granted(world.core, world.holder, 2); /* what the other left */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(one_that_waits_alone_is_not_asked_but_the_others_are),
        CORE_TEST(one_that_does_not_say_so_is_asked),
        cmocka_unit_test(when_another_begins_to_wait_it_is_asked_at_once),
        CORE_TEST(after_an_interval_it_is_asked_as_well),
        CORE_TEST(one_with_a_segment_to_close_is_asked),
        CORE_TEST(its_end_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
