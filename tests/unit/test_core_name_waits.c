/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for names: which answer each gets, and when; and which session builds what is not there. */
#include "names_fixture.h"

#define BUILD  PROTO_OPEN_NAME_BUILD
#define CHANGE PROTO_OPEN_NAME_CHANGE

struct scene {
    struct core *core;
    struct pool *pool;
    struct session *publisher, *one, *two;
    struct lease *lease;
};

/* Three sessions of a user. The first one has a lease of 2 MiB. */
static struct scene scene_of(void **state) {
    struct scene scene = {.core = *state};

    scene.pool = add_pool(scene.core, 16 * MIB, 2 * MIB, 0);
    scene.publisher = open_with_page(scene.core, 1, UID_A);
    scene.one = open_session(scene.core, 2, UID_A);
    scene.two = open_session(scene.core, 3, UID_A);
    scene.lease = take_growing(scene.publisher, scene.pool, 2 * MIB, 0);
    return scene;
}

static void end_scene(const struct scene *scene, void **state) {
    core_destroy(scene->core);
    *state = core_make();
}

/* --- waiting --- */

static void requests_wait_until_something_is_published(void **state) {
    struct scene scene = scene_of(state);

    open_name(scene.one, 1, "a", 0, 0);
    open_name(scene.two, 2, "a", 0, 0);
    open_name(scene.two, 3, "b", 0, 0);
    expect_no_name_answer(scene.core);
    assert_int_equal(used(scene.one, QUOTA_WAITING), 3);
    uint64_t generation = publish_one(scene.publisher, "a", scene.lease, 0);
    assert_int_equal(used(scene.one, QUOTA_WAITING), 1);
    expect_there(scene.core, scene.one, 1, generation); /* in the order in which they came */
    expect_there(scene.core, scene.two, 2, generation);
    expect_no_name_answer(scene.core);
    open_name(scene.one, 4, "a", 0, BUILD); /* it is there: there is nothing to build */
    expect_there(scene.core, scene.one, 4, generation);
}

static void a_request_names_the_least_generation(void **state) {
    struct scene scene = scene_of(state);
    uint64_t first = publish_one(scene.publisher, "a", scene.lease, 0);

    open_name(scene.one, 1, "a", first, 0);
    expect_there(scene.core, scene.one, 1, first);
    open_name(scene.one, 2, "a", first + 1, 0);
    open_name(scene.one, 3, "a", first + 2, BUILD); /* something is published: no session builds it */
    expect_no_name_answer(scene.core);
    uint64_t second = publish_one(scene.publisher, "a", scene.lease, 0);
    expect_there(scene.core, scene.one, 2, second);
    assert_int_equal(second, first + 1);
    expect_no_name_answer(scene.core);
    uint64_t third = publish_one(scene.publisher, "a", scene.lease, 0);
    expect_there(scene.core, scene.one, 3, third);
}

static void a_request_has_a_deadline(void **state) {
    struct scene scene = scene_of(state);

    assert_int_equal(try_open(scene.one, 1, "a", 0, 0, 5 * NS_PER_S, NS_PER_S), 0);
    assert_int_equal(try_open(scene.two, 2, "a", 0, 0, 2 * NS_PER_S, NS_PER_S), 0);
    assert_int_equal(core_next_tick_ns(scene.core), 3 * NS_PER_S);
    tick(scene.core, 3 * NS_PER_S - 1);
    expect_no_name_answer(scene.core);
    tick(scene.core, 3 * NS_PER_S);
    expect_text(expect_name_refused(scene.core, scene.two, 2, PROTO_E_NO_NAME),
                "nothing is published under 'a'");
    assert_int_equal(core_next_tick_ns(scene.core), 6 * NS_PER_S);
    tick(scene.core, 6 * NS_PER_S);
    expect_name_refused(scene.core, scene.one, 1, PROTO_E_NO_NAME);
    assert_int_equal(core_next_tick_ns(scene.core), NS_FOREVER);
    assert_int_equal(used(scene.one, QUOTA_WAITING), 0);
    assert_int_equal(scene.one->tenant->n_names, 0);
}

static void refusals_say_why(void **state) {
    struct scene scene = scene_of(state);
    char text[64];

    uint64_t generation = publish_one(scene.publisher, "a", scene.lease, 0);
    assert_int_equal(try_open(scene.one, 1, "a", generation + 1, 0, 0, 0), 0);
    snprintf(text, sizeof text, "'a' has generation %llu", (unsigned long long)generation);
    expect_text(expect_name_refused(scene.core, scene.one, 1, PROTO_E_NO_NAME), text);
    assert_int_equal(try_open(scene.one, 2, "a", generation, CHANGE, 0, 0), 0);
    expect_text(expect_name_refused(scene.core, scene.one, 2, PROTO_E_NO_NAME), "nothing else was published");
    open_name(scene.two, 3, "b", 0, BUILD);
    expect_state(scene.core, scene.two, 3, PROTO_NAME_BUILD);
    assert_int_equal(try_open(scene.one, 4, "b", 0, 0, 0, 0), 0);
    expect_text(expect_name_refused(scene.core, scene.one, 4, PROTO_E_NO_NAME), "(pid 3) is to build it");
    open_name(scene.one, 5, "c", 0, 0);
    core_cancel(scene.one, 5, 0);
    expect_text(expect_name_refused(scene.core, scene.one, 5, PROTO_E_CANCELLED), "cancelled");
}

