/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of stream heaps beside a model that knows for each granule of each extent whether it is
 * free, absent or whose it is.
 */
#include <errno.h>

#include "cached.h"
#include "client/core/size_class.h"
#include "stream_heap_fixture.h"

#define EXTENTS_MAX 12u
#define EXTENT_MAX  (2 * MIB)
#define PIECES_MAX  400u
#define SEEDS       12u
#define STEPS       4000u

/* --- the model --- */

#define OUT_MAX 8u

/* The states of a granule. A higher number is that of the piece to which the granule belongs. */
enum granule {
    FREE,
    ABSENT,
    FIRST_PIECE
};

struct model_extent {
    uint64_t lease; /* 0: none here */
    char *memory;
    uint64_t granules;
    unsigned n_out; /* parts that left it, and have no fence yet */
    uint16_t *is;
};

struct model_piece {
    struct piece *piece; /* NULL: none under this number */
    bool split_off;
};

struct model {
    struct stream_heap *stream_heap;
    uint64_t last_lease;
    struct model_extent extents[EXTENTS_MAX];
    struct model_piece pieces[PIECES_MAX];
    struct stream_heap_part out[OUT_MAX]; /* parts that have no fence yet */
    unsigned n_out, returns;
};

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
    if (extent->n_out > 0 || !extent_is_all(extent, ABSENT, ABSENT))
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

/* --- steps --- */

static void step_add_extent(struct model *model) {
    for (unsigned i = 0; i < EXTENTS_MAX; i++) {
        struct model_extent *extent = &model->extents[i];
        if (extent->lease != 0)
            continue;
        extent->lease = ++model->last_lease;
        extent->granules = random_below(EXTENT_MAX / HEAP_GRANULE) + 1;
        extent->memory = address_in(extent->lease, 0);
        extent->is = calloc(extent->granules, sizeof *extent->is);
        assert_non_null(extent->is);
        assert_int_equal(
            stream_heap_add_extent(model->stream_heap, extent->lease, extent->granules * HEAP_GRANULE), 0);
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
    int r = stream_heap_take(model->stream_heap, size, &piece);
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
    assert_ptr_equal(piece->stream_heap, model->stream_heap);
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
        pthread_mutex_lock(&model->stream_heap->lock);
        stream_heap_forget_piece_locked(model->stream_heap, piece, FENCE_NONE);
        pthread_mutex_unlock(&model->stream_heap->lock);
        return;
    }
    struct model_extent *extent = extent_at(model, piece->memory);
    turn(extent, (uint64_t)(piece->memory - extent->memory), piece->capacity_bytes, FIRST_PIECE + number,
         FREE);
    stream_heap_give(piece);
}

static void step_shrink(struct model *model, const struct model_piece *drawn, unsigned number) {
    struct piece *piece = drawn->piece;
    uint64_t capacity = piece->capacity_bytes;

    if (drawn->split_off || capacity == HEAP_GRANULE)
        return;
    uint64_t kept = (random_below(capacity / HEAP_GRANULE - 1) + 1) * HEAP_GRANULE;
    struct model_extent *extent = extent_at(model, piece->memory);
    uint64_t offset = (uint64_t)(piece->memory - extent->memory);
    pthread_mutex_lock(&model->stream_heap->lock);
    assert_int_equal(stream_heap_shrink_locked(piece, kept), 0);
    pthread_mutex_unlock(&model->stream_heap->lock);
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
    pthread_mutex_lock(&model->stream_heap->lock);
    stream_heap_split_off_locked(piece, ++model->last_lease, 99);
    pthread_mutex_unlock(&model->stream_heap->lock);
    assert_true(piece->split_off);
    assert_int_equal(piece->lease, model->last_lease);
    assert_int_equal(piece->lease_generation, 99);
    assert_ptr_equal(piece->memory, memory); /* the buffer lives on */
    drawn->split_off = true;
}

/* Returns whether there was something. */
static bool step_reclaim(struct model *model, uint64_t minimum_bytes) {
    struct stream_heap_part part;

    if (model->n_out == OUT_MAX)
        return false;
    if (!stream_heap_reclaim(model->stream_heap, minimum_bytes, &part)) {
        for (unsigned i = 0; i < EXTENTS_MAX; i++)
            if (model->extents[i].lease != 0) {
                assert_true(longest_free_bytes(&model->extents[i]) < minimum_bytes);
                assert_true(extent_is_all(&model->extents[i], ABSENT, ABSENT) ||
                            !extent_is_all(&model->extents[i], FREE, ABSENT));
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
    if (!part.has_fence) {
        extent->n_out++;
        model->out[model->n_out++] = part;
    }
    extent_look(extent);
    return true;
}

/* The fence of a part is left, or cannot be. */
static void step_settle(struct model *model, bool may_return) {
    if (model->n_out == 0)
        return;
    unsigned which = (unsigned)random_below(model->n_out);
    struct stream_heap_part part = model->out[which];
    struct model_extent *extent = extent_of(model, part.lease);

    model->out[which] = model->out[--model->n_out];
    extent->n_out--;
    if (may_return && random_below(2) == 0) {
        stream_heap_return_part(&part);
        turn(extent, part.offset_bytes, part.size_bytes, ABSENT, FREE);
        model->returns++;
    } else {
        stream_heap_fence_part(&part);
    }
    extent_look(extent);
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
    case 5:
        step_settle(model, true);
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

static void run_history(uint64_t seed, unsigned *returns) {
    struct model *model = calloc(1, sizeof *model);

    assert_non_null(model);
    random_state = seed * 77 + 5;
    model->stream_heap = make_stream_heap();
    for (unsigned i = 0; i < STEPS; i++) {
        step(model);
        if (i % 8 != 0)
            continue;
        assert_true(stream_heap_is_valid(model->stream_heap));
        assert_int_equal(stream_heap_free_bytes(model->stream_heap), model_free_bytes(model));
        assert_int_equal(stream_heap_extents(model->stream_heap), model_extents(model));
    }
    /* when everything is back, everything can go */
    for (unsigned i = 0; i < PIECES_MAX; i++)
        if (model->pieces[i].piece != NULL)
            step_give(model, &model->pieces[i], i);
    do
        while (model->n_out > 0)
            step_settle(model, false);
    while (step_reclaim(model, EXTENT_MAX));
    assert_true(stream_heap_is_valid(model->stream_heap));
    assert_int_equal(model_extents(model), 0);
    assert_true(list_is_empty(&model->stream_heap->extents));
    assert_int_equal(stream_heap_held_bytes_locked(model->stream_heap), 0);
    *returns += model->returns;
    model->stream_heap = stream_heap_free(model->stream_heap);
    free(model);
}

static void random_histories_agree_with_a_model_of_every_granule(void **state) {
    unsigned returns = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_history(seed, &returns);
    assert_true(returns > SEEDS); /* the histories were of what they are about */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_agree_with_a_model_of_every_granule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
