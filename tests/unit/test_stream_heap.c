/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of stream heaps, case by case. */
#include <errno.h>

#include "cached.h"
#include "client/core/extent_size.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/lease.h"
#include "stream_heap_fixture.h"
#include "tests/failing_memory.h"

static void a_part_between_two_buffers_goes_back_alone(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct piece *pieces[3];
    struct stream_heap_part part;

    (void)state;
    assert_int_equal(stream_heap_add_extent(stream_heap, 1, 6 * MIB), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(stream_heap_take(stream_heap, 2 * MIB, &pieces[i]), 0);
    assert_false(stream_heap_reclaim(stream_heap, HEAP_GRANULE, &part));
    stream_heap_give(pieces[1]);
    assert_false(stream_heap_reclaim(stream_heap, 2 * MIB + HEAP_GRANULE,
                                     &part)); /* too small, while others are in use */
    assert_true(stream_heap_reclaim(stream_heap, 2 * MIB, &part));
    assert_int_equal(part.offset_bytes, 2 * MIB);
    assert_int_equal(part.size_bytes, 2 * MIB);
    assert_false(part.whole);
    stream_heap_fence_part(&part);
    assert_int_equal(stream_heap_take(stream_heap, HEAP_GRANULE, &pieces[1]),
                     -ENOSPC); /* it is not here any more */
    stream_heap_give(pieces[0]);
    stream_heap_give(pieces[2]);
    /* The absent part keeps its neighbours apart: two parts, of which the last ends the extent. */
    assert_true(stream_heap_reclaim(stream_heap, 6 * MIB, &part));
    assert_int_equal(part.offset_bytes, 4 * MIB); /* the last first */
    assert_false(part.whole);
    stream_heap_fence_part(&part);
    assert_true(stream_heap_is_valid(stream_heap));
    assert_true(stream_heap_reclaim(stream_heap, 6 * MIB, &part));
    assert_int_equal(part.offset_bytes, 0);
    assert_int_equal(part.size_bytes, 2 * MIB);
    assert_true(part.whole);
    assert_int_equal(stream_heap_extents(stream_heap), 1);
    stream_heap_fence_part(&part);
    assert_true(list_is_empty(&stream_heap->extents));
    stream_heap_free(stream_heap);
}

/* Two parts go, and are all of the extent. Of the second one no fence can be left. */
static void a_part_whose_fence_cannot_be_left_is_free_again(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct stream_heap_part first, second;
    struct piece *piece, *other;

    (void)state;
    assert_int_equal(stream_heap_add_extent(stream_heap, 1, 4 * MIB), 0);
    assert_int_equal(stream_heap_take(stream_heap, MIB, &piece), 0);
    assert_int_equal(stream_heap_take(stream_heap, 3 * MIB, &other), 0);
    stream_heap_give(other);
    assert_true(stream_heap_reclaim(stream_heap, MIB, &first));
    assert_false(first.has_fence);
    stream_heap_give(piece);
    assert_true(stream_heap_reclaim(stream_heap, MIB, &second));
    assert_true(second.whole);
    assert_false(stream_heap_reclaim(stream_heap, HEAP_GRANULE, &second));
    assert_int_equal(stream_heap_held_bytes_locked(stream_heap), 0);
    assert_true(stream_heap_is_valid(stream_heap));
    stream_heap_fence_part(&first);
    stream_heap_return_part(&second);
    assert_true(stream_heap_is_valid(stream_heap));
    assert_int_equal(stream_heap_free_bytes(stream_heap), MIB);
    assert_int_equal(stream_heap_take(stream_heap, MIB, &piece), 0);
    assert_ptr_equal(piece->memory, address_in(1, 0));
    assert_int_equal(piece->lease, 1);
    stream_heap_free(stream_heap);
}

/* New memory as grow() adds it. Returns whether there was an extent to fill. */
static bool stream_heap_merge(struct stream_heap *stream_heap, const void *segment, uint64_t offset,
                              uint64_t size, bool is_merged) {
    pthread_mutex_lock(&stream_heap->lock);
    struct extent *extent =
        stream_heap_neighbour_locked(stream_heap, STREAM_HEAP_SMALL, segment, address_in(1, offset), size);
    if (extent != NULL && is_merged)
        stream_heap_fill_locked(extent, address_in(1, offset), size);
    pthread_mutex_unlock(&stream_heap->lock);
    assert_true(stream_heap_is_valid(stream_heap));
    return extent != NULL;
}

/* All of the extent is out: its lease ends with the next message. */
static void nothing_continues_an_extent_that_is_going(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct stream_heap_part part;
    struct piece *piece;

    pthread_mutex_lock(&stream_heap->lock);
    assert_int_equal(stream_heap_add_locked(stream_heap, STREAM_HEAP_SMALL, state, 1, 4 * MIB), 0);
    pthread_mutex_unlock(&stream_heap->lock);
    assert_int_equal(stream_heap_take(stream_heap, 4 * MIB, &piece), 0);
    stream_heap_give(piece);
    assert_true(stream_heap_reclaim(stream_heap, MIB, &part));
    assert_false(stream_heap_merge(stream_heap, state, 4 * MIB, 4 * MIB, true));
    assert_false(stream_heap_merge(stream_heap, state, 0, MIB, true));
    stream_heap_return_part(&part);
    assert_true(stream_heap_merge(stream_heap, state, 4 * MIB, 4 * MIB, true));
    stream_heap_free(stream_heap);
}

static void memory_that_continues_an_extent_is_cut_as_one_with_it(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct piece *low, *piece, *high;
    struct stream_heap_part part;

    (void)state;
    pthread_mutex_lock(&stream_heap->lock);
    assert_int_equal(stream_heap_add_locked(stream_heap, STREAM_HEAP_SMALL, state, 1, 4 * MIB), 0);
    pthread_mutex_unlock(&stream_heap->lock);
    assert_false(stream_heap_merge(stream_heap, &stream_heap, 4 * MIB, 4 * MIB, true)); /* another segment */
    assert_false(stream_heap_merge(stream_heap, state, 4 * MIB + 512, 4 * MIB, true));  /* not beside it */
    assert_false(stream_heap_merge(stream_heap, state, 4 * MIB - 512, 4 * MIB, true));  /* it has that */
    assert_true(stream_heap_merge(stream_heap, state, 4 * MIB, 4 * MIB, false)); /* the daemon did not */
    assert_int_equal(stream_heap_take(stream_heap, 6 * MIB, &piece), -ENOSPC);
    assert_true(stream_heap_merge(stream_heap, state, 4 * MIB, 2 * MIB, true));
    assert_int_equal(stream_heap_take(stream_heap, 6 * MIB, &piece), 0);
    assert_int_equal(stream_heap_extents(stream_heap), 1);
    stream_heap_give(piece);
    /* A part that went and comes again. */
    assert_int_equal(stream_heap_take(stream_heap, MIB, &low), 0);
    assert_int_equal(stream_heap_take(stream_heap, 4 * MIB, &piece), 0);
    assert_int_equal(stream_heap_take(stream_heap, MIB, &high), 0);
    stream_heap_give(piece);
    assert_true(stream_heap_reclaim(stream_heap, MIB, &part));
    assert_int_equal(part.offset_bytes, MIB);
    stream_heap_fence_part(&part);
    assert_false(stream_heap_merge(stream_heap, state, 512 * KIB, 2 * MIB, true)); /* that is partly in use */
    assert_true(stream_heap_merge(stream_heap, state, 2 * MIB, 2 * MIB, true));
    assert_int_equal(stream_heap_free_bytes(stream_heap), 2 * MIB);
    assert_int_equal(stream_heap_take(stream_heap, 2 * MIB, &piece), 0);
    assert_ptr_equal(piece->memory, address_in(1, 2 * MIB));
    stream_heap_give(piece);
    stream_heap_give(low);
    stream_heap_give(high);
    while (stream_heap_reclaim(stream_heap, HEAP_GRANULE, &part))
        stream_heap_fence_part(&part);
    assert_true(list_is_empty(&stream_heap->extents));
    assert_int_equal(stream_heap->absent_bytes, 0);
    stream_heap_free(stream_heap);
}

/* The daemon ends a session that has leases merged which have ended: a SPLIT may end one. */
static void an_extent_of_which_something_is_being_split_off_is_not_merged(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct piece *pieces[2];

    pthread_mutex_lock(&stream_heap->lock);
    assert_int_equal(stream_heap_add_locked(stream_heap, STREAM_HEAP_SMALL, state, 1, 4 * MIB), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(stream_heap_take_locked(stream_heap, 2 * MIB, true, &pieces[i]), 0);
    pthread_mutex_unlock(&stream_heap->lock);
    stream_heap_begin_split_locked(pieces[0]);
    stream_heap_begin_split_locked(pieces[1]);
    assert_false(stream_heap_merge(stream_heap, state, 4 * MIB, 2 * MIB, true));
    stream_heap_cancel_split_locked(pieces[0]);
    assert_false(stream_heap_merge(stream_heap, state, 4 * MIB, 2 * MIB, true));
    pthread_mutex_lock(&stream_heap->lock);
    stream_heap_split_off_locked(pieces[1], 2, 1);
    pthread_mutex_unlock(&stream_heap->lock);
    assert_true(stream_heap_merge(stream_heap, state, 4 * MIB, 2 * MIB, true));
    assert_int_equal(stream_heap_free_bytes(stream_heap), 2 * MIB);
    stream_heap_free(stream_heap);
}

/* So that what one lease goes through without an answer stays below what the daemon has room for. */
static void parts_go_with_an_answer_now_and_then_and_merges_wait_for_it(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    unsigned answered = 0, merged = 0;
    struct stream_heap_part part;
    struct piece *piece;

    assert_int_equal(stream_heap_add_extent(stream_heap, 1, 2 * MIB), 0);
    assert_int_equal(stream_heap_take(stream_heap, MIB, &piece), 0); /* it stays */
    for (unsigned i = 0; i < 3 * LEASE_ONE_WAY_MAX; i++) {
        assert_true(stream_heap_reclaim(stream_heap, HEAP_GRANULE, &part));
        assert_int_equal(part.size_bytes, MIB);
        answered += part.is_answered;
        pthread_mutex_lock(&stream_heap->lock);
        struct extent *extent = stream_heap_neighbour_locked(stream_heap, STREAM_HEAP_SMALL, NULL,
                                                             address_in(1, part.offset_bytes), MIB);
        assert_non_null(extent);
        stream_heap_fill_locked(extent, address_in(1, part.offset_bytes), MIB);
        pthread_mutex_unlock(&stream_heap->lock);
    }
    assert_in_range(answered, 3, 6);
    (void)state;
    for (uint64_t offset = 2 * MIB; stream_heap_merge(stream_heap, NULL, offset, MIB, true); offset += MIB)
        merged++;
    assert_in_range(merged, LEASE_ONE_WAY_MAX, 4 * LEASE_ONE_WAY_MAX);
    assert_true(stream_heap_reclaim(stream_heap, HEAP_GRANULE, &part));
    assert_true(part.is_answered);
    stream_heap_free(stream_heap);
}

static void a_piece_outlives_what_it_named(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct piece *first, *second;

    (void)state;
    assert_int_equal(stream_heap_add_extent(stream_heap, 1, 2 * MIB), 0);
    assert_int_equal(stream_heap_take(stream_heap, 4096, &first), 0);
    uint64_t generation = ++first->generation;
    first->generation++;
    stream_heap_give(first);
    /* A stale buffer that names the object meets another generation, whatever became of it. */
    assert_int_equal(first->generation, generation + 1);
    assert_int_equal(stream_heap_take(stream_heap, 8192, &second), 0);
    assert_ptr_equal(second, first);
    assert_int_equal(second->generation, generation + 1);
    second->generation += 2;
    stream_heap_give(second);
    stream_heap_free(stream_heap);
}

static uint64_t extent_bytes(struct stream_heap *stream_heap, uint64_t size_bytes) {
    pthread_mutex_lock(&stream_heap->lock);
    uint64_t bytes = extent_size_locked(stream_heap, size_bytes);
    pthread_mutex_unlock(&stream_heap->lock);
    return bytes;
}

static void add_to(struct stream_heap *stream_heap, enum stream_heap_half heap, uint64_t lease,
                   uint64_t size_bytes) {
    pthread_mutex_lock(&stream_heap->lock);
    assert_int_equal(stream_heap_add_locked(stream_heap, heap, NULL, lease, size_bytes), 0);
    pthread_mutex_unlock(&stream_heap->lock);
}

static void extents_for_small_sizes_grow_with_use_and_stay_bounded(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    uint64_t before = 0;

    (void)state;
    assert_int_equal(extent_bytes(stream_heap, 1), 2 * MIB);
    assert_int_equal(extent_bytes(stream_heap, MIB), 2 * MIB);
    add_to(stream_heap, STREAM_HEAP_LARGE, 999,
           64 * GIB); /* what is there for large sizes is not for small ones */
    for (uint64_t lease = 1; lease < 40; lease++) {
        uint64_t bytes = extent_bytes(stream_heap, 512);
        assert_int_equal(bytes, lease == 1 ? 2 * MIB : lease <= 17 ? (lease - 1) * 16 * MIB : 256 * MIB);
        assert_true(bytes >= before);
        before = bytes;
        assert_int_equal(stream_heap_add_extent(stream_heap, lease, 128 * MIB), 0); /* an 8th of it */
    }
    stream_heap_free(stream_heap);
}

static void an_extent_is_a_multiple_of_the_smallest_and_never_less_than_what_is_asked_for(void **state) {
    static const uint64_t sizes[] = {1,   MIB,      2 * MIB + 512, 9 * MIB + 512, 10 * MIB, 33 * MIB + 512,
                                     GIB, GIB + 512};
    struct stream_heap *stream_heap = make_stream_heap();

    (void)state;
    for (uint64_t lease = 1; lease < 20; lease++) {
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            uint64_t bytes = extent_bytes(stream_heap, sizes[i]);
            assert_true(bytes >= sizes[i] && bytes % (2 * MIB) == 0);
        }
        add_to(stream_heap, lease % 2 == 0 ? STREAM_HEAP_SMALL : STREAM_HEAP_LARGE, lease, lease * 7 * MIB);
    }
    assert_int_equal(extent_bytes(stream_heap, GIB), GIB);
    assert_int_equal(extent_bytes(stream_heap, GIB + 512), GIB + 2 * MIB);
    stream_heap_free(stream_heap);
}

/* Takes a piece out of an extent of its size and has it split off. */
static void lend(struct stream_heap *stream_heap, uint64_t lease, uint64_t size_bytes) {
    struct piece *piece;

    add_to(stream_heap, stream_heap_half_of(size_bytes), lease, size_bytes);
    assert_int_equal(stream_heap_take(stream_heap, size_bytes, &piece), 0);
    pthread_mutex_lock(&stream_heap->lock);
    stream_heap_begin_split_locked(piece);
    stream_heap_split_off_locked(piece, lease + 1000, 1);
    pthread_mutex_unlock(&stream_heap->lock);
}

/* A piece that was split off comes back to the daemon, and not here: a rest would stay with each of them. */
static void host_memory_for_other_processes_is_leased_as_it_is_asked_for(void **state) {
    struct stream_heap *stream_heap = stream_heap_new(
        NULL, &(struct pool_facts){.id = 1, .kind = GPUPOOL_POOL_HOST, .device = -1}, GPUPOOL_NO_STREAM);

    (void)state;
    assert_non_null(stream_heap);
    assert_int_equal(extent_bytes(stream_heap, MIB + 300 * KIB), 2 * MIB);
    lend(stream_heap, 1, 2 * MIB);
    assert_int_equal(extent_bytes(stream_heap, MIB + 300 * KIB), MIB + 300 * KIB);
    assert_int_equal(extent_bytes(stream_heap, 40 * MIB + 512), 40 * MIB + 512);
    assert_int_equal(extent_bytes(stream_heap, 512), 2 * MIB); /* a message for each would cost more */
    add_to(stream_heap, STREAM_HEAP_SMALL, 3, 64 * MIB);       /* whatever else it has */
    assert_int_equal(extent_bytes(stream_heap, MIB + 300 * KIB), MIB + 300 * KIB);
    stream_heap_free(stream_heap);
}

static void device_memory_for_other_processes_is_leased_for_a_few_pieces_without_a_rest(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();

    (void)state;
    lend(stream_heap, 1, 6 * MIB);
    assert_int_equal(extent_bytes(stream_heap, 512), 2 * MIB);
    assert_int_equal(extent_bytes(stream_heap, MIB + 512), 8 * (MIB + 512));
    assert_int_equal(extent_bytes(stream_heap, 5 * MIB), 30 * MIB);
    assert_int_equal(extent_bytes(stream_heap, 20 * MIB), 20 * MIB);
    assert_int_equal(extent_bytes(stream_heap, 33 * MIB + 512), 33 * MIB + 512);
    stream_heap_free(stream_heap);
}

/* Only an extent of which a part was split off is meant. */
static void the_rest_of_what_was_lent_is_reclaimed_once_nothing_of_it_is_in_use(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct stream_heap_part part;
    struct piece *lent, *used;

    (void)state;
    add_to(stream_heap, STREAM_HEAP_SMALL, 1, 4 * MIB);
    pthread_mutex_lock(&stream_heap->lock);
    assert_false(stream_heap_reclaim_lent_locked(stream_heap, &part));
    assert_int_equal(stream_heap_take_locked(stream_heap, MIB, true, &lent), 0);
    assert_int_equal(stream_heap_take_locked(stream_heap, MIB, true, &used), 0);
    stream_heap_begin_split_locked(lent);
    stream_heap_split_off_locked(lent, 2, 1);
    assert_false(stream_heap_reclaim_lent_locked(stream_heap, &part)); /* the other piece is in use */
    stream_heap_give_locked(stream_heap, used);
    assert_true(stream_heap_reclaim_lent_locked(stream_heap, &part));
    assert_int_equal(part.lease, 1);
    assert_int_equal(part.offset_bytes, MIB);
    assert_int_equal(part.size_bytes, 3 * MIB);
    assert_true(part.whole);
    assert_false(part.has_fence); /* the stream may still use what was given back */
    assert_false(stream_heap_reclaim_lent_locked(stream_heap, &part));
    pthread_mutex_unlock(&stream_heap->lock);
    stream_heap_free(stream_heap);
}

static void what_was_never_handed_out_goes_back_without_a_fence(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct stream_heap_part part;
    struct piece *lent;

    (void)state;
    add_to(stream_heap, STREAM_HEAP_SMALL, 1, 4 * MIB);
    pthread_mutex_lock(&stream_heap->lock);
    assert_int_equal(stream_heap_take_locked(stream_heap, MIB, true, &lent), 0);
    stream_heap_begin_split_locked(lent);
    stream_heap_split_off_locked(lent, 2, 1);
    assert_true(stream_heap_reclaim_lent_locked(stream_heap, &part));
    assert_int_equal(part.offset_bytes, MIB);
    assert_true(part.has_fence);
    assert_int_equal(part.fence.word, 0);
    pthread_mutex_unlock(&stream_heap->lock);
    stream_heap_free(stream_heap);
}

/* A program whose tensors stay takes no more than what they need. */
static void for_large_sizes_on_a_device_as_much_is_leased_as_is_needed(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct piece *piece;

    (void)state;
    for (uint64_t lease = 1; lease < 20; lease++) {
        assert_int_equal(extent_bytes(stream_heap, 5 * MIB), 20 * MIB); /* several of those fit */
        assert_int_equal(extent_bytes(stream_heap, 10 * MIB - 512), 20 * MIB);
        assert_int_equal(extent_bytes(stream_heap, 10 * MIB), 10 * MIB);
        assert_int_equal(extent_bytes(stream_heap, 11 * MIB), 12 * MIB);
        assert_int_equal(extent_bytes(stream_heap, 300 * MIB), 300 * MIB);
        add_to(stream_heap, STREAM_HEAP_LARGE, lease, 64 * MIB);
        assert_int_equal(stream_heap_take(stream_heap, 64 * MIB, &piece), 0); /* nothing stays free */
    }
    stream_heap_free(stream_heap);
}

/* Another allocator cuts it further. */
static void device_memory_without_a_stream_is_leased_as_it_is_asked_for(void **state) {
    static const uint64_t sizes[] = {2 * MIB, 4 * MIB, 20 * MIB, 66 * MIB};
    struct stream_heap *stream_heap =
        stream_heap_new(NULL, &(struct pool_facts){.id = POOL, .kind = 1}, GPUPOOL_NO_STREAM);

    (void)state;
    assert_non_null(stream_heap);
    add_to(stream_heap, STREAM_HEAP_SMALL, 1, GIB);
    add_to(stream_heap, STREAM_HEAP_LARGE, 2, GIB);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(extent_bytes(stream_heap, sizes[i]), sizes[i]);
    assert_int_equal(extent_bytes(stream_heap, 512), 128 * MIB); /* it is the program's own */
    stream_heap_free(stream_heap);
}

static void where_sizes_vary_longer_extents_are_leased_but_bounded(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct piece *pieces[64];

    (void)state;
    for (uint64_t lease = 1; lease <= 16; lease++) {
        add_to(stream_heap, STREAM_HEAP_LARGE, lease, 64 * MIB);
        assert_int_equal(stream_heap_take(stream_heap, 64 * MIB, &pieces[lease]), 0);
    }
    pthread_mutex_lock(&stream_heap->lock);
    assert_int_equal(stream_heap_shrink_locked(pieces[1], 54 * MIB), 0);
    pthread_mutex_unlock(&stream_heap->lock);
    assert_int_equal(extent_bytes(stream_heap, 8 * MIB), 40 * MIB);  /* four times the 10 MiB that are free */
    assert_int_equal(extent_bytes(stream_heap, 11 * MIB), 34 * MIB); /* of which three fit */
    stream_heap_give(pieces[2]);
    assert_int_equal(extent_bytes(stream_heap, 16 * MIB), 128 * MIB); /* eight times the size */
    assert_int_equal(extent_bytes(stream_heap, 5 * MIB), 40 * MIB);
    assert_int_equal(extent_bytes(stream_heap, 200 * MIB), 200 * MIB);
    for (uint64_t lease = 17; lease < 32; lease++)
        add_to(stream_heap, STREAM_HEAP_LARGE, lease, 64 * MIB);
    assert_int_equal(extent_bytes(stream_heap, 33 * MIB), 256 * MIB); /* and no more, however much is free */
    /* Where only a few fit, just these. */
    assert_int_equal(extent_bytes(stream_heap, 60 * MIB), 240 * MIB);
    assert_int_equal(extent_bytes(stream_heap, 100 * MIB), 200 * MIB);
    assert_int_equal(extent_bytes(stream_heap, 225 * MIB), 226 * MIB);
    stream_heap_free(stream_heap);
}

static void what_the_daemon_has_back_does_not_count(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct piece *small;
    struct stream_heap_part part;

    (void)state;
    assert_int_equal(stream_heap_add_extent(stream_heap, 1, 256 * MIB), 0);
    assert_int_equal(extent_bytes(stream_heap, 512), 32 * MIB);
    assert_int_equal(stream_heap_take(stream_heap, 512, &small), 0);
    while (stream_heap_reclaim(stream_heap, HEAP_GRANULE, &part)) {
    }
    assert_int_equal(extent_bytes(stream_heap, 512), 2 * MIB);
    stream_heap_give(small);
    stream_heap_free(stream_heap);
}

/* Host memory is slow to make. */
static void for_large_sizes_in_host_memory_a_share_is_leased(void **state) {
    struct stream_heap *stream_heap = stream_heap_new(
        NULL, &(struct pool_facts){.id = POOL, .kind = GPUPOOL_POOL_HOST, .device = -1}, NULL);
    struct piece *piece;

    (void)state;
    assert_non_null(stream_heap);
    assert_int_equal(extent_bytes(stream_heap, 5 * MIB), 6 * MIB);
    for (uint64_t lease = 1; lease <= 8; lease++) {
        add_to(stream_heap, STREAM_HEAP_LARGE, lease, 64 * MIB);
        assert_int_equal(stream_heap_take(stream_heap, 64 * MIB, &piece), 0);
    }
    assert_int_equal(extent_bytes(stream_heap, 5 * MIB), 64 * MIB); /* an 8th */
    stream_heap_free(stream_heap);
}

/* A large piece finds room where nothing small was before, and each takes the other's only when it may. */
static void small_pieces_lie_apart_from_large_ones(void **state) {
    struct stream_heap *stream_heap = make_stream_heap();
    struct piece *small, *large, *other;

    (void)state;
    pthread_mutex_lock(&stream_heap->lock);
    assert_int_equal(stream_heap_add_locked(stream_heap, STREAM_HEAP_SMALL, NULL, 1, 8 * MIB), 0);
    assert_int_equal(stream_heap_take_locked(stream_heap, 6 * MIB, false, &large), -ENOSPC);
    assert_true(stream_heap_has_locked(stream_heap, 6 * MIB)); /* somewhere */
    assert_int_equal(stream_heap_add_locked(stream_heap, STREAM_HEAP_LARGE, NULL, 2, 8 * MIB), 0);
    assert_int_equal(stream_heap_take_locked(stream_heap, 6 * MIB, true, &large), 0);
    assert_int_equal(stream_heap_take_locked(stream_heap, 2 * MIB, true, &small), 0);
    assert_int_equal(large->lease, 2); /* its own heap's where that has any */
    assert_int_equal(small->lease, 1);
    assert_int_equal(stream_heap_take_locked(stream_heap, 6 * MIB, false, &other), -ENOSPC);
    assert_true(stream_heap_has_locked(stream_heap, 6 * MIB));
    assert_false(stream_heap_has_locked(stream_heap, 8 * MIB));
    assert_int_equal(stream_heap_take_locked(stream_heap, 6 * MIB, true, &other), 0);
    assert_int_equal(other->lease, 1);
    assert_int_equal(stream_heap_take_locked(stream_heap, MIB, false, &other), -ENOSPC);
    assert_true(stream_heap_has_locked(stream_heap, MIB));
    assert_int_equal(stream_heap_take_locked(stream_heap, MIB, true, &other), 0);
    assert_int_equal(other->lease, 2);
    pthread_mutex_unlock(&stream_heap->lock);
    assert_true(stream_heap_is_valid(stream_heap));
    stream_heap_free(stream_heap);
}

/* Everything that allocates, once. Returns the first failure. */
static int everything(struct stream_heap *stream_heap) {
    struct piece *pieces[300] = {NULL};
    int r = stream_heap_add_extent(stream_heap, 1, 2 * MIB);
    unsigned count = 0;

    while (r == 0 && count < sizeof pieces / sizeof *pieces) {
        r = stream_heap_take(stream_heap, 1024, &pieces[count]);
        assert_int_equal(r == 0, pieces[count] != NULL);
        count += r == 0;
    }
    for (unsigned i = 0; r == 0 && i < count; i += 2) {
        pthread_mutex_lock(&stream_heap->lock);
        r = stream_heap_shrink_locked(pieces[i], 512);
        pthread_mutex_unlock(&stream_heap->lock);
        assert_int_equal(pieces[i]->capacity_bytes, r == 0 ? 512 : 1024);
    }
    assert_true(stream_heap_is_valid(stream_heap));
    for (unsigned i = 0; i < count; i++)
        stream_heap_give(pieces[i]);
    return r;
}

static void a_failed_allocation_changes_nothing(void **state) {
    unsigned n = 0;
    bool failed;

    (void)state;
    do { /* last round: nothing failed */
        memory_fail_nth(++n);
        struct stream_heap *stream_heap =
            stream_heap_new(NULL, &(struct pool_facts){.id = POOL, .kind = 1}, NULL);
        failed = memory_failed();
        assert_int_equal(stream_heap == NULL, failed);
        if (stream_heap == NULL)
            continue;
        int r = everything(stream_heap);
        failed = memory_failed();
        assert_int_equal(r, failed ? -ENOMEM : 0);
        memory_fail_nth(0);
        assert_true(stream_heap_is_valid(stream_heap));
        struct stream_heap_part part;
        while (stream_heap_reclaim(stream_heap, HEAP_GRANULE, &part))
            stream_heap_fence_part(&part);
        assert_int_equal(stream_heap->heaps[STREAM_HEAP_SMALL].taken_bytes, 0);
        assert_true(list_is_empty(&stream_heap->extents));
        assert_int_equal(everything(stream_heap), 0); /* and it works afterwards */
        stream_heap_free(stream_heap);
    } while (failed);
    memory_fail_nth(0);
    assert_in_range(n, 6, 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_between_two_buffers_goes_back_alone),
        cmocka_unit_test(a_part_whose_fence_cannot_be_left_is_free_again),
        cmocka_unit_test(nothing_continues_an_extent_that_is_going),
        cmocka_unit_test(memory_that_continues_an_extent_is_cut_as_one_with_it),
        cmocka_unit_test(an_extent_of_which_something_is_being_split_off_is_not_merged),
        cmocka_unit_test(parts_go_with_an_answer_now_and_then_and_merges_wait_for_it),
        cmocka_unit_test(a_piece_outlives_what_it_named),
        cmocka_unit_test(extents_for_small_sizes_grow_with_use_and_stay_bounded),
        cmocka_unit_test(an_extent_is_a_multiple_of_the_smallest_and_never_less_than_what_is_asked_for),
        cmocka_unit_test(host_memory_for_other_processes_is_leased_as_it_is_asked_for),
        cmocka_unit_test(device_memory_for_other_processes_is_leased_for_a_few_pieces_without_a_rest),
        cmocka_unit_test(the_rest_of_what_was_lent_is_reclaimed_once_nothing_of_it_is_in_use),
        cmocka_unit_test(what_was_never_handed_out_goes_back_without_a_fence),
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
