/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the deferred pieces of a stream heap. The words are the test's own: it decides when a
 * fence is ready. The memory that the stream heap deals in does not exist.
 */
#include <errno.h>

#include "client/core/deferred.h"
#include "client/include/gpupool/gpupool.h"
#include "heap_fixture.h"
#include "tests/failing_memory.h"

#define EXTENT_BYTES (2 * MIB)
#define EXTENTS      4u
#define WORDS        5u
#define STEPS        20000u
#define OUT_MAX      64u

static struct proto_page page;
static const struct fence_array array = {.words = page.fences};

static void arrive(uint32_t word, uint64_t value) {
    atomic_store(&page.fences[word - 1], value);
}

static int set_up(void **state) {
    memset(&page, 0, sizeof page);
    struct stream_heap *stream_heap = stream_heap_new(
        NULL, &(struct pool_facts){.id = 1, .kind = GPUPOOL_POOL_DEVICE, .fences = &array}, NULL);
    assert_non_null(stream_heap);
    for (unsigned i = 0; i < EXTENTS; i++)
        assert_int_equal(stream_heap_add_extent_locked(stream_heap, STREAM_HEAP_SMALL,
                                                       &(struct segment_view){0}, i + 1, 1,
                                                       (char *)((i + 1) * GIB), EXTENT_BYTES),
                         0);
    *state = stream_heap;
    return 0;
}

static int tear_down(void **state) {
    memory_fail_nth(0);
    stream_heap_free(*state);
    return 0;
}

static struct piece *take_piece(struct stream_heap *stream_heap, uint64_t size_bytes) {
    struct piece *piece;
    assert_int_equal(stream_heap_take_locked(stream_heap, size_bytes, true, &piece), 0);
    return piece;
}

static void defer(struct stream_heap *stream_heap, struct piece *piece, uint32_t word, uint64_t value) {
    struct fence fence = {word, value};
    assert_int_equal(deferred_reserve_locked(stream_heap, fence), 0);
    deferred_push_locked(stream_heap, piece, fence);
}

static void pieces_are_free_when_their_fences_are_ready(void **state) {
    struct stream_heap *stream_heap = *state;
    uint64_t all = stream_heap_free_bytes_locked(stream_heap);

    defer(stream_heap, take_piece(stream_heap, 4096), 1, 1);
    defer(stream_heap, take_piece(stream_heap, 8192), 1, 2);
    defer(stream_heap, take_piece(stream_heap, MIB), 2, 7);
    assert_int_equal(stream_heap->deferred_bytes, 4096 + 8192 + MIB);
    assert_int_equal(stream_heap_free_bytes_locked(stream_heap), all - stream_heap->deferred_bytes);
    assert_false(deferred_settle_locked(stream_heap, 100));
    assert_true(stream_heap_is_valid(stream_heap));
    arrive(1, 1);
    assert_true(deferred_settle_locked(stream_heap, 100));
    assert_int_equal(stream_heap->deferred_bytes, 8192 + MIB);
    arrive(2, 6);
    assert_false(deferred_settle_locked(stream_heap, 100));
    arrive(2, 8); /* beyond is as good */
    assert_true(deferred_settle_locked(stream_heap, 100));
    assert_int_equal(stream_heap->deferred_bytes, 8192);
    arrive(1, 2);
    assert_true(deferred_settle_locked(stream_heap, 100));
    assert_int_equal(stream_heap->deferred_bytes, 0);
    assert_int_equal(stream_heap_free_bytes_locked(stream_heap), all);
    assert_true(stream_heap_is_valid(stream_heap));
}

static void values_wrap_around(void **state) {
    struct stream_heap *stream_heap = *state;
    struct fence newest;

    arrive(1, UINT64_MAX - 1);
    defer(stream_heap, take_piece(stream_heap, 4096), 1, UINT64_MAX);
    defer(stream_heap, take_piece(stream_heap, 4096), 1, 1);
    assert_int_equal(deferred_fences_locked(stream_heap, &newest, 1), 1);
    assert_int_equal(newest.value, 1);
    assert_false(deferred_settle_locked(stream_heap, 100));
    arrive(1, UINT64_MAX);
    assert_true(deferred_settle_locked(stream_heap, 100));
    assert_int_equal(stream_heap->deferred_bytes, 4096);
    arrive(1, 1);
    assert_true(deferred_settle_locked(stream_heap, 100));
    assert_int_equal(stream_heap->deferred_bytes, 0);
}

/* Two threads on one stream may queue in another order than their fences have. */
static void who_overtakes_is_not_free_too_early(void **state) {
    struct stream_heap *stream_heap = *state;

    defer(stream_heap, take_piece(stream_heap, 4096), 1, 2);
    defer(stream_heap, take_piece(stream_heap, 4096), 1, 1);
    arrive(1, 1);
    deferred_settle_locked(stream_heap, 100);
    assert_true(stream_heap->deferred_bytes >= 4096); /* that of value 2 */
    assert_true(stream_heap_is_valid(stream_heap));
    arrive(1, 2);
    assert_true(deferred_settle_locked(stream_heap, 100));
    assert_int_equal(stream_heap->deferred_bytes, 0);
}

