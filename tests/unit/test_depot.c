/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the depot of a stream heap: whole magazines come and go, bounded for each class; the decay finds
 * the magazines that no thread used; without memory for a magazine nothing is lost. aligned_alloc is wrapped
 * by the linker, so that it can be made to fail.
 */
#include "cached.h"
#include "client/cache/bin.h"
#include "client/cache/depot.h"
#include "unit.h"

#define SMALL 7u                     /* 4 KiB */
#define LARGE (SIZE_CLASS_LARGE - 1) /* 1 MiB: the largest that goes between threads this way */

static bool without_memory;

void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return without_memory ? NULL : __real_aligned_alloc(alignment, size);
}

static struct magazine *full_magazine(struct depot *depot, unsigned size_class) {
    static struct piece piece;
    struct magazine *magazine = depot_put(depot, size_class, NULL);

    assert_non_null(magazine);
    assert_int_equal(magazine->count, 0);
    assert_int_equal(magazine->capacity, depot_capacity(size_class));
    while (magazine->count < magazine->capacity)
        magazine->pieces[magazine->count++] = &piece;
    return magazine;
}

static void empty_out(struct magazine *magazine) {
    magazine->count = 0;
}

static void a_share_is_bounded_by_bytes_and_by_count(void **state) {
    (void)state;
    for (unsigned i = 0; i < SIZE_CLASSES; i++) {
        uint64_t capacity = depot_capacity(i), limit = depot_limit(i);
        assert_in_range(capacity, 1, MAGAZINE_PIECES);
        assert_in_range(limit, i < SIZE_CLASS_LARGE, DEPOT_MAGAZINES);
        assert_true(capacity == 1 || capacity * size_class_bytes(i) <= MAGAZINE_BYTES);
        assert_true(limit * capacity * size_class_bytes(i) <= DEPOT_BYTES);
        assert_true(i == 0 || capacity <= depot_capacity(i - 1));
    }
    assert_int_equal(depot_capacity(SIZE_CLASS_LARGE), 1);
    assert_int_equal(depot_limit(SIZE_CLASS_LARGE), 0);
}

static void what_is_put_is_taken_and_not_more_than_a_share(void **state) {
    static const unsigned classes[] = {SMALL, LARGE};
    struct depot depot;

    (void)state;
    depot_init(&depot);
    for (unsigned i = 0; i < 2; i++) {
        unsigned limit = depot_limit(classes[i]);
        struct magazine *put[DEPOT_MAGAZINES], *taken;
        for (unsigned k = 0; k < limit; k++) {
            put[k] = full_magazine(&depot, classes[i]);
            struct magazine *empty = depot_put(&depot, classes[i], put[k]);
            assert_ptr_not_equal(empty, put[k]);
            depot_recycle(&depot, empty);
        }
        struct magazine *more = full_magazine(&depot, classes[i]);
        assert_ptr_equal(depot_put(&depot, classes[i], more), more); /* for the caller to empty */
        assert_int_equal(more->count, more->capacity);
        empty_out(more);
        assert_null(depot_take(&depot, classes[i] + 1, more)); /* of another class there is none */
        for (unsigned k = limit; k-- > 0;) {
            taken = depot_take(&depot, classes[i], more);
            assert_ptr_equal(taken, put[k]);
            assert_int_equal(taken->count, taken->capacity);
            empty_out(taken);
            more = taken;
        }
        assert_null(depot_take(&depot, classes[i], more));
        depot_recycle(&depot, more);
    }
    depot_deinit(&depot); /* with the empty ones; the leak sanitizer sees that they go */
}

