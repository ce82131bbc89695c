/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold for lanes and size classes. Random histories run against a model that knows for each granule
 * of each extent whether it is free, absent or whose it is. The memory that lanes deal in here does not
 * exist: they must not touch it. malloc and calloc are wrapped by the linker, so that the n-th allocation can
 * be made to fail.
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

#include "client/cache/lane.h"
#include "client/lease.h"
#include "client/cache/size_class.h"
#include "heap_fixture.h"
#include "proto/limits.h"

#define EXTENTS_MAX  12u
#define EXTENT_MAX   (2 * MIB)
#define PIECES_MAX   400u
#define SEEDS        12u
#define STEPS        4000u
#define POOL         7u
#define ADDRESS_STEP (1 * GIB) /* between the addresses of two extents */

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

/* --- size classes --- */

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
    assert_int_equal(size_class_of(SIZE_CLASS_ROUNDED_MAX), SIZE_CLASS_LARGE - 1);
    assert_true(size_class_suits(MIB, MIB - MIB / 9));
    assert_false(size_class_suits(MIB, MIB + 1));
    assert_true(size_class_suits(9 * MIB, 9 * MIB));
    assert_true(size_class_suits(9 * MIB, 9 * MIB - 9 * MIB / 64));
    assert_false(size_class_suits(9 * MIB, 9 * MIB - 9 * MIB / 64 - 1));
    assert_false(size_class_suits(9 * MIB, 9 * MIB + 1));
}

/* --- the model --- */

/* What a granule is; above these: of the piece with that number. */
enum granule {
    FREE,
    ABSENT,
    FIRST_PIECE
};

struct model_extent {
    uint64_t lease; /* 0: none here */
    char *memory;
    uint64_t granules;
    uint16_t *is;
};

struct model_piece {
    struct piece *piece; /* NULL: none under this number */
    bool split_off;
};

struct model {
    struct lane *lane;
    uint64_t last_lease;
    struct model_extent extents[EXTENTS_MAX];
    struct model_piece pieces[PIECES_MAX];
};

static uint64_t generation_of(uint64_t lease) {
    return lease * 3 + 1;
}

static int lane_take(struct lane *lane, uint64_t size_bytes, struct piece **ret_piece) {
    pthread_mutex_lock(&lane->lock);
    int r = lane_take_locked(lane, size_bytes, ret_piece);
    pthread_mutex_unlock(&lane->lock);
    return r;
}

static void lane_give(struct piece *piece) {
    struct lane *lane = piece->lane;
    pthread_mutex_lock(&lane->lock);
    lane_give_locked(lane, piece);
    pthread_mutex_unlock(&lane->lock);
}

static int lane_add_extent(struct lane *lane, uint64_t lease, uint64_t size_bytes) {
    char *memory = (char *)(uintptr_t)(lease * ADDRESS_STEP);
    pthread_mutex_lock(&lane->lock);
    int r = lane_add_extent_locked(lane, LANE_SMALL, NULL, lease, generation_of(lease), memory, size_bytes,
                                   false, false);
    pthread_mutex_unlock(&lane->lock);
    return r;
}

static bool lane_reclaim(struct lane *lane, uint64_t minimum_bytes, struct lane_part *ret_part) {
    pthread_mutex_lock(&lane->lock);
    bool found = lane_reclaim_locked(lane, minimum_bytes, ret_part);
    pthread_mutex_unlock(&lane->lock);
    return found;
}

static struct lane *make_lane(void) {
    struct lane *lane = lane_new(&random_state, POOL, 1, 0, NULL);
    assert_non_null(lane);
    lane->is_short = true; /* one heap for all sizes */
    return lane;
}

static struct model_extent *extent_at(struct model *model, const char *memory) {
    for (unsigned i = 0; i < EXTENTS_MAX; i++) {
        struct model_extent *extent = &model->extents[i];
        if (extent->lease != 0 && memory >= extent->memory &&
            memory < extent->memory + extent->granules * HEAP_GRANULE)
            return extent;
    }
    fail_msg("%p is in no extent", (const void *)memory);
    return NULL;
}

static struct model_extent *extent_of(struct model *model, uint64_t lease) {
    for (unsigned i = 0; i < EXTENTS_MAX; i++)
        if (model->extents[i].lease == lease)
            return &model->extents[i];
    fail_msg("lease %llu is no extent", (unsigned long long)lease);
    return NULL;
}

