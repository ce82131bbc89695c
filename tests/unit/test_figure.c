/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a benchmark's figures: samples during which the processor itself was slow are set aside, and no
 * others. */
#include "tests/bench/calibration.h"
#include "tests/unit/unit.h"

#define SAMPLES 6u

static const struct calibration known = {.best_ns = 100};

static void samples_of_a_quiet_processor_are_all_kept(void **state) {
    (void)state;
    const double ns[SAMPLES] = {60, 10, 50, 20, 40, 30}, speeds[SAMPLES] = {100, 101, 119, 120, 110, 100};
    struct figure figure = figure_judge(&known, ns, speeds, SAMPLES, SAMPLES);
    assert_true(figure.ns == 35 && figure.raw_ns == 35);
    assert_int_equal(figure.samples, SAMPLES);
    assert_int_equal(figure.slow, 0);
}

static void slow_samples_are_set_aside_and_those_that_repeat_them_count(void **state) {
    (void)state;
    /* The first four came first. A quick sample is set aside as a slow one is: what counts is the processor.
     */
    const double ns[9] = {33, 34, 5, 19, 20, 21, 22, 23, 24},
                 speeds[9] = {150, 170, 121, 100, 100, 100, 100, 100, 100};
    struct figure figure = figure_judge(&known, ns, speeds, 4, 9);
    assert_true(figure.raw_ns == 26);
    assert_true(figure.ns == 21.5);
    assert_int_equal(figure.samples, 6);
    assert_int_equal(figure.slow, 3);
}

static void a_few_quiet_samples_among_many_slow_ones_say_nothing(void **state) {
    (void)state;
    const double ns[8] = {33, 34, 35, 36, 37, 20, 20, 20},
                 speeds[8] = {150, 150, 150, 150, 150, 100, 100, 100};
    struct figure figure = figure_judge(&known, ns, speeds, SAMPLES, 8);
    assert_true(figure.ns == figure.raw_ns && figure.raw_ns == 34.5);
    assert_int_equal(figure.samples, 0);
}

static double one(void *context) {
    ++*(unsigned *)context;
    return 1;
}

static void a_figure_has_at_least_as_many_samples_as_asked(void **state) {
    (void)state;
    struct calibration calibration = {0};
    unsigned taken = 0;
    calibration_scan(&calibration);
    struct figure figure = figure_take(&calibration, 0, 7, one, &taken);
    assert_true(calibration.best_ns > 0);
    assert_true(figure.ns == 1 && figure.raw_ns == 1);
    assert_in_range(figure.samples + figure.slow, 1, 3 * 7);
    assert_in_range(taken, 7, UINT32_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_of_a_quiet_processor_are_all_kept),
        cmocka_unit_test(slow_samples_are_set_aside_and_those_that_repeat_them_count),
        cmocka_unit_test(a_few_quiet_samples_among_many_slow_ones_say_nothing),
        cmocka_unit_test(a_figure_has_at_least_as_many_samples_as_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