static void a_request_is_cancelled_while_it_waits(void **state) {
    struct scene scene = scene_of(state);

    open_name(scene.one, 1, "a", 0, 0);
    open_name(scene.two, 1, "a", 0, 0);
    open_name(scene.one, 1, "b", 0, 0);
    core_cancel(scene.one, 2, 0); /* none of this id */
    expect_no_name_answer(scene.core);
    core_cancel(scene.one, 1, 0); /* the oldest */
    assert_true(core_is_valid(scene.core));
    expect_name_refused(scene.core, scene.one, 1, PROTO_E_CANCELLED);
    expect_no_name_answer(scene.core);
    uint64_t generation = publish_one(scene.publisher, "a", scene.lease, 0);
    core_cancel(scene.two, 1, 0); /* it waits no more: its answer is under way */
    expect_there(scene.core, scene.two, 1, generation);
    core_cancel(scene.one, 1, 0);
    assert_true(core_is_valid(scene.core));
    expect_name_refused(scene.core, scene.one, 1, PROTO_E_CANCELLED);
    assert_int_equal(used(scene.one, QUOTA_WAITING), 0);
}

/* A request for memory and one for a name may have one id: the older one is cancelled. */
static void the_older_of_two_kinds_is_cancelled(void **state) {
    for (unsigned name_first = 0; name_first < 2; name_first++) {
        struct scene scene = scene_of(state);
        if (name_first)
            open_name(scene.one, 1, "a", 0, 0);
        ask(scene.one, scene.pool, 1, 16 * MIB, NS_FOREVER, 0);
        if (!name_first)
            open_name(scene.one, 1, "a", 0, 0);
        for (unsigned n = 0; n < 2; n++) {
            core_cancel(scene.one, 1, 0);
            assert_true(core_is_valid(scene.core));
            if ((n == 0) == (name_first != 0)) {
                expect_name_refused(scene.core, scene.one, 1, PROTO_E_CANCELLED);
                expect_no_answer(scene.core);
            } else {
                expect_refused(scene.core, scene.one, 1, PROTO_E_CANCELLED);
                expect_no_name_answer(scene.core);
            }
        }
        end_scene(&scene, state);
    }
}

static void so_many_requests_wait_and_no_more(void **state) {
    struct scene scene = scene_of(state);

    limit_all(scene.core, QUOTA_WAITING, 2, 0);
    open_name(scene.one, 1, "a", 0, 0);
    open_name(scene.two, 2, "b", 0, 0);
    assert_int_equal(try_open(scene.one, 3, "c", 0, 0, NS_FOREVER, 0), PROTO_E_LIMIT);
    assert_int_equal(scene.one->tenant->quota.n_refusals, 1);
    assert_int_equal(scene.one->tenant->n_names, 2);
    publish_one(scene.publisher, "a", scene.lease, 0);
    open_name(scene.one, 4, "c", 0, 0); /* the answer is not taken, and counts no more */
    close_session(scene.one, 0);
    close_session(scene.two, 0);
    assert_int_equal(used(scene.publisher, QUOTA_WAITING), 0);
    expect_no_name_answer(scene.core);
    limit_all(scene.core, QUOTA_WAITING, QUOTA_UNLIMITED, 0);
    for (unsigned i = 0; i < SESSION_WAITING_MAX; i++) {
        const struct proto_open_name message = {.name = "z", .timeout_ns = NS_FOREVER};
        assert_int_equal(core_open_name(scene.publisher, i, &message, 0), 0);
    }
    assert_int_equal(try_open(scene.publisher, 1, "y", 0, 0, NS_FOREVER, 0), PROTO_E_LIMIT);
}

/* --- changes --- */

static void a_change_is_another_generation(void **state) {
    struct scene scene = scene_of(state);
    uint64_t first = publish_one(scene.publisher, "a", scene.lease, 0);

    open_name(scene.one, 1, "a", first, CHANGE);
    open_name(scene.one, 2, "a", first - 1, CHANGE); /* it has changed already */
    expect_there(scene.core, scene.one, 2, first);
    expect_no_name_answer(scene.core);
    uint64_t second = publish_one(scene.publisher, "a", scene.lease, 0);
    expect_there(scene.core, scene.one, 1, second);
}