/* Turns granules from what they must be into something else. */
static void turn(struct model_extent *extent, uint64_t offset_bytes, uint64_t size_bytes, unsigned from,
                 unsigned to) {
    uint64_t first = offset_bytes / HEAP_GRANULE, end = (offset_bytes + size_bytes) / HEAP_GRANULE;

    assert_true(size_bytes > 0 && end <= extent->granules);
    for (uint64_t i = first; i < end; i++) {
        assert_int_equal(extent->is[i], from);
        extent->is[i] = (uint16_t)to;
    }
}

static bool extent_is_all(const struct model_extent *extent, unsigned what, unsigned or_what) {
    for (uint64_t i = 0; i < extent->granules; i++)
        if (extent->is[i] != what && extent->is[i] != or_what)
            return false;
    return true;
}

/* Forgets an extent of which nothing is here any more. */
static void extent_look(struct model_extent *extent) {
    if (!extent_is_all(extent, ABSENT, ABSENT))
        return;
    free(extent->is);
    *extent = (struct model_extent){0};
}

static uint64_t longest_free_bytes(const struct model_extent *extent) {
    uint64_t longest = 0, run = 0;
    for (uint64_t i = 0; i < extent->granules; i++) {
        run = extent->is[i] == FREE ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    return longest * HEAP_GRANULE;
}

static uint64_t model_free_bytes(const struct model *model) {
    uint64_t granules = 0;
    for (unsigned i = 0; i < EXTENTS_MAX; i++)
        for (uint64_t j = 0; model->extents[i].lease != 0 && j < model->extents[i].granules; j++)
            granules += model->extents[i].is[j] == FREE;
    return granules * HEAP_GRANULE;
}

static unsigned model_extents(const struct model *model) {
    unsigned count = 0;
    for (unsigned i = 0; i < EXTENTS_MAX; i++)
        count += model->extents[i].lease != 0;
    return count;
}

static unsigned lane_extents(const struct lane *lane) {
    unsigned count = 0;
    list_for_each(position, &lane->extents) count++;
    return count;
}

/* --- steps --- */

static void step_add_extent(struct model *model) {
    for (unsigned i = 0; i < EXTENTS_MAX; i++) {
        struct model_extent *extent = &model->extents[i];
        if (extent->lease != 0)
            continue;
        extent->lease = ++model->last_lease;
        extent->granules = random_below(EXTENT_MAX / HEAP_GRANULE) + 1;
        extent->memory = (char *)(uintptr_t)(extent->lease * ADDRESS_STEP);
        extent->is = calloc(extent->granules, sizeof *extent->is);
        assert_non_null(extent->is);
        assert_int_equal(lane_add_extent(model->lane, extent->lease, extent->granules * HEAP_GRANULE), 0);
        return;
    }
}

static void step_take(struct model *model) {
    uint64_t size = size_class_round(random_below(EXTENT_MAX >> random_below(12)) + 1);
    struct piece *piece = NULL;
    unsigned number = 0;

    while (number < PIECES_MAX && model->pieces[number].piece != NULL)
        number++;
    if (number == PIECES_MAX)
        return;
    int r = lane_take(model->lane, size, &piece);
    if (r == -ENOSPC) {
        /* a good fit may miss a range that is larger by less than the width of a class */
        for (unsigned i = 0; i < EXTENTS_MAX; i++)
            if (model->extents[i].lease != 0)
                assert_true(longest_free_bytes(&model->extents[i]) < size + size / 16 + HEAP_GRANULE);
        return;
    }
    assert_int_equal(r, 0);
    struct model_extent *extent = extent_at(model, piece->memory);
    assert_int_equal(piece->capacity_bytes, size);
    assert_int_equal(piece->size_class, size_class_of(size));
    assert_ptr_equal(piece->lane, model->lane);
    assert_int_equal(piece->lease, extent->lease);
    assert_int_equal(piece->lease_generation, generation_of(extent->lease));
    assert_int_equal(piece->generation % 2, 0);
    assert_false(piece->split_off);
    for (unsigned i = 0; i < PIECES_MAX; i++)
        assert_ptr_not_equal(model->pieces[i].piece, piece);
    turn(extent, (uint64_t)(piece->memory - extent->memory), size, FREE, FIRST_PIECE + number);
    piece->generation++; /* a buffer is out */
    model->pieces[number] = (struct model_piece){.piece = piece};
}

/* A piece that is out; NULL when the number drawn is free. */
static struct model_piece *draw(struct model *model, unsigned *ret_number) {
    *ret_number = (unsigned)random_below(PIECES_MAX);
    struct model_piece *drawn = &model->pieces[*ret_number];
    return drawn->piece != NULL ? drawn : NULL;
}

static void step_give(struct model *model, struct model_piece *drawn, unsigned number) {
    struct piece *piece = drawn->piece;

    piece->generation++;
    drawn->piece = NULL;
    if (drawn->split_off) {
        pthread_mutex_lock(&model->lane->lock);
        lane_forget_piece_locked(model->lane, piece);
        pthread_mutex_unlock(&model->lane->lock);
        return;
    }
    struct model_extent *extent = extent_at(model, piece->memory);
    turn(extent, (uint64_t)(piece->memory - extent->memory), piece->capacity_bytes, FIRST_PIECE + number,
         FREE);
    lane_give(piece);
}

static void step_shrink(struct model *model, const struct model_piece *drawn, unsigned number) {
    struct piece *piece = drawn->piece;
    uint64_t capacity = piece->capacity_bytes;

    if (drawn->split_off || capacity == HEAP_GRANULE)
        return;
    uint64_t kept = (random_below(capacity / HEAP_GRANULE - 1) + 1) * HEAP_GRANULE;
    struct model_extent *extent = extent_at(model, piece->memory);
    uint64_t offset = (uint64_t)(piece->memory - extent->memory);
    pthread_mutex_lock(&model->lane->lock);
    assert_int_equal(lane_shrink_locked(piece, kept), 0);
    pthread_mutex_unlock(&model->lane->lock);
    assert_int_equal(piece->capacity_bytes, kept);
    assert_int_equal(piece->size_class, size_class_of(kept));
    turn(extent, offset + kept, capacity - kept, FIRST_PIECE + number, FREE);
}

static void step_split_off(struct model *model, struct model_piece *drawn, unsigned number) {
    struct piece *piece = drawn->piece;
    char *memory = piece->memory;

    if (drawn->split_off)
        return;
    struct model_extent *extent = extent_at(model, memory);
    turn(extent, (uint64_t)(memory - extent->memory), piece->capacity_bytes, FIRST_PIECE + number, ABSENT);
    extent_look(extent);
    pthread_mutex_lock(&model->lane->lock);
    lane_split_off_locked(piece, ++model->last_lease, 99);
    pthread_mutex_unlock(&model->lane->lock);
    assert_true(piece->split_off);
    assert_int_equal(piece->lease, model->last_lease);
    assert_int_equal(piece->lease_generation, 99);
    assert_ptr_equal(piece->memory, memory); /* the buffer lives on */
    drawn->split_off = true;
}

/* Returns whether there was something. */
static bool step_reclaim(struct model *model, uint64_t minimum_bytes) {
    struct lane_part part;

    if (!lane_reclaim(model->lane, minimum_bytes, &part)) {
        for (unsigned i = 0; i < EXTENTS_MAX; i++)
            if (model->extents[i].lease != 0) {
                assert_true(longest_free_bytes(&model->extents[i]) < minimum_bytes);
                assert_false(extent_is_all(&model->extents[i], FREE, ABSENT));
            }
        return false;
    }
    struct model_extent *extent = extent_of(model, part.lease);
    assert_int_equal(part.generation, generation_of(part.lease));
    assert_true(part.size_bytes >= minimum_bytes || extent_is_all(extent, FREE, ABSENT));
    /* as large as it can be */
    uint64_t first = part.offset_bytes / HEAP_GRANULE, end = first + part.size_bytes / HEAP_GRANULE;
    assert_true(first == 0 || extent->is[first - 1] != FREE);
    assert_true(end == extent->granules || extent->is[end] != FREE);
    turn(extent, part.offset_bytes, part.size_bytes, FREE,
         ABSENT); /* never what is in use, nor what went before */
    assert_int_equal(part.whole, extent_is_all(extent, ABSENT, ABSENT));
    extent_look(extent);
    return true;
}

static void step(struct model *model) {
    unsigned number;
    struct model_piece *drawn = draw(model, &number);

    switch (random_below(32)) {
    case 0:
        step_add_extent(model);
        return;
    case 1:
        step_reclaim(model, (random_below(EXTENT_MAX / HEAP_GRANULE) + 1) * HEAP_GRANULE);
        return;
    case 2:
        if (drawn != NULL)
            step_split_off(model, drawn, number);
        return;
    case 3:
    case 4:
        if (drawn != NULL)
            step_shrink(model, drawn, number);
        return;
    default:
        if (drawn != NULL)
            step_give(model, drawn, number);
        else
            step_take(model);
    }
}

static void run_history(uint64_t seed) {
    struct model *model = calloc(1, sizeof *model);

    assert_non_null(model);
    random_state = seed * 77 + 5;
    model->lane = make_lane();
    for (unsigned i = 0; i < STEPS; i++) {
        step(model);
        if (i % 8 != 0)
            continue;
        assert_true(lane_is_valid(model->lane));
        assert_int_equal(lane_free_bytes(model->lane), model_free_bytes(model));
        assert_int_equal(lane_extents(model->lane), model_extents(model));
    }
    /* when everything is back, everything can go */
    for (unsigned i = 0; i < PIECES_MAX; i++)
        if (model->pieces[i].piece != NULL)
            step_give(model, &model->pieces[i], i);
    while (step_reclaim(model, EXTENT_MAX)) {
    }
    assert_true(lane_is_valid(model->lane));
    assert_int_equal(model_extents(model), 0);
    assert_true(list_is_empty(&model->lane->extents));
    assert_int_equal(lane_held_bytes_locked(model->lane), 0);
    model->lane = lane_free(model->lane);
    free(model);
}

static void random_histories_agree_with_a_model_of_every_granule(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_history(seed);
}

/* --- case by case --- */

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

static char *address(uint64_t bytes) {
    return (char *)(uintptr_t)(ADDRESS_STEP + bytes);
}

/* New memory as grow() adds it. Returns whether there was an extent to fill. */
static bool lane_merge(struct lane *lane, const void *segment, uint64_t offset, uint64_t size,
                       bool is_merged) {
    pthread_mutex_lock(&lane->lock);
    struct extent *extent = lane_neighbour_locked(lane, LANE_SMALL, segment, address(offset), size);
    if (extent != NULL && is_merged)
        lane_fill_locked(extent, address(offset), size);
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
    assert_int_equal(lane_add_extent_locked(lane, LANE_SMALL, state, 1, 1, address(0), 4 * MIB, false, false),
                     0);
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
    assert_ptr_equal(piece->memory, address(2 * MIB));
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
    assert_int_equal(lane_add_extent_locked(lane, LANE_SMALL, state, 1, 1, address(0), 4 * MIB, false, false),
                     0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(lane_take_locked(lane, 2 * MIB, &pieces[i]), 0);
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
            lane_neighbour_locked(lane, LANE_SMALL, NULL, (char *)(ADDRESS_STEP + part.offset_bytes), MIB);
        assert_non_null(extent);
        lane_fill_locked(extent, (char *)(ADDRESS_STEP + part.offset_bytes), MIB);
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

static void extents_grow_with_use_and_stay_bounded(void **state) {
    struct lane *lane = make_lane();
    uint64_t before = 0;

    (void)state;
    assert_int_equal(lane_extent_bytes_locked(lane, 1), 2 * MIB);
    assert_int_equal(lane_extent_bytes_locked(lane, 2 * MIB), 2 * MIB);
    assert_int_equal(lane_extent_bytes_locked(lane, 2 * MIB + 512), 2 * MIB + 512);
    for (uint64_t lease = 1; lease < 160; lease++) {
        uint64_t bytes = lane_extent_bytes_locked(lane, 512);
        assert_true(bytes >= before && bytes >= 2 * MIB && bytes <= 256 * MIB && bytes % (2 * MIB) == 0);
        before = bytes;
        assert_int_equal(lane_add_extent(lane, lease, 128 * MIB), 0);
    }
    assert_int_equal(before, 256 * MIB);
    assert_int_equal(lane_extent_bytes_locked(lane, GIB), GIB); /* never less than what is asked for */
    lane_free(lane);
}

/* An extent that was leased for one piece goes back as a whole, or serves another of about its size. */
static void what_was_leased_for_one_piece_is_kept_whole(void **state) {
    struct lane *lane = lane_new(&random_state, POOL, 1, 0, NULL);
    struct lane_part part;
    struct piece *piece;

    (void)state;
    assert_non_null(lane);
    pthread_mutex_lock(&lane->lock);
    assert_int_equal(lane_add_extent_locked(lane, LANE_LARGE, NULL, 1, 1, (char *)GIB, 64 * MIB, false, true),
                     0);
    assert_int_equal(
        lane_add_extent_locked(lane, LANE_LARGE, NULL, 2, 1, (char *)(2 * GIB), 32 * MIB, false, true), 0);
    assert_int_equal(
        lane_add_extent_locked(lane, LANE_LARGE, NULL, 3, 1, (char *)(3 * GIB), 16 * MIB, false, true), 0);
    assert_int_equal(lane_take_locked(lane, 8 * MIB, &piece), -ENOSPC);
    assert_false(lane_has_locked(lane, 8 * MIB));
    assert_true(lane_may_share_locked(lane, 8 * MIB));
    assert_int_equal(lane_take_locked(lane, 63 * MIB, &piece), 0);
    assert_int_equal(piece->lease, 1);
    lane_give_locked(lane, piece);
    /* the smallest that is enough goes back, else the largest */
    assert_true(lane_reclaim_idle_locked(lane, 20 * MIB, &part));
    assert_int_equal(part.lease, 2);
    assert_true(part.whole);
    assert_true(lane_reclaim_idle_locked(lane, 100 * MIB, &part));
    assert_int_equal(part.lease, 1);
    /* one is cut, once, if it has to be */
    assert_false(lane_cut_whole_locked(lane, 17 * MIB));
    assert_true(lane_cut_whole_locked(lane, 2 * MIB));
    assert_int_equal(lane_take_locked(lane, 2 * MIB, &piece), 0);
    assert_int_equal(piece->lease, 3);
    assert_false(lane->may_cut);
    assert_false(lane_reclaim_idle_locked(lane, 1, &part)); /* it is in use */
    lane_give_locked(lane, piece);
    pthread_mutex_unlock(&lane->lock);
    assert_true(lane_is_valid(lane));
    lane_free(lane);
}

/* A large one finds room where nothing small was before, and each takes the other's only when the pool is
 * short. */
static void small_pieces_lie_apart_from_large_ones(void **state) {
    struct lane *lane = lane_new(&random_state, POOL, 1, 0, NULL);
    struct piece *small, *large, *other;

    (void)state;
    assert_non_null(lane);
    pthread_mutex_lock(&lane->lock);
    assert_int_equal(lane_add_extent_locked(lane, LANE_SMALL, NULL, 1, 1, (char *)GIB, 4 * MIB, false, false),
                     0);
    assert_int_equal(lane_take_locked(lane, 3 * MIB, &large), -ENOSPC);
    assert_int_equal(
        lane_add_extent_locked(lane, LANE_LARGE, NULL, 2, 1, (char *)(2 * GIB), 4 * MIB, false, false), 0);
    assert_int_equal(lane_take_locked(lane, 3 * MIB, &large), 0);
    assert_int_equal(lane_take_locked(lane, MIB, &small), 0);
    assert_int_equal(large->lease, 2);
    assert_int_equal(small->lease, 1);
    assert_true(lane_may_share_locked(lane, 3 * MIB));
    assert_false(lane_may_share_locked(lane, 5 * MIB));
    assert_int_equal(lane_take_locked(lane, 3 * MIB, &other), -ENOSPC);
    lane->is_short = true;
    assert_false(lane_may_share_locked(lane, 3 * MIB)); /* it does already */
    assert_int_equal(lane_take_locked(lane, 3 * MIB, &other), 0);
    assert_int_equal(other->lease, 1);
    lane_give_locked(lane, other);
    lane_give_locked(lane, small);
    lane_give_locked(lane, large);
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
        struct lane *lane = lane_new(&n, POOL, 1, 0, NULL);
        if (lane != NULL)
            lane->is_short = true; /* one heap for all sizes */
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
        cmocka_unit_test(a_class_holds_its_sizes_and_wastes_an_eighth_at_most),
        cmocka_unit_test(a_cached_piece_suits_what_would_not_waste_it),
        cmocka_unit_test(random_histories_agree_with_a_model_of_every_granule),
        cmocka_unit_test(a_part_between_two_buffers_goes_back_alone),
        cmocka_unit_test(memory_that_continues_an_extent_is_cut_as_one_with_it),
        cmocka_unit_test(an_extent_of_which_something_is_being_split_off_is_not_merged),
        cmocka_unit_test(parts_go_with_an_answer_now_and_then_and_merges_wait_for_it),
        cmocka_unit_test(a_piece_outlives_what_it_named),
        cmocka_unit_test(extents_grow_with_use_and_stay_bounded),
        cmocka_unit_test(small_pieces_lie_apart_from_large_ones),
        cmocka_unit_test(what_was_leased_for_one_piece_is_kept_whole),
        cmocka_unit_test(a_failed_allocation_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
