/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold for the transfer of a lane: whole magazines come and go, bounded for each class; what nobody
 * used comes by in the decay's looks; without memory for a magazine nothing is lost. aligned_alloc is wrapped
 * by the linker, so that it can be made to fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "client/cache/bin.h"
#include "client/cache/transfer.h"

#define SMALL 7u                     /* 4 KiB */
#define LARGE (SIZE_CLASS_LARGE - 1) /* 1 MiB: the largest that goes between threads this way */

static bool without_memory;

void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return without_memory ? NULL : __real_aligned_alloc(alignment, size);
}

static struct magazine *full_magazine(struct transfer *transfer, unsigned size_class) {
    static struct piece piece;
    struct magazine *magazine = transfer_put(transfer, size_class, NULL);

    assert_non_null(magazine);
    assert_int_equal(magazine->count, 0);
    assert_int_equal(magazine->capacity, transfer_capacity(size_class));
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
        uint64_t capacity = transfer_capacity(i), limit = transfer_limit(i);
        assert_in_range(capacity, 1, MAGAZINE_PIECES);
        assert_in_range(limit, i < SIZE_CLASS_LARGE, TRANSFER_MAGAZINES);
        assert_true(capacity == 1 || capacity * size_class_bytes(i) <= MAGAZINE_BYTES);
        assert_true(limit * capacity * size_class_bytes(i) <= TRANSFER_BYTES);
        assert_true(i == 0 || capacity <= transfer_capacity(i - 1));
    }
    assert_int_equal(transfer_capacity(SIZE_CLASS_LARGE), 1);
    assert_int_equal(transfer_limit(SIZE_CLASS_LARGE), 0);
}

static void what_is_put_is_taken_and_not_more_than_a_share(void **state) {
    static const unsigned classes[] = {SMALL, LARGE};
    struct transfer transfer;

    (void)state;
    transfer_init(&transfer);
    for (unsigned i = 0; i < 2; i++) {
        unsigned limit = transfer_limit(classes[i]);
        struct magazine *put[TRANSFER_MAGAZINES], *taken;
        for (unsigned k = 0; k < limit; k++) {
            put[k] = full_magazine(&transfer, classes[i]);
            struct magazine *empty = transfer_put(&transfer, classes[i], put[k]);
            assert_ptr_not_equal(empty, put[k]);
            transfer_recycle(&transfer, empty);
        }
        struct magazine *more = full_magazine(&transfer, classes[i]);
        assert_ptr_equal(transfer_put(&transfer, classes[i], more), more); /* for the caller to empty */
        assert_int_equal(more->count, more->capacity);
        empty_out(more);
        assert_null(transfer_take(&transfer, classes[i] + 1, more)); /* of another class there is none */
        for (unsigned k = limit; k-- > 0;) {
            taken = transfer_take(&transfer, classes[i], more);
            assert_ptr_equal(taken, put[k]);
            assert_int_equal(taken->count, taken->capacity);
            empty_out(taken);
            more = taken;
        }
        assert_null(transfer_take(&transfer, classes[i], more));
        transfer_recycle(&transfer, more);
    }
    transfer_deinit(&transfer); /* with the empty ones; the leak sanitizer sees that they go */
}

static void what_nobody_used_between_two_looks_comes_by(void **state) {
    struct transfer transfer;
    unsigned class = 0;

    (void)state;
    transfer_init(&transfer);
    struct magazine *small = full_magazine(&transfer, SMALL), *large = full_magazine(&transfer, LARGE);
    transfer_recycle(&transfer, transfer_put(&transfer, SMALL, small));
    transfer_recycle(&transfer, transfer_put(&transfer, LARGE, large));
    assert_null(transfer_drain(&transfer, true, &class)); /* used since the first look */
    assert_ptr_equal(transfer_take(&transfer, SMALL, NULL), small);
    transfer_recycle(&transfer, transfer_put(&transfer, SMALL, small));
    class = 0;
    assert_ptr_equal(transfer_drain(&transfer, true, &class), large);
    assert_int_equal(class, LARGE);
    assert_null(transfer_drain(&transfer, true, &class));
    empty_out(large);
    transfer_recycle(&transfer, large);
    transfer_shrink(&transfer);
    assert_null(transfer.empty);
    class = 0;
    assert_ptr_equal(transfer_drain(&transfer, false, &class), small); /* whether used or not */
    assert_int_equal(class, SMALL);
    assert_null(transfer_drain(&transfer, false, &class));
    free(small);
    transfer_deinit(&transfer);
}

static void a_full_transfer_is_freed_with_what_is_in_it(void **state) {
    struct transfer transfer;

    (void)state;
    transfer_init(&transfer);
    for (unsigned i = 0; i < 3; i++)
        transfer_recycle(&transfer, transfer_put(&transfer, SMALL, full_magazine(&transfer, SMALL)));
    transfer_deinit(&transfer);
}

static void without_memory_for_a_magazine_pieces_go_to_the_lane(void **state) {
    struct lane *lane = lane_new(NULL, 1, 0, -1, NULL);
    struct bin bin = {0};
    struct piece *piece;
    unsigned class = size_class_of(4096);

    (void)state;
    pthread_mutex_lock(&lane->lock);
    assert_int_equal(lane_add_extent_locked(lane, LANE_SMALL, NULL, 1, 1, (char *)(uintptr_t)GIB, MIB), 0);
    assert_int_equal(lane_take_locked(lane, 4096, true, &piece), 0);
    pthread_mutex_unlock(&lane->lock);
    without_memory = true;
    bin_put(&bin, lane, class, piece);
    assert_int_equal(bin_count(&bin), 0);
    assert_int_equal(lane_free_bytes(lane), MIB);
    assert_null(bin_take(&bin, lane, class, 4096));
    /* with what there was before, too */
    without_memory = false;
    for (unsigned i = 0; i < 2 * MAGAZINE_PIECES + 5; i++) {
        without_memory = i >= MAGAZINE_PIECES;
        pthread_mutex_lock(&lane->lock);
        assert_int_equal(lane_take_locked(lane, 4096, true, &piece), 0);
        pthread_mutex_unlock(&lane->lock);
        bin_put(&bin, lane, class, piece);
    }
    without_memory = false;
    uint64_t cached = 4096 * (bin_count(&bin) + lane->transfer.stacks[class].count * MAGAZINE_PIECES);
    assert_int_equal(lane_free_bytes(lane), MIB - cached);
    bin_flush(&bin, lane);
    pthread_mutex_lock(&lane->lock);
    lane_flush_transfer_locked(lane, false);
    pthread_mutex_unlock(&lane->lock);
    assert_int_equal(lane_free_bytes(lane), MIB);
    assert_true(lane_is_valid(lane));
    bin_deinit(&bin);
    lane_free(lane);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_share_is_bounded_by_bytes_and_by_count),
        cmocka_unit_test(what_is_put_is_taken_and_not_more_than_a_share),
        cmocka_unit_test(what_nobody_used_between_two_looks_comes_by),
        cmocka_unit_test(a_full_transfer_is_freed_with_what_is_in_it),
        cmocka_unit_test(without_memory_for_a_magazine_pieces_go_to_the_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
