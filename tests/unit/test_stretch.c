/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of stretches, against a model: all segments of a few units, each unit of which is in one of the
 * states below. The memory that the stream heaps deal in does not exist.
 */
#include <stdlib.h>

#include "client/core/deferred.h"
#include "client/core/pool.h"
#include "client/core/stretch.h"
#include "client/include/gpupool/gpupool.h"
#include "heap_fixture.h"

#define POOL  1u
#define UNITS 5u
#define UNIT  MIB
#define WORD  1u

/* The state of a unit. Units of one stream heap side by side are one extent. */
enum unit {
    ELSEWHERE, /* never leased by this process */
    FREE,
    HELD,
    DEFERRED,
    LOST, /* a part that an extent gave back */
    OTHER_FREE,
    OTHER_HELD,
    UNIT_STATES,
};

static struct proto_page page;
static const struct fence_array fences = {.words = page.fences};
static struct core_pool pool;
static struct segment_view segment = {
    .segment = &segment, .memory = (char *)(16 * GIB), .size_bytes = UNITS * UNIT};
static struct stream_heap *own, *other;

static const char *address_of(unsigned unit) {
    return segment.memory + unit * UNIT;
}

static struct stream_heap *heap_of(enum unit unit) {
    return unit == ELSEWHERE ? NULL : unit >= OTHER_FREE ? other : own;
}

static struct stream_heap *make_heap(void) {
    struct stream_heap *stream_heap = stream_heap_new(
        NULL, &(struct pool_facts){.id = POOL, .kind = GPUPOOL_POOL_HOST, .device = -1, .fences = &fences},
        NULL);
    assert_non_null(stream_heap);
    core_pool_add_locked(&pool, stream_heap);
    return stream_heap;
}

static int set_up(void **state) {
    (void)state;
    memset(&page, 0, sizeof page);
    core_pool_init(&pool);
    own = make_heap();
    other = make_heap();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    stream_heap_free(own);
    stream_heap_free(other);
    core_pool_deinit(&pool);
    return 0;
}

/* Brings a unit, which is free, into its state. */
static void put_into_state(struct extent *extent, unsigned offset, enum unit unit) {
    const struct fence fence = {WORD, 1};
    struct stream_heap_part part;
    struct piece *piece;

    if (unit == FREE || unit == OTHER_FREE)
        return;
    assert_int_equal(stream_heap_take_at_locked(extent, offset * UNIT, UNIT, &piece), 0);
    if (unit == DEFERRED) {
        assert_int_equal(deferred_reserve_locked(extent->stream_heap, fence), 0);
        deferred_push_locked(extent->stream_heap, piece, fence);
    } else if (unit == LOST) {
        stream_heap_lose_locked(piece, &part);
    }
}

/* Makes the extents of units. */
static void make(const enum unit units[UNITS]) {
    for (unsigned first = 0, end; first < UNITS; first = end) {
        struct stream_heap *stream_heap = heap_of(units[first]);
        bool is_lost = true;
        for (end = first; end < UNITS && heap_of(units[end]) == stream_heap; end++)
            is_lost = is_lost && units[end] == LOST;
        if (stream_heap == NULL || is_lost)
            continue;
        assert_int_equal(stream_heap_add_extent_locked(stream_heap, STREAM_HEAP_SMALL, &segment, first + 1, 1,
                                                       (char *)segment.memory + first * UNIT,
                                                       (end - first) * UNIT),
                         0);
        struct extent *extent = list_last(&stream_heap->extents, struct extent, link);
        for (unsigned i = first; i < end; i++)
            put_into_state(extent, i - first, units[i]);
    }
}

static bool is_held(enum unit unit) {
    return unit == HELD || unit == OTHER_HELD;
}

/* The stretch that has to be found at a unit. False: none. */
static bool model_at(const enum unit units[UNITS], unsigned place, unsigned *ret_first, unsigned *ret_end) {
    unsigned first = place, end = place;

    if (is_held(units[place]))
        return false;
    while (first > 0 && !is_held(units[first - 1]))
        first--;
    while (end < UNITS && !is_held(units[end]))
        end++;
    *ret_first = first;
    *ret_end = end;
    return true;
}

/* Whether a unit lies in an extent: one of which all was lost is gone. */
static bool is_in_extent(unsigned unit) {
    list_for_each_entry(const struct stream_heap, stream_heap, &pool.stream_heaps, pool_link) {
        list_for_each_entry(const struct extent, extent, &stream_heap->extents, link) {
            if (address_of(unit) >= extent->memory && address_of(unit) < extent->memory + extent->size_bytes)
                return true;
        }
    }
    return false;
}