static void a_change_is_that_nothing_is_there_any_more(void **state) {
    struct scene scene = scene_of(state);
    uint64_t first = publish_one(scene.publisher, "a", scene.lease, 0);

    open_name(scene.one, 1, "a", first, CHANGE);
    open_name(scene.one, 2, "b", 0, CHANGE); /* waits until there is anything */
    assert_int_equal(unpublish(scene.publisher, "a", 0, 0), 0);
    expect_state(scene.core, scene.one, 1, PROTO_NAME_GONE);
    open_name(scene.one, 3, "a", first, CHANGE);
    expect_state(scene.core, scene.one, 3, PROTO_NAME_GONE);
    expect_no_name_answer(scene.core);
    uint64_t second = publish_one(scene.publisher, "b", scene.lease, 0);
    expect_there(scene.core, scene.one, 2, second);
    open_name(scene.one, 4, "b", second, CHANGE);
    close_session(scene.publisher, 0); /* which kept nothing */
    expect_state(scene.core, scene.one, 4, PROTO_NAME_GONE);
}

/* --- building --- */

static void the_first_that_asks_builds(void **state) {
    struct scene scene = scene_of(state);

    open_name(scene.one, 1, "a", 0, 0); /* does not wish to */
    open_name(scene.publisher, 2, "a", 0, BUILD);
    open_name(scene.two, 3, "a", 0, BUILD);
    expect_state(scene.core, scene.publisher, 2, PROTO_NAME_BUILD);
    expect_no_name_answer(scene.core);
    assert_int_equal(unpublish(scene.two, "a", 0, PROTO_UNPUBLISH_BUILD),
                     PROTO_E_NO_NAME); /* it does not build */
    uint64_t generation = publish_one(scene.publisher, "a", scene.lease, 0);
    expect_there(scene.core, scene.one, 1, generation);
    expect_there(scene.core, scene.two, 3, generation);
    assert_int_equal(unpublish(scene.publisher, "a", 0, PROTO_UNPUBLISH_BUILD), PROTO_E_NO_NAME); /* it has */
    open_now(scene.one, "a", generation);
}

/* how: 0: it gives up; 1: it dies; 2: it says farewell. */
static void when_a_builder_ends_the_next_one_builds(void **state) {
    for (unsigned how = 0; how < 3; how++) {
        struct scene scene = scene_of(state);
        open_name(scene.one, 1, "a", 0, BUILD);
        open_name(scene.two, 2, "a", 0, 0);
        open_name(scene.two, 3, "a", 0, BUILD);
        open_name(scene.publisher, 4, "a", 0, BUILD);
        expect_state(scene.core, scene.one, 1, PROTO_NAME_BUILD);
        expect_no_name_answer(scene.core);
        if (how == 0)
            assert_int_equal(unpublish(scene.one, "a", 0, PROTO_UNPUBLISH_BUILD), 0);
        else if (how == 1)
            lose_session(scene.one, 0);
        else
            close_session(scene.one, 0);
        expect_state(scene.core, scene.two, 3, PROTO_NAME_BUILD);
        expect_no_name_answer(scene.core);
        lose_session(scene.two, 0);
        expect_state(scene.core, scene.publisher, 4, PROTO_NAME_BUILD);
        assert_int_equal(unpublish(scene.publisher, "a", 0, PROTO_UNPUBLISH_BUILD), 0);
        assert_int_equal(scene.publisher->tenant->n_names, 0);
        assert_int_equal(unpublish(scene.publisher, "a", 0, PROTO_UNPUBLISH_BUILD), PROTO_E_NO_NAME);
        end_scene(&scene, state);
    }
}

/* The builder may still publish afterwards, in the place of that. */
static void another_session_may_publish_meanwhile(void **state) {
    struct scene scene = scene_of(state);
    struct lease *own = take_growing(scene.one, scene.pool, MIB, 0);

    open_name(scene.one, 1, "a", 0, BUILD);
    expect_state(scene.core, scene.one, 1, PROTO_NAME_BUILD);
    open_name(scene.two, 2, "a", 0, 0);
    uint64_t first = publish_one(scene.publisher, "a", scene.lease, 0);
    expect_there(scene.core, scene.two, 2, first);
    assert_int_equal(unpublish(scene.publisher, "a", 0, 0), 0);
    open_name(scene.two, 3, "a", 0, BUILD); /* the first one still builds it */
    expect_no_name_answer(scene.core);
    uint64_t second = publish_one(scene.one, "a", own, 0);
    expect_there(scene.core, scene.two, 3, second);
}

static void the_end_of_what_is_published_wakes_a_builder(void **state) {
    struct scene scene = scene_of(state);
    uint64_t first = publish_one(scene.publisher, "a", scene.lease, 0);

    open_name(scene.one, 1, "a", first + 9, BUILD);
    expect_no_name_answer(scene.core);
    close_session(scene.publisher, 0);
    expect_state(scene.core, scene.one, 1, PROTO_NAME_BUILD);
}

