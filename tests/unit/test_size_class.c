/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of size classes: at every size that is small, around every class's bounds, and at random.
 */
#include "client/core/size_class.h"
#include "heap_fixture.h"
#include "proto/limits.h"

static void check_size(uint64_t size_bytes) {
    unsigned class = size_class_of(size_bytes);
    uint64_t rounded = size_class_round(size_bytes);

    assert_in_range(class, 0, SIZE_CLASSES - 1);
    assert_true(size_bytes <= size_class_bytes(class));
    assert_true(class == 0 || size_bytes > size_class_bytes(class - 1));
    assert_true(rounded >= size_bytes);
    assert_int_equal(rounded % HEAP_GRANULE, 0);
    assert_int_equal(size_class_of(rounded), class);
    if (size_bytes <= SIZE_CLASS_ROUNDED_MAX)
        assert_int_equal(rounded, size_class_bytes(class));
    else
        assert_true(rounded - size_bytes < HEAP_GRANULE);
    if (size_bytes > 4 * KIB)
        assert_true((rounded - size_bytes) * 8 <= size_bytes);
    else
        assert_true(rounded - size_bytes < HEAP_GRANULE);
}

static void a_class_holds_its_sizes_and_wastes_an_eighth_at_most(void **state) {
    (void)state;
    for (uint64_t size = 1; size <= 64 * KIB; size++)
        check_size(size);
    for (unsigned class = 0; class < SIZE_CLASSES; class ++) {
        uint64_t bytes = size_class_bytes(class);
        assert_int_equal(size_class_of(bytes), class);
        assert_true(class == 0 || bytes > size_class_bytes(class - 1));
        check_size(bytes);
        check_size(bytes - 1);
        if (bytes < PROTO_SIZE_MAX)
            check_size(bytes + 1);
    }
    assert_int_equal(size_class_bytes(SIZE_CLASSES - 1), PROTO_SIZE_MAX);
    check_size(PROTO_SIZE_MAX);
    random_state = 1;
    for (unsigned i = 0; i < 100000; i++)
        check_size(random64() % (PROTO_SIZE_MAX >> random_below(56)) + 1);
}

static void a_cached_piece_suits_what_would_not_waste_it(void **state) {
    (void)state;
    assert_int_equal(size_class_of(MIB), SIZE_CLASS_LARGE - 1);
    assert_true(size_class_suits(SIZE_CLASS_ROUNDED_MAX, SIZE_CLASS_ROUNDED_MAX / 9 * 8));
    assert_false(size_class_suits(SIZE_CLASS_ROUNDED_MAX, SIZE_CLASS_ROUNDED_MAX + 1));
    assert_true(size_class_suits(MIB, MIB - MIB / 64));
    assert_false(size_class_suits(MIB, MIB - MIB / 64 - 1));
    assert_true(size_class_suits(9 * MIB, 9 * MIB));
    assert_true(size_class_suits(9 * MIB, 9 * MIB - 9 * MIB / 64));
    assert_false(size_class_suits(9 * MIB, 9 * MIB - 9 * MIB / 64 - 1));
    assert_false(size_class_suits(9 * MIB, 9 * MIB + 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_class_holds_its_sizes_and_wastes_an_eighth_at_most),
        cmocka_unit_test(a_cached_piece_suits_what_would_not_waste_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