static void check_places(const enum unit units[UNITS]) {
    for (unsigned size = 1; size <= UNITS; size++) {
        const char **places;
        bool is_found[UNITS] = {false};
        size_t count = stretch_places(own, size * UNIT, &places);
        for (size_t i = 0; i < count; i++) {
            struct stretch stretch;
            assert_true(stretch_at_locked(&pool, places[i], &stretch));
            for (unsigned unit = 0; unit < UNITS; unit++)
                is_found[unit] =
                    is_found[unit] || (address_of(unit) >= stretch.start && address_of(unit) < stretch.end);
        }
        for (unsigned unit = 0; unit < UNITS; unit++) {
            unsigned first = 0, end = 0;
            if ((units[unit] == FREE || units[unit] == DEFERRED) && model_at(units, unit, &first, &end) &&
                end - first >= size)
                assert_true(is_found[unit]);
        }
        free(places);
    }
}

/* Takes what there is of a stretch; returns how many bytes. */
static uint64_t take_all(const struct stretch *stretch) {
    struct stream_heap_part parts[UNITS];
    uint64_t bytes = 0;

    list_for_each_entry(struct stream_heap, stream_heap, &pool.stream_heaps, pool_link) {
        while (stream_heap_reclaim_between_locked(stream_heap, stretch->start, stretch->end, parts))
            bytes += parts->size_bytes;
        size_t count =
            deferred_reclaim_between_locked(stream_heap, stretch->start, stretch->end, parts, UNITS);
        for (size_t i = 0; i < count; i++) {
            assert_true(parts[i].has_fence);
            assert_int_equal(parts[i].fence.word, WORD);
            bytes += parts[i].size_bytes;
        }
        assert_true(stream_heap_is_valid(stream_heap));
    }
    return bytes;
}

/* A stretch that was taken is as long as before, and has nothing in it. */
static void check_at(const enum unit units[UNITS], unsigned place) {
    unsigned first = 0, end = 0;
    struct stretch stretch;
    uint64_t bytes = 0;

    bool is_found = stretch_at_locked(&pool, address_of(place), &stretch);
    assert_int_equal(is_found, is_in_extent(place) && model_at(units, place, &first, &end));
    if (!is_found)
        return;
    assert_ptr_equal(stretch.start, address_of(first));
    assert_ptr_equal(stretch.end, address_of(end));
    for (unsigned i = first; i < end; i++)
        bytes += units[i] == FREE || units[i] == DEFERRED || units[i] == OTHER_FREE ? UNIT : 0;
    assert_int_equal(take_all(&stretch), bytes);
    assert_int_equal(take_all(&stretch), 0);
}

static void each_segment_of_a_few_units_is_as_the_model_says(void **state) {
    unsigned count = 1;

    for (unsigned i = 0; i < UNITS; i++)
        count *= UNIT_STATES;
    for (unsigned number = 0; number < count; number++) {
        enum unit units[UNITS];
        for (unsigned i = 0, left = number; i < UNITS; i++, left /= UNIT_STATES)
            units[i] = (enum unit)(left % UNIT_STATES);
        set_up(state);
        make(units);
        check_places(units);
        check_at(units, number % UNITS);
        tear_down(state);
    }
}

/* They are about to be used. */
static void deferred_pieces_that_a_stream_is_being_ordered_behind_stay(void **state) {
    static const enum unit units[UNITS] = {FREE, DEFERRED, FREE, FREE, HELD};
    struct stretch stretch;
    const char **places;

    (void)state;
    make(units);
    own->ordering++;
    assert_false(stretch_at_locked(&pool, address_of(1), &stretch));
    assert_true(stretch_at_locked(&pool, address_of(2), &stretch));
    assert_int_equal(stretch_bytes(&stretch), 2 * UNIT);
    assert_int_equal(stretch_places(own, 4 * UNIT, &places), 1); /* the beginning of the extent */
    free(places);
    own->ordering--;
    assert_true(stretch_at_locked(&pool, address_of(1), &stretch));
    assert_int_equal(stretch_bytes(&stretch), 4 * UNIT);
}

static void memory_of_other_pools_is_not_looked_at(void **state) {
    static const enum unit units[UNITS] = {FREE, HELD, FREE, FREE, FREE};
    struct core_pool another;
    struct stretch stretch;

    (void)state;
    make(units);
    core_pool_init(&another);
    assert_false(stretch_at_locked(&another, address_of(0), &stretch));
    core_pool_deinit(&another);
    assert_true(stretch_at_locked(&pool, address_of(0), &stretch));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_segment_of_a_few_units_is_as_the_model_says),
        cmocka_unit_test_setup_teardown(deferred_pieces_that_a_stream_is_being_ordered_behind_stay, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(memory_of_other_pools_is_not_looked_at, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