/* --- what changes before an answer is taken --- */

static void an_answer_tells_what_is_there_when_it_is_taken(void **state) {
    struct scene scene = scene_of(state);

    open_name(scene.one, 1, "a", 0, 0);
    uint64_t first = publish_one(scene.publisher, "a", scene.lease, 0);
    uint64_t second = publish_one(scene.publisher, "a", scene.lease, 0);
    expect_there(scene.core, scene.one, 1, second);
    assert_true(second > first);
    open_name(scene.one, 2, "a", second, CHANGE);
    assert_int_equal(unpublish(scene.publisher, "a", 0, 0), 0);
    uint64_t third = publish_one(scene.publisher, "a", scene.lease, 0);
    expect_there(scene.core, scene.one, 2, third); /* not GONE */
}

/* In its place, and with its deadline. */
static void a_request_waits_again_if_its_answer_is_not_true_any_more(void **state) {
    struct scene scene = scene_of(state);

    assert_int_equal(try_open(scene.one, 1, "a", 0, 0, 5 * NS_PER_S, 0), 0);
    publish_one(scene.publisher, "a", scene.lease, 0);
    open_name(scene.two, 2, "a", UINT64_MAX, 0);
    assert_int_equal(unpublish(scene.publisher, "a", 0, 0), 0);
    expect_no_name_answer(scene.core);
    assert_true(core_is_valid(scene.core));
    assert_int_equal(used(scene.one, QUOTA_WAITING), 2);
    uint64_t second = publish_one(scene.publisher, "a", scene.lease, 0);
    expect_there(scene.core, scene.one, 1, second);
    assert_int_equal(unpublish(scene.publisher, "a", 0, 0), 0);

    assert_int_equal(try_open(scene.one, 3, "a", 0, 0, 5 * NS_PER_S, 0), 0);
    publish_one(scene.publisher, "a", scene.lease, 0);
    assert_int_equal(unpublish(scene.publisher, "a", 0, 0), 0);
    expect_no_name_answer(scene.core);
    tick(scene.core, 5 * NS_PER_S);
    expect_name_refused(scene.core, scene.one, 3, PROTO_E_NO_NAME);
}

static void a_builder_that_gives_up_before_it_is_told_waits_again(void **state) {
    struct scene scene = scene_of(state);

    open_name(scene.one, 1, "a", 0, BUILD);
    open_name(scene.two, 2, "a", 0, BUILD);
    assert_int_equal(unpublish(scene.one, "a", 0, PROTO_UNPUBLISH_BUILD), 0);
    expect_state(scene.core, scene.two, 2, PROTO_NAME_BUILD); /* one session is told, and only one */
    expect_no_name_answer(scene.core);
    close_session(scene.two, 0);
    expect_state(scene.core, scene.one, 1, PROTO_NAME_BUILD);
}

static void a_session_that_ends_gets_no_answer(void **state) {
    struct scene scene = scene_of(state);

    open_name(scene.one, 1, "a", 0, 0);
    open_name(scene.one, 2, "b", 0, 0);
    open_name(scene.two, 3, "b", 0, BUILD);
    publish_one(scene.publisher, "a", scene.lease, 0);
    lose_session(scene.one, 0);
    close_session(scene.two, 0); /* before it was told to build */
    expect_no_name_answer(scene.core);
    assert_int_equal(scene.publisher->tenant->n_names, 1);
    session_gone(scene.one, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(requests_wait_until_something_is_published),
        CORE_TEST(a_request_names_the_least_generation),
        CORE_TEST(a_request_has_a_deadline),
        CORE_TEST(refusals_say_why),
        CORE_TEST(a_request_is_cancelled_while_it_waits),
        CORE_TEST(the_older_of_two_kinds_is_cancelled),
        CORE_TEST(so_many_requests_wait_and_no_more),
        CORE_TEST(a_change_is_another_generation),
        CORE_TEST(a_change_is_that_nothing_is_there_any_more),
        CORE_TEST(the_first_that_asks_builds),
        CORE_TEST(when_a_builder_ends_the_next_one_builds),
        CORE_TEST(another_session_may_publish_meanwhile),
        CORE_TEST(the_end_of_what_is_published_wakes_a_builder),
        CORE_TEST(an_answer_tells_what_is_there_when_it_is_taken),
        CORE_TEST(a_request_waits_again_if_its_answer_is_not_true_any_more),
        CORE_TEST(a_builder_that_gives_up_before_it_is_told_waits_again),
        CORE_TEST(a_session_that_ends_gets_no_answer),
    };
    return cmocka_run_group_tests_name("core name waits", tests, NULL, NULL);
}