static void what_nobody_used_between_two_looks_comes_by(void **state) {
    struct depot depot;
    unsigned class = 0;

    (void)state;
    depot_init(&depot);
    struct magazine *small = full_magazine(&depot, SMALL), *large = full_magazine(&depot, LARGE);
    depot_recycle(&depot, depot_put(&depot, SMALL, small));
    depot_recycle(&depot, depot_put(&depot, LARGE, large));
    assert_null(depot_drain(&depot, true, &class)); /* used since the first look */
    assert_ptr_equal(depot_take(&depot, SMALL, NULL), small);
    depot_recycle(&depot, depot_put(&depot, SMALL, small));
    class = 0;
    assert_ptr_equal(depot_drain(&depot, true, &class), large);
    assert_int_equal(class, LARGE);
    assert_null(depot_drain(&depot, true, &class));
    empty_out(large);
    depot_recycle(&depot, large);
    depot_shrink(&depot);
    assert_null(depot.empty);
    class = 0;
    assert_ptr_equal(depot_drain(&depot, false, &class), small); /* whether used or not */
    assert_int_equal(class, SMALL);
    assert_null(depot_drain(&depot, false, &class));
    free(small);
    depot_deinit(&depot);
}

static void a_full_depot_is_freed_with_what_is_in_it(void **state) {
    struct depot depot;

    (void)state;
    depot_init(&depot);
    for (unsigned i = 0; i < 3; i++)
        depot_recycle(&depot, depot_put(&depot, SMALL, full_magazine(&depot, SMALL)));
    depot_deinit(&depot);
}

static void without_memory_for_a_magazine_pieces_go_to_the_stream_heap(void **state) {
    struct stream_heap *stream_heap =
        stream_heap_new(NULL, &(struct pool_facts){.id = 1, .device = -1}, NULL);
    struct depot depot;
    struct bin bin = {0};
    struct piece *piece;
    unsigned class = size_class_of(4096);

    (void)state;
    depot_init(&depot);
    stream_heap->depot = &depot;
    pthread_mutex_lock(&stream_heap->lock);
    assert_int_equal(stream_heap_add_extent_locked(stream_heap, STREAM_HEAP_SMALL, &(struct segment_view){0},
                                                   1, 1, (char *)(uintptr_t)GIB, MIB),
                     0);
    assert_int_equal(stream_heap_take_locked(stream_heap, 4096, true, &piece), 0);
    pthread_mutex_unlock(&stream_heap->lock);
    without_memory = true;
    bin_put(&bin, stream_heap, class, piece);
    assert_int_equal(bin_count(&bin), 0);
    assert_int_equal(stream_heap_free_bytes(stream_heap), MIB);
    assert_null(bin_take(&bin, stream_heap, class, 4096));
    /* with what there was before, too */
    without_memory = false;
    for (unsigned i = 0; i < 2 * MAGAZINE_PIECES + 5; i++) {
        without_memory = i >= MAGAZINE_PIECES;
        pthread_mutex_lock(&stream_heap->lock);
        assert_int_equal(stream_heap_take_locked(stream_heap, 4096, true, &piece), 0);
        pthread_mutex_unlock(&stream_heap->lock);
        bin_put(&bin, stream_heap, class, piece);
    }
    without_memory = false;
    uint64_t cached = 4096 * (bin_count(&bin) + depot.stacks[class].count * MAGAZINE_PIECES);
    assert_int_equal(stream_heap_free_bytes(stream_heap), MIB - cached);
    bin_flush(&bin, stream_heap);
    pthread_mutex_lock(&stream_heap->lock);
    depot_flush_locked(stream_heap, false);
    pthread_mutex_unlock(&stream_heap->lock);
    assert_int_equal(stream_heap_free_bytes(stream_heap), MIB);
    assert_true(stream_heap_is_valid(stream_heap));
    bin_deinit(&bin);
    depot_deinit(&depot);
    stream_heap_free(stream_heap);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_share_is_bounded_by_bytes_and_by_count),
        cmocka_unit_test(what_is_put_is_taken_and_not_more_than_a_share),
        cmocka_unit_test(what_nobody_used_between_two_looks_comes_by),
        cmocka_unit_test(a_full_depot_is_freed_with_what_is_in_it),
        cmocka_unit_test(without_memory_for_a_magazine_pieces_go_to_the_stream_heap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