static void a_look_is_bounded_and_everybody_has_a_turn(void **state) {
    struct stream_heap *stream_heap = *state;

    for (unsigned word = 1; word <= 3; word++) {
        for (unsigned i = 1; i <= 10; i++)
            defer(stream_heap, take_piece(stream_heap, 512), word, i);
        arrive(word, 10);
    }
    for (uint64_t left = 30 * 512; left > 0; left -= 4 * 512 < left ? 4 * 512 : left) {
        assert_int_equal(stream_heap->deferred_bytes, left);
        assert_true(deferred_settle_locked(stream_heap, 4));
        assert_true(stream_heap_is_valid(stream_heap));
    }
    assert_false(deferred_settle_locked(stream_heap, 4));
    /* a fence that is not ready delays no other */
    defer(stream_heap, take_piece(stream_heap, 512), 1, 11);
    defer(stream_heap, take_piece(stream_heap, 512), 2, 10);
    assert_true(deferred_settle_locked(stream_heap, 1));
    assert_int_equal(stream_heap->deferred_bytes, 512);
}

static void what_another_stream_waits_for_is_free_at_once(void **state) {
    struct stream_heap *stream_heap = *state;
    struct fence fences[4];

    for (unsigned i = 1; i <= 5; i++)
        defer(stream_heap, take_piece(stream_heap, 4096), 1, i);
    defer(stream_heap, take_piece(stream_heap, 4096), 2, 1);
    assert_int_equal(deferred_fences_locked(stream_heap, fences, 1), 1);
    assert_int_equal(deferred_fences_locked(stream_heap, fences, 4), 2);
    assert_int_equal(fences[0].word + fences[1].word, 3);
    defer(stream_heap, take_piece(stream_heap, 4096), 1, 6); /* came after the stream was told to wait */
    deferred_order_locked(stream_heap, (struct fence){1, 5});
    assert_int_equal(stream_heap->deferred_bytes, 2 * 4096);
    assert_true(stream_heap_is_valid(stream_heap));
    deferred_order_locked(stream_heap, (struct fence){1, 6});
    deferred_order_locked(stream_heap, (struct fence){2, 1});
    deferred_order_locked(stream_heap, (struct fence){3, 1}); /* of which there is nothing */
    assert_int_equal(stream_heap->deferred_bytes, 0);
    assert_true(stream_heap_is_valid(stream_heap));
}

static void what_goes_to_the_daemon_takes_its_fence_along(void **state) {
    struct stream_heap *stream_heap = *state;
    struct stream_heap_part parts[8];
    struct piece *held = take_piece(stream_heap, 512); /* its extent is in use */
    struct piece *small = take_piece(stream_heap, 512), *large = take_piece(stream_heap, MIB);

    assert_ptr_equal(small->extent, held->extent);
    bool apart = large->extent != held->extent;
    defer(stream_heap, small, 1, 3);
    defer(stream_heap, large, 2, 4);
    assert_int_equal(deferred_reclaim_locked(stream_heap, MIB, parts, 8), 1);
    assert_int_equal(parts[0].size_bytes, MIB);
    assert_true(parts[0].has_fence);
    assert_int_equal(parts[0].fence.word, 2);
    assert_int_equal(parts[0].fence.value, 4);
    assert_int_equal(stream_heap->deferred_bytes, 512);
    assert_true(stream_heap_is_valid(stream_heap));
    assert_true(apart || parts[0].lease == held->lease);
    /* an extent of which nothing is in use goes whatever its parts' sizes */
    stream_heap_give_locked(stream_heap, held);
    assert_int_equal(deferred_reclaim_locked(stream_heap, MIB, parts, 8), 1);
    assert_int_equal(parts[0].size_bytes, 512);
    assert_int_equal(parts[0].fence.word, 1);
    assert_int_equal(stream_heap->deferred_bytes, 0);
    while (stream_heap_reclaim_locked(stream_heap, MIB, &parts[0]))
        if (!parts[0].has_fence)
            stream_heap_fence_left_locked(&parts[0], FENCE_NONE);
    assert_true(list_is_empty(&stream_heap->extents));
    assert_true(stream_heap_is_valid(stream_heap));
}

static void parts_beyond_the_room_for_them_stay(void **state) {
    struct stream_heap *stream_heap = *state;
    struct stream_heap_part parts[3];

    for (unsigned i = 1; i <= 5; i++)
        defer(stream_heap, take_piece(stream_heap, 64 * KIB), 1 + i % 2, i);
    assert_int_equal(deferred_reclaim_locked(stream_heap, 1, parts, 3), 3);
    assert_int_equal(stream_heap->deferred_bytes, 2 * 64 * KIB);
    assert_true(stream_heap_is_valid(stream_heap));
    assert_int_equal(deferred_reclaim_locked(stream_heap, 1, parts, 3), 2);
    assert_int_equal(deferred_reclaim_locked(stream_heap, 1, parts, 3), 0);
    assert_true(stream_heap_is_valid(stream_heap));
}

