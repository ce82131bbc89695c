/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold for lanes, case by case. malloc and calloc are wrapped by the linker, so that the n-th
 * allocation can be made to fail.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "client/include/gpupool/gpupool.h"
#include "client/session/lease.h"
#include "lane_fixture.h"

/* The n-th allocation from now fails, once; 0: none. */
static unsigned fail_at;
static bool failed;

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

static bool allocation_fails(void) {
    bool fails = fail_at != 0 && --fail_at == 0;
    failed = failed || fails;
    return fails;
}

void *__wrap_calloc(size_t count, size_t size) {
    return allocation_fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_malloc(size_t size) {
    return allocation_fails() ? NULL : __real_malloc(size);
}

void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return allocation_fails() ? NULL : __real_aligned_alloc(alignment, size);
}

static void a_part_between_two_buffers_goes_back_alone(void **state) {
    struct lane *lane = make_lane();
    struct piece *pieces[3];
    struct lane_part part;

    (void)state;
    assert_int_equal(lane_add_extent(lane, 1, 6 * MIB), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(lane_take(lane, 2 * MIB, &pieces[i]), 0);
    assert_false(lane_reclaim(lane, HEAP_GRANULE, &part));
    lane_give(pieces[1]);
    assert_false(lane_reclaim(lane, 2 * MIB + HEAP_GRANULE, &part)); /* too small, while others are in use */
    assert_true(lane_reclaim(lane, 2 * MIB, &part));
    assert_int_equal(part.offset_bytes, 2 * MIB);
    assert_int_equal(part.size_bytes, 2 * MIB);
    assert_false(part.whole);
    assert_int_equal(lane_take(lane, HEAP_GRANULE, &pieces[1]), -ENOSPC); /* it is not here any more */
    lane_give(pieces[0]);
    lane_give(pieces[2]);
    /* The absent part keeps its neighbours apart: two parts, of which the last ends the extent. */
    assert_true(lane_reclaim(lane, 6 * MIB, &part));
    assert_int_equal(part.offset_bytes, 4 * MIB); /* the last first */
    assert_false(part.whole);
    assert_true(lane_is_valid(lane));
    assert_true(lane_reclaim(lane, 6 * MIB, &part));
    assert_int_equal(part.offset_bytes, 0);
    assert_int_equal(part.size_bytes, 2 * MIB);
    assert_true(part.whole);
    assert_true(list_is_empty(&lane->extents));
    lane_free(lane);
}

static bool reclaim_border(struct lane *lane, struct lane_part *part) {
    pthread_mutex_lock(&lane->lock);
    bool any = lane_reclaim_border_locked(lane, part);
    pthread_mutex_unlock(&lane->lock);
    return any;
}

/* Beside it lies memory that the daemon has. */
static void only_what_borders_on_absent_memory_is_reclaimed_for_a_request_that_waits(void **state) {
    struct lane *lane = make_lane();
    struct piece *pieces[6];
    struct lane_part part;

    (void)state;
    assert_int_equal(lane_add_extent(lane, 1, 6 * MIB), 0);
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(lane_take(lane, MIB, &pieces[i]), 0);
    lane_give(pieces[1]);
    assert_false(reclaim_border(lane, &part)); /* between others of the lane */
    assert_true(lane_reclaim(lane, MIB, &part));
    lane_give(pieces[4]);
    assert_false(reclaim_border(lane, &part));
    lane_give(pieces[2]);
    assert_true(reclaim_border(lane, &part));
    assert_int_equal(part.offset_bytes, 2 * MIB);
    assert_int_equal(part.size_bytes, MIB);
    lane_give(pieces[0]); /* the end of an extent, and below what is absent */
    assert_true(reclaim_border(lane, &part));
    assert_int_equal(part.offset_bytes, 0);
    assert_false(reclaim_border(lane, &part)); /* nothing but what lies between 3 and 5 */
    assert_true(lane_is_valid(lane));
    lane_free(lane);
}

/* New memory as grow() adds it. Returns whether there was an extent to fill. */
static bool lane_merge(struct lane *lane, const void *segment, uint64_t offset, uint64_t size,
                       bool is_merged) {
    pthread_mutex_lock(&lane->lock);
    struct extent *extent = lane_neighbour_locked(lane, LANE_SMALL, segment, address_in(1, offset), size);
    if (extent != NULL && is_merged)
        lane_fill_locked(extent, address_in(1, offset), size);
    pthread_mutex_unlock(&lane->lock);
    assert_true(lane_is_valid(lane));
    return extent != NULL;
}

static void memory_that_continues_an_extent_is_cut_as_one_with_it(void **state) {
    struct lane *lane = make_lane();
    struct piece *low, *piece, *high;
    struct lane_part part;

    (void)state;
    pthread_mutex_lock(&lane->lock);
    assert_int_equal(lane_add_locked(lane, LANE_SMALL, state, 1, 4 * MIB), 0);
    pthread_mutex_unlock(&lane->lock);
    assert_false(lane_merge(lane, &lane, 4 * MIB, 4 * MIB, true));       /* another segment */
    assert_false(lane_merge(lane, state, 4 * MIB + 512, 4 * MIB, true)); /* not beside it */
    assert_false(lane_merge(lane, state, 4 * MIB - 512, 4 * MIB, true)); /* it has that */
    assert_true(lane_merge(lane, state, 4 * MIB, 4 * MIB, false));       /* the daemon did not */
    assert_int_equal(lane_take(lane, 6 * MIB, &piece), -ENOSPC);
    assert_true(lane_merge(lane, state, 4 * MIB, 2 * MIB, true));
    assert_int_equal(lane_take(lane, 6 * MIB, &piece), 0);
    assert_int_equal(lane_extents(lane), 1);
    lane_give(piece);
    /* A part that went and comes again. */
    assert_int_equal(lane_take(lane, MIB, &low), 0);
    assert_int_equal(lane_take(lane, 4 * MIB, &piece), 0);
    assert_int_equal(lane_take(lane, MIB, &high), 0);
    lane_give(piece);
    assert_true(lane_reclaim(lane, MIB, &part));
    assert_int_equal(part.offset_bytes, MIB);
    assert_false(lane_merge(lane, state, 512 * KIB, 2 * MIB, true)); /* that is partly in use */
    assert_true(lane_merge(lane, state, 2 * MIB, 2 * MIB, true));
    assert_int_equal(lane_free_bytes(lane), 2 * MIB);
    assert_int_equal(lane_take(lane, 2 * MIB, &piece), 0);
    assert_ptr_equal(piece->memory, address_in(1, 2 * MIB));
    lane_give(piece);
    lane_give(low);
    lane_give(high);
    while (lane_reclaim(lane, HEAP_GRANULE, &part)) {
    }
    assert_true(list_is_empty(&lane->extents));
    assert_int_equal(lane->absent_bytes, 0);
    lane_free(lane);
}

/* The daemon ends a session that has leases merged which have ended: a SPLIT may end one. */
static void an_extent_of_which_something_is_being_split_off_is_not_merged(void **state) {
    struct lane *lane = make_lane();
    struct piece *pieces[2];

    pthread_mutex_lock(&lane->lock);
    assert_int_equal(lane_add_locked(lane, LANE_SMALL, state, 1, 4 * MIB), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(lane_take_locked(lane, 2 * MIB, true, &pieces[i]), 0);
    pthread_mutex_unlock(&lane->lock);
    lane_begin_split_locked(pieces[0]);
    lane_begin_split_locked(pieces[1]);
    assert_false(lane_merge(lane, state, 4 * MIB, 2 * MIB, true));
    lane_cancel_split_locked(pieces[0]);
    assert_false(lane_merge(lane, state, 4 * MIB, 2 * MIB, true));
    pthread_mutex_lock(&lane->lock);
    lane_split_off_locked(pieces[1], 2, 1);
    pthread_mutex_unlock(&lane->lock);
    assert_true(lane_merge(lane, state, 4 * MIB, 2 * MIB, true));
    assert_int_equal(lane_free_bytes(lane), 2 * MIB);
    lane_free(lane);
}

/* So that what one lease goes through without an answer stays below what the daemon has room for. */
static void parts_go_with_an_answer_now_and_then_and_merges_wait_for_it(void **state) {
    struct lane *lane = make_lane();
    unsigned answered = 0, merged = 0;
    struct lane_part part;
    struct piece *piece;

    assert_int_equal(lane_add_extent(lane, 1, 2 * MIB), 0);
    assert_int_equal(lane_take(lane, MIB, &piece), 0); /* it stays */
    for (unsigned i = 0; i < 3 * LEASE_ONE_WAY_MAX; i++) {
        assert_true(lane_reclaim(lane, HEAP_GRANULE, &part));
        assert_int_equal(part.size_bytes, MIB);
        answered += part.is_answered;
        pthread_mutex_lock(&lane->lock);
        struct extent *extent =
            lane_neighbour_locked(lane, LANE_SMALL, NULL, address_in(1, part.offset_bytes), MIB);
        assert_non_null(extent);
        lane_fill_locked(extent, address_in(1, part.offset_bytes), MIB);
        pthread_mutex_unlock(&lane->lock);
    }
    assert_in_range(answered, 3, 6);
    (void)state;
    for (uint64_t offset = 2 * MIB; lane_merge(lane, NULL, offset, MIB, true); offset += MIB)
        merged++;
    assert_in_range(merged, LEASE_ONE_WAY_MAX, 4 * LEASE_ONE_WAY_MAX);
    assert_true(lane_reclaim(lane, HEAP_GRANULE, &part));
    assert_true(part.is_answered);
    lane_free(lane);
}

static void a_piece_outlives_what_it_named(void **state) {
    struct lane *lane = make_lane();
    struct piece *first, *second;

    (void)state;
    assert_int_equal(lane_add_extent(lane, 1, 2 * MIB), 0);
    assert_int_equal(lane_take(lane, 4096, &first), 0);
    uint64_t generation = ++first->generation;
    first->generation++;
    lane_give(first);
    /* A stale buffer that names the object meets another generation, whatever became of it. */
    assert_int_equal(first->generation, generation + 1);
    assert_int_equal(lane_take(lane, 8192, &second), 0);
    assert_ptr_equal(second, first);
    assert_int_equal(second->generation, generation + 1);
    second->generation += 2;
    lane_give(second);
    lane_free(lane);
}

static uint64_t extent_bytes(struct lane *lane, uint64_t size_bytes) {
    pthread_mutex_lock(&lane->lock);
    uint64_t bytes = lane_extent_bytes_locked(lane, size_bytes);
    pthread_mutex_unlock(&lane->lock);
    return bytes;
}

static void add_to(struct lane *lane, enum lane_heap heap, uint64_t lease, uint64_t size_bytes) {
    pthread_mutex_lock(&lane->lock);
    assert_int_equal(lane_add_locked(lane, heap, NULL, lease, size_bytes), 0);
    pthread_mutex_unlock(&lane->lock);
}

static void extents_for_small_sizes_grow_with_use_and_stay_bounded(void **state) {
    struct lane *lane = make_lane();
    uint64_t before = 0;

    (void)state;
    assert_int_equal(extent_bytes(lane, 1), 2 * MIB);
    assert_int_equal(extent_bytes(lane, MIB), 2 * MIB);
    add_to(lane, LANE_LARGE, 999, 64 * GIB); /* what is there for large sizes is not for small ones */
    for (uint64_t lease = 1; lease < 40; lease++) {
        uint64_t bytes = extent_bytes(lane, 512);
        assert_int_equal(bytes, lease == 1 ? 2 * MIB : lease <= 17 ? (lease - 1) * 16 * MIB : 256 * MIB);
        assert_true(bytes >= before);
        before = bytes;
        assert_int_equal(lane_add_extent(lane, lease, 128 * MIB), 0); /* an 8th of it */
    }
    lane_free(lane);
}

static void an_extent_is_a_multiple_of_the_smallest_and_never_less_than_what_is_asked_for(void **state) {
    static const uint64_t sizes[] = {1,   MIB,      2 * MIB + 512, 9 * MIB + 512, 10 * MIB, 33 * MIB + 512,
                                     GIB, GIB + 512};
    struct lane *lane = make_lane();

    (void)state;
    for (uint64_t lease = 1; lease < 20; lease++) {
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            uint64_t bytes = extent_bytes(lane, sizes[i]);
            assert_true(bytes >= sizes[i] && bytes % (2 * MIB) == 0);
        }
        add_to(lane, lease % 2 == 0 ? LANE_SMALL : LANE_LARGE, lease, lease * 7 * MIB);
    }
    assert_int_equal(extent_bytes(lane, GIB), GIB);
    assert_int_equal(extent_bytes(lane, GIB + 512), GIB + 2 * MIB);
    lane_free(lane);
}

/* A program whose tensors stay takes no more than what they need. */
static void for_large_sizes_on_a_device_as_much_is_leased_as_is_needed(void **state) {
    struct lane *lane = make_lane();
    struct piece *piece;

    (void)state;
    for (uint64_t lease = 1; lease < 20; lease++) {
        assert_int_equal(extent_bytes(lane, 5 * MIB), 20 * MIB); /* several of those fit */
        assert_int_equal(extent_bytes(lane, 10 * MIB - 512), 20 * MIB);
        assert_int_equal(extent_bytes(lane, 10 * MIB), 10 * MIB);
        assert_int_equal(extent_bytes(lane, 11 * MIB), 12 * MIB);
        assert_int_equal(extent_bytes(lane, 300 * MIB), 300 * MIB);
        add_to(lane, LANE_LARGE, lease, 64 * MIB);
        assert_int_equal(lane_take(lane, 64 * MIB, &piece), 0); /* nothing stays free */
    }
    lane_free(lane);
}

/* Another allocator cuts it further. */
static void device_memory_without_a_stream_is_leased_as_it_is_asked_for(void **state) {
    static const uint64_t sizes[] = {2 * MIB, 4 * MIB, 20 * MIB, 66 * MIB};
    struct lane *lane = lane_new(NULL, POOL, 1, 0, GPUPOOL_NO_STREAM);

    (void)state;
    assert_non_null(lane);
    add_to(lane, LANE_SMALL, 1, GIB);
    add_to(lane, LANE_LARGE, 2, GIB);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(extent_bytes(lane, sizes[i]), sizes[i]);
    assert_int_equal(extent_bytes(lane, 512), 128 * MIB); /* it is the program's own */
    lane_free(lane);
}

static void where_sizes_vary_longer_extents_are_leased_but_bounded(void **state) {
    struct lane *lane = make_lane();
    struct piece *pieces[64];

    (void)state;
    for (uint64_t lease = 1; lease <= 16; lease++) {
        add_to(lane, LANE_LARGE, lease, 64 * MIB);
        assert_int_equal(lane_take(lane, 64 * MIB, &pieces[lease]), 0);
    }
    pthread_mutex_lock(&lane->lock);
    assert_int_equal(lane_shrink_locked(pieces[1], 54 * MIB), 0);
    pthread_mutex_unlock(&lane->lock);
    assert_int_equal(extent_bytes(lane, 8 * MIB), 40 * MIB);  /* four times the 10 MiB that are free */
    assert_int_equal(extent_bytes(lane, 11 * MIB), 34 * MIB); /* of which three fit */
    lane_give(pieces[2]);
    assert_int_equal(extent_bytes(lane, 16 * MIB), 128 * MIB); /* eight times the size */
    assert_int_equal(extent_bytes(lane, 5 * MIB), 40 * MIB);
    assert_int_equal(extent_bytes(lane, 200 * MIB), 200 * MIB);
    for (uint64_t lease = 17; lease < 32; lease++)
        add_to(lane, LANE_LARGE, lease, 64 * MIB);
    assert_int_equal(extent_bytes(lane, 33 * MIB), 256 * MIB); /* and no more, however much is free */
    /* Where only a few fit, just these. */
    assert_int_equal(extent_bytes(lane, 60 * MIB), 240 * MIB);
    assert_int_equal(extent_bytes(lane, 100 * MIB), 200 * MIB);
    assert_int_equal(extent_bytes(lane, 225 * MIB), 226 * MIB);
    lane_free(lane);
}

static void what_the_daemon_has_back_does_not_count(void **state) {
    struct lane *lane = make_lane();
    struct piece *small;
    struct lane_part part;

    (void)state;
    assert_int_equal(lane_add_extent(lane, 1, 256 * MIB), 0);
    assert_int_equal(extent_bytes(lane, 512), 32 * MIB);
    assert_int_equal(lane_take(lane, 512, &small), 0);
    while (lane_reclaim(lane, HEAP_GRANULE, &part)) {
    }
    assert_int_equal(extent_bytes(lane, 512), 2 * MIB);
    lane_give(small);
    lane_free(lane);
}

/* Host memory is slow to make. */
static void for_large_sizes_in_host_memory_a_share_is_leased(void **state) {
    struct lane *lane = lane_new(NULL, POOL, GPUPOOL_POOL_HOST, -1, NULL);
    struct piece *piece;

    (void)state;
    assert_non_null(lane);
    assert_int_equal(extent_bytes(lane, 5 * MIB), 6 * MIB);
    for (uint64_t lease = 1; lease <= 8; lease++) {
        add_to(lane, LANE_LARGE, lease, 64 * MIB);
        assert_int_equal(lane_take(lane, 64 * MIB, &piece), 0);
    }
    assert_int_equal(extent_bytes(lane, 5 * MIB), 64 * MIB); /* an 8th */
    lane_free(lane);
}

/* A large piece finds room where nothing small was before, and each takes the other's only when it may. */
static void small_pieces_lie_apart_from_large_ones(void **state) {
    struct lane *lane = make_lane();
    struct piece *small, *large, *other;

    (void)state;
    pthread_mutex_lock(&lane->lock);
    assert_int_equal(lane_add_locked(lane, LANE_SMALL, NULL, 1, 8 * MIB), 0);
    assert_int_equal(lane_take_locked(lane, 6 * MIB, false, &large), -ENOSPC);
    assert_true(lane_has_locked(lane, 6 * MIB)); /* somewhere */
    assert_int_equal(lane_add_locked(lane, LANE_LARGE, NULL, 2, 8 * MIB), 0);
    assert_int_equal(lane_take_locked(lane, 6 * MIB, true, &large), 0);
    assert_int_equal(lane_take_locked(lane, 2 * MIB, true, &small), 0);
    assert_int_equal(large->lease, 2); /* its own heap's where that has any */
    assert_int_equal(small->lease, 1);
    assert_int_equal(lane_take_locked(lane, 6 * MIB, false, &other), -ENOSPC);
    assert_true(lane_has_locked(lane, 6 * MIB));
    assert_false(lane_has_locked(lane, 8 * MIB));
    assert_int_equal(lane_take_locked(lane, 6 * MIB, true, &other), 0);
    assert_int_equal(other->lease, 1);
    assert_int_equal(lane_take_locked(lane, MIB, false, &other), -ENOSPC);
    assert_true(lane_has_locked(lane, MIB));
    assert_int_equal(lane_take_locked(lane, MIB, true, &other), 0);
    assert_int_equal(other->lease, 2);
    pthread_mutex_unlock(&lane->lock);
    assert_true(lane_is_valid(lane));
    lane_free(lane);
}

/* Everything that allocates, once. Returns the first failure. */
static int everything(struct lane *lane) {
    struct piece *pieces[300] = {NULL};
    int r = lane_add_extent(lane, 1, 2 * MIB);
    unsigned count = 0;

    while (r == 0 && count < sizeof pieces / sizeof *pieces) {
        r = lane_take(lane, 1024, &pieces[count]);
        assert_int_equal(r == 0, pieces[count] != NULL);
        count += r == 0;
    }
    for (unsigned i = 0; r == 0 && i < count; i += 2) {
        pthread_mutex_lock(&lane->lock);
        r = lane_shrink_locked(pieces[i], 512);
        pthread_mutex_unlock(&lane->lock);
        assert_int_equal(pieces[i]->capacity_bytes, r == 0 ? 512 : 1024);
    }
    assert_true(lane_is_valid(lane));
    for (unsigned i = 0; i < count; i++)
        lane_give(pieces[i]);
    return r;
}

static void a_failed_allocation_changes_nothing(void **state) {
    unsigned n = 0;

    (void)state;
    do { /* last round: nothing failed */
        fail_at = ++n;
        failed = false;
        struct lane *lane = lane_new(NULL, POOL, 1, 0, NULL);
        assert_int_equal(lane == NULL, failed);
        if (lane == NULL)
            continue;
        int r = everything(lane);
        assert_int_equal(r, failed ? -ENOMEM : 0);
        fail_at = 0;
        assert_true(lane_is_valid(lane));
        struct lane_part part;
        while (lane_reclaim(lane, HEAP_GRANULE, &part)) {
        }
        assert_int_equal(lane->heaps[LANE_SMALL].taken_bytes, 0);
        assert_true(list_is_empty(&lane->extents));
        assert_int_equal(everything(lane), 0); /* and it works afterwards */
        lane_free(lane);
    } while (failed);
    fail_at = 0;
    assert_in_range(n, 6, 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_between_two_buffers_goes_back_alone),
        cmocka_unit_test(only_what_borders_on_absent_memory_is_reclaimed_for_a_request_that_waits),
        cmocka_unit_test(memory_that_continues_an_extent_is_cut_as_one_with_it),
        cmocka_unit_test(an_extent_of_which_something_is_being_split_off_is_not_merged),
        cmocka_unit_test(parts_go_with_an_answer_now_and_then_and_merges_wait_for_it),
        cmocka_unit_test(a_piece_outlives_what_it_named),
        cmocka_unit_test(extents_for_small_sizes_grow_with_use_and_stay_bounded),
        cmocka_unit_test(an_extent_is_a_multiple_of_the_smallest_and_never_less_than_what_is_asked_for),
        cmocka_unit_test(for_large_sizes_on_a_device_as_much_is_leased_as_is_needed),
        cmocka_unit_test(device_memory_without_a_stream_is_leased_as_it_is_asked_for),
        cmocka_unit_test(where_sizes_vary_longer_extents_are_leased_but_bounded),
        cmocka_unit_test(what_the_daemon_has_back_does_not_count),
        cmocka_unit_test(for_large_sizes_in_host_memory_a_share_is_leased),
        cmocka_unit_test(small_pieces_lie_apart_from_large_ones),
        cmocka_unit_test(a_failed_allocation_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
