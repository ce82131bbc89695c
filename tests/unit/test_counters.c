/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the lines in which a client's threads count: a line belongs to one thread at a time, and to one
 * pool for ever; the lowest free line is taken first. */
#include "client/cache/counters.h"
#include "unit.h"

static struct counters counters;
static struct proto_page page;

static int set_up(void **state) {
    (void)state;
    page = (struct proto_page){0};
    counters_init(&counters);
    counters.page = &page;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    counters_deinit(&counters);
    return 0;
}

static void a_line_is_one_threads_and_goes_on_with_its_sums(void **state) {
    (void)state;
    struct proto_counters *first = counters_take(&counters, 3), *second = counters_take(&counters, 3);
    assert_ptr_equal(first, &page.counters[0]);
    assert_ptr_equal(second, &page.counters[1]);
    assert_int_equal(first->pool, 3);
    count_up(&first->taken_bytes, 512);
    counters_give(&counters, first);
    assert_int_equal(first->pool, 3); /* the daemon still sees it */
    struct proto_counters *other = counters_take(&counters, 4);
    assert_ptr_equal(other, &page.counters[2]); /* of another pool: not that one */
    struct proto_counters *again = counters_take(&counters, 3);
    assert_ptr_equal(again, first);
    count_up(&again->taken_bytes, 1);
    assert_int_equal(first->taken_bytes, 513);
}

static void when_all_lines_are_used_there_is_none(void **state) {
    struct proto_counters *line = NULL;

    (void)state;
    for (unsigned i = 0; i < PROTO_PAGE_COUNTERS; i++) {
        line = counters_take(&counters, 1 + i % 5);
        assert_ptr_equal(line, &page.counters[i]);
    }
    assert_null(counters_take(&counters, 1));
    counters_give(&counters, line);
    assert_null(counters_take(&counters, line->pool % 5 + 1));
    assert_ptr_equal(counters_take(&counters, line->pool), line);
}

static void what_was_taken_is_added_up_by_pool(void **state) {
    (void)state;
    assert_int_equal(counters_takes(&counters, 3), 0);
    struct proto_counters *first = counters_take(&counters, 3), *other = counters_take(&counters, 4),
                          *second = counters_take(&counters, 3);
    count_up(&first->hits, 5);
    count_up(&first->misses, 2);
    count_up(&other->hits, 100);
    count_up(&second->misses, 1);
    counters_give(&counters, first); /* of a thread that has ended, too */
    assert_int_equal(counters_takes(&counters, 3), 8);
    assert_int_equal(counters_takes(&counters, 4), 100);
    assert_int_equal(counters_takes(&counters, 5), 0);
}

static void without_a_page_there_is_none(void **state) {
    (void)state;
    counters.page = NULL;
    assert_null(counters_take(&counters, 1));
    assert_int_equal(counters_takes(&counters, 1), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_line_is_one_threads_and_goes_on_with_its_sums, set_up, tear_down),
        cmocka_unit_test_setup_teardown(when_all_lines_are_used_there_is_none, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_taken_is_added_up_by_pool, set_up, tear_down),
        cmocka_unit_test_setup_teardown(without_a_page_there_is_none, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