static void a_cut_tail_is_a_piece_that_can_wait(void **state) {
    struct stream_heap *stream_heap = *state;
    struct piece *piece = take_piece(stream_heap, MIB), *tail;
    uint64_t all = stream_heap_free_bytes_locked(stream_heap);

    assert_int_equal(stream_heap_cut_locked(piece, 4096, &tail), 0);
    assert_int_equal(piece->capacity_bytes, 4096);
    assert_int_equal(tail->capacity_bytes, MIB - 4096);
    assert_ptr_equal(tail->memory, piece->memory + 4096);
    assert_int_equal(tail->generation % 2, 0);
    defer(stream_heap, tail, 1, 1);
    assert_true(stream_heap_is_valid(stream_heap));
    assert_int_equal(stream_heap_free_bytes_locked(stream_heap), all);
    arrive(1, 1);
    assert_true(deferred_settle_locked(stream_heap, 1));
    assert_int_equal(stream_heap_free_bytes_locked(stream_heap), all + MIB - 4096);
    stream_heap_give_locked(stream_heap, piece);
    assert_true(stream_heap_is_valid(stream_heap));
}

static void without_memory_nothing_is_deferred(void **state) {
    struct stream_heap *stream_heap = *state;
    struct fence fence = {1, 1};

    memory_fail_nth(1);
    assert_int_equal(deferred_reserve_locked(stream_heap, fence), -ENOMEM);
    memory_fail_nth(0);
    assert_int_equal(deferred_reserve_locked(stream_heap, fence), 0);
    memory_fail_nth(1); /* one reserve is enough for any word, and for the next piece of this one */
    assert_int_equal(deferred_reserve_locked(stream_heap, (struct fence){2, 1}), 0);
    struct piece *pieces[2];
    memory_fail_nth(0);
    pieces[0] = take_piece(stream_heap, 512);
    pieces[1] = take_piece(stream_heap, 512);
    memory_fail_nth(1);
    deferred_push_locked(stream_heap, pieces[0], fence);
    assert_int_equal(deferred_reserve_locked(stream_heap, fence), 0);
    deferred_push_locked(stream_heap, pieces[1], fence);
    assert_false(memory_failed());
    assert_true(stream_heap_is_valid(stream_heap));
}

/* --- histories --- */

/* The model of a piece that waits. */
struct waiting {
    uint64_t memory, size_bytes;
    uint32_t word;
    uint64_t value;
};

static bool overlaps(const struct waiting *waiting, const struct piece *piece) {
    uint64_t start = (uintptr_t)piece->memory;
    return waiting->memory < start + piece->capacity_bytes && start < waiting->memory + waiting->size_bytes;
}

static void nothing_that_waits_is_handed_out(void **state) {
    struct stream_heap *stream_heap = *state;
    struct piece *out[OUT_MAX] = {0};
    struct waiting *waits = calloc(STEPS, sizeof *waits);
    uint64_t given[WORDS + 1] = {0}, arrived[WORDS + 1] = {0};
    unsigned n_waits = 0, handed = 0;

    random_state = 42;
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned which = random_below(OUT_MAX);
        uint32_t word = 1 + random_below(WORDS);
        if (out[which] == NULL) {
            struct piece *piece;
            if (stream_heap_take_locked(stream_heap, (random_below(40) + 1) * 512, true, &piece) == 0) {
                for (unsigned i = 0; i < n_waits; i++)
                    assert_false(overlaps(&waits[i], piece));
                out[which] = piece;
                handed++;
            }
        } else if (random_below(4) == 0) {
            stream_heap_give_locked(stream_heap, out[which]);
            out[which] = NULL;
        } else {
            waits[n_waits++] = (struct waiting){(uintptr_t)out[which]->memory, out[which]->capacity_bytes,
                                                word, ++given[word]};
            defer(stream_heap, out[which], word, given[word]);
            out[which] = NULL;
        }
        if (random_below(3) == 0 && arrived[word] < given[word]) {
            arrive(word, ++arrived[word]);
            unsigned kept = 0; /* whether they are given or not is the stream heap's decision from now on */
            for (unsigned i = 0; i < n_waits; i++)
                if (waits[i].value > arrived[waits[i].word])
                    waits[kept++] = waits[i];
            n_waits = kept;
        }
        if (random_below(2) == 0)
            deferred_settle_locked(stream_heap, random_below(8));
        if (step % 64 == 0)
            assert_true(stream_heap_is_valid(stream_heap));
    }
    assert_true(handed > STEPS / 20);
    free(waits);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(pieces_are_free_when_their_fences_are_ready),
        TEST(values_wrap_around),
        TEST(who_overtakes_is_not_free_too_early),
        TEST(a_look_is_bounded_and_everybody_has_a_turn),
        TEST(what_another_stream_waits_for_is_free_at_once),
        TEST(what_goes_to_the_daemon_takes_its_fence_along),
        TEST(parts_beyond_the_room_for_them_stay),
        TEST(a_cut_tail_is_a_piece_that_can_wait),
        TEST(without_memory_nothing_is_deferred),
        TEST(nothing_that_waits_is_handed_out),
    };
    return cmocka_run_group_tests_name("deferred", tests, NULL, NULL);
}
