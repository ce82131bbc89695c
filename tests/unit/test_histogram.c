/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a histogram of durations, and of the histogram in which a pool counts a duration. */
#include "core_fixture.h"
#include "daemon/core/histogram.h"

static unsigned bucket_of(uint64_t ns) {
    struct histogram histogram = {0};
    histogram_add(&histogram, 1000, 1000 + ns);
    assert_int_equal(histogram.count, 1);
    for (unsigned bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++)
        if (histogram.buckets[bucket] == 1)
            return bucket;
    fail_msg("%llu is in no bucket", (unsigned long long)ns);
    return 0;
}

static void each_duration_is_in_the_bucket_that_it_is_below(void **state) {
    (void)state;
    assert_int_equal(bucket_of(0), 0);
    assert_int_equal(bucket_of(1), 1);
    for (unsigned bits = 1; bits < 50; bits++) {
        uint64_t ns = UINT64_C(1) << bits;
        unsigned below = bucket_of(ns - 1), at = bucket_of(ns);
        assert_true(ns - 1 < histogram_upper_ns(below) && ns < histogram_upper_ns(at));
        assert_int_equal(at, below == HISTOGRAM_BUCKETS - 1 ? below : below + 1);
    }
    assert_int_equal(bucket_of(UINT64_MAX - 1000), HISTOGRAM_BUCKETS - 1);
    assert_true(histogram_upper_ns(HISTOGRAM_BUCKETS - 1) == UINT64_MAX);
}

static void a_clock_that_goes_back_counts_as_no_time(void **state) {
    struct histogram histogram = {0};
    (void)state;
    histogram_add(&histogram, 5, 4);
    assert_int_equal(histogram.buckets[0], 1);
    assert_int_equal(histogram.sum_ns, 0);
}

static void a_quantile_is_less_than_a_factor_of_two_off(void **state) {
    struct histogram histogram = {0};
    uint64_t sum = 0;
    (void)state;
    for (uint64_t i = 1; i <= 100000; i++) {
        histogram_add(&histogram, 0, i * 37);
        sum += i * 37;
    }
    assert_int_equal(histogram.sum_ns, sum);
    for (unsigned permille = 1; permille <= 1000; permille++) {
        uint64_t truth = permille * 100 * UINT64_C(37), shown = histogram_quantile_ns(&histogram, permille);
        assert_true(shown < 2 * truth && truth < 2 * shown);
        assert_true(shown >= histogram_quantile_ns(&histogram, permille - 1));
    }
    assert_true(histogram_quantile_ns(&histogram, 990) > histogram_quantile_ns(&histogram, 500));
}

static void quantiles_of_nothing_one_and_the_longest(void **state) {
    struct histogram histogram = {0};
    (void)state;
    assert_int_equal(histogram_quantile_ns(&histogram, 990), 0);
    histogram_add(&histogram, 0, 1000);
    for (unsigned permille = 0; permille <= 1000; permille++) {
        uint64_t shown = histogram_quantile_ns(&histogram, permille);
        assert_true(shown >= 512 && shown < 1024);
    }
    for (unsigned i = 0; i < 999; i++)
        histogram_add(&histogram, 0, 0);
    assert_int_equal(histogram_quantile_ns(&histogram, 999), 0);
    assert_true(histogram_quantile_ns(&histogram, 1000) >= 512);
    histogram_add(&histogram, 0, UINT64_MAX);
    assert_int_equal(histogram_quantile_ns(&histogram, 1000), UINT64_C(1) << (HISTOGRAM_BUCKETS - 2));
}

/* Takes the next answer and says when it was sent, as the shell does. */
static void answered(struct core *core, uint64_t now_ns) {
    struct answer answer;
    assert_true(core_next_answer(core, &answer));
    core_answer_sent(&answer, now_ns);
}

static void who_waited_is_counted_apart_from_who_was_served_at_once(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    const struct proto_acquire nowhere = {.pool = 7, .size_bytes = 1};

    ask(session, pool, 1, MIB, NS_FOREVER, 1000); /* waits for growth */
    assert_int_equal(expect_growth(core, pool), 8 * MIB);
    segment_made(pool, 8 * MIB, 5000);
    answered(core, 6000);
    assert_int_equal(pool->stats.waiting.count, 1);
    assert_int_equal(pool->stats.waiting.sum_ns, 5000);
    assert_int_equal(pool->stats.serving.count, 0);
    assert_int_equal(pool->stats.growing.count, 1);
    assert_int_equal(pool->stats.growing.sum_ns, 4000);

    ask(session, pool, 2, MIB, NS_FOREVER, 7000); /* at once */
    answered(core, 7300);
    assert_int_equal(pool->stats.serving.count, 1);
    assert_int_equal(pool->stats.serving.sum_ns, 300);
    ask(session, pool, 3, 7 * MIB, 0, 8000); /* refused at once */
    answered(core, 8020);
    assert_int_equal(pool->stats.serving.count, 2);
    assert_int_equal(pool->stats.serving.sum_ns, 320);
    ask(session, pool, 4, 7 * MIB, 500, 9000); /* refused in the end */
    tick(core, 9500);
    answered(core, 9600);
    assert_int_equal(pool->stats.waiting.count, 2);
    assert_int_equal(pool->stats.waiting.sum_ns, 5600);
    assert_int_equal(core_acquire(session, 5, &nowhere, 10000), 0); /* there is no such pool to count in */
    answered(core, 10001);
    assert_int_equal(pool->stats.serving.count + pool->stats.waiting.count, 4);
}

static void a_growth_counts_from_its_decision_and_only_when_it_was_made(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 16 * MIB);

    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 100);
    assert_int_equal(pool->stats.growing.count, 0);
    tick(core, 100 + GROW_RETRY_NS);
    grow(pool, 8 * MIB, 100 + GROW_RETRY_NS + 70);
    assert_int_equal(pool->stats.growing.count, 1);
    assert_int_equal(pool->stats.growing.sum_ns, 70);
    grow(pool, 8 * MIB, 100 + GROW_RETRY_NS + 100);
    assert_int_equal(pool->stats.growing.count, 2);
    assert_int_equal(pool->stats.growing.sum_ns, 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_duration_is_in_the_bucket_that_it_is_below),
        cmocka_unit_test(a_clock_that_goes_back_counts_as_no_time),
        cmocka_unit_test(a_quantile_is_less_than_a_factor_of_two_off),
        cmocka_unit_test(quantiles_of_nothing_one_and_the_longest),
        CORE_TEST(who_waited_is_counted_apart_from_who_was_served_at_once),
        CORE_TEST(a_growth_counts_from_its_decision_and_only_when_it_was_made),
    };
    return cmocka_run_group_tests_name("histograms", tests, NULL, NULL);
}
