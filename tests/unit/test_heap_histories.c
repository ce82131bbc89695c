/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of the range allocator beside a reference model, which knows nothing of classes: a plain
 * array of the taken ranges. After each step heap and model must agree on the range that changed and on the
 * sums; now and then on everything, with the heap's own validator.
 */
#include <errno.h>

#include "heap_fixture.h"

#define MODEL_SPANS  6u
#define MODEL_RANGES 1024u

struct model {
    struct heap *heap;
    struct heap_span *spans[MODEL_SPANS]; /* NULL: not there now */
    struct {
        struct heap_range *range;
        unsigned span;
        uint64_t offset, size;
    } taken[MODEL_RANGES];
    unsigned count;
    uint64_t bytes, taken_bytes;
};

static void model_insert(struct model *model, struct heap_range *range) {
    unsigned span = 0;
    while (span < MODEL_SPANS && model->spans[span] != range->span)
        span++;
    assert_in_range(span, 0, MODEL_SPANS - 1);
    assert_true(range->offset + range->size <= model->spans[span]->size);
    for (unsigned i = 0; i < model->count; i++) {
        assert_ptr_not_equal(model->taken[i].range, range);
        assert_false(model->taken[i].span == span && model->taken[i].offset < range->offset + range->size &&
                     range->offset < model->taken[i].offset + model->taken[i].size);
    }
    range->user = model; /* the next owner of the node must not see it */
    model->taken[model->count].range = range;
    model->taken[model->count].span = span;
    model->taken[model->count].offset = range->offset;
    model->taken[model->count].size = range->size;
    model->count++;
    model->taken_bytes += range->size;
}

static void model_remove(struct model *model, unsigned i) {
    model->taken_bytes -= model->taken[i].size;
    model->taken[i] = model->taken[--model->count];
}

static int by_place(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return x[0] != y[0] ? (x[0] > y[0] ? 1 : -1) : x[1] != y[1] ? (x[1] > y[1] ? 1 : -1) : 0;
}

/* The gaps between the taken ranges that a request could use. */
struct gaps {
    uint64_t largest;
    unsigned candidates; /* gaps of at least floor bytes */
    bool fits;           /* one of them holds the request at its alignment */
};

static struct gaps model_gaps(const struct model *model, uint64_t size, uint64_t alignment, uint64_t floor) {
    uint64_t(*places)[3] = malloc((model->count + MODEL_SPANS) * sizeof *places);
    struct gaps gaps = {0};
    unsigned count = 0;

    assert_non_null(places);
    for (unsigned i = 0; i < model->count; i++) {
        if (model->spans[model->taken[i].span]->is_closed)
            continue;
        places[count][0] = model->taken[i].span;
        places[count][1] = model->taken[i].offset;
        places[count++][2] = model->taken[i].size;
    }
    for (unsigned span = 0; span < MODEL_SPANS; span++)
        if (model->spans[span] != NULL && !model->spans[span]->is_closed) { /* an end mark */
            places[count][0] = span;
            places[count][1] = model->spans[span]->size;
            places[count++][2] = 0;
        }
    qsort(places, count, sizeof *places, by_place);
    uint64_t end = 0;
    for (unsigned i = 0; i < count; i++) {
        if (i > 0 && places[i][0] != places[i - 1][0])
            end = 0;
        uint64_t gap = places[i][1] - end;
        uint64_t skipped = (alignment - end % alignment) % alignment;
        if (gap > gaps.largest)
            gaps.largest = gap;
        gaps.candidates += gap >= floor;
        gaps.fits |= gap >= skipped && gap - skipped >= size;
        end = places[i][1] + places[i][2];
    }
    free(places);
    return gaps;
}

/* The heap knows of each of the model's ranges what the model knows, and of no others. */
static void assert_heap_is_the_model(const struct model *model) {
    const struct heap *heap = model->heap;
    assert_true(heap_is_valid(heap));
    for (unsigned i = 0; i < model->count; i++) {
        const struct heap_range *range = model->taken[i].range;
        assert_false(range->free);
        assert_int_equal(range->offset, model->taken[i].offset);
        assert_int_equal(range->size, model->taken[i].size);
        assert_ptr_equal(range->span, model->spans[model->taken[i].span]);
    }
    uint64_t largest = model_gaps(model, 1, 1, 1).largest;
    assert_int_equal(heap_largest_free(heap), largest);
    assert_true(largest == 0 || heap_may_have(heap, largest));
    assert_false(heap_may_have(heap, largest + largest / 16 + HEAP_GRANULE)); /* beyond the next class */
}

static uint64_t random_request(void) {
    switch (random_below(4)) {
    case 0:
        return 1 + random_below(64 * KIB);
    case 1:
        return HEAP_GRANULE << random_below(22); /* powers of two up to 1 GiB */
    case 2:
        return 1 + random_below(32 * MIB);
    default:
        return 1 +
               (random64() >> (34 + random_below(20))); /* up to 1 GiB, small ones as likely as large ones */
    }
}

static void model_take(struct model *model) {
    struct heap_range *range = NULL;
    uint64_t size = random_request(), alignment = HEAP_GRANULE;
    uint64_t rounded = (size + HEAP_GRANULE - 1) / HEAP_GRANULE * HEAP_GRANULE;

    if (random_below(4) == 0)
        alignment <<= random_below(14);
    int r = heap_take(model->heap, size, alignment, &range);
    if (r == -ENOSPC) {
        assert_null(range);
        /* Refused only where nothing surely fits: a gap of the next class would have been found, whatever the
         * alignment. A smaller gap that fits may be missed only in a crowd. */
        uint64_t sure = rounded + alignment - HEAP_GRANULE, class_width = 1;
        while (class_width * 2 * HEAP_SUBCLASSES <= rounded)
            class_width *= 2;
        struct gaps gaps = model_gaps(model, rounded, alignment, rounded / class_width * class_width);
        assert_true(gaps.largest < sure + sure / HEAP_SUBCLASSES);
        assert_true(!gaps.fits || gaps.candidates > HEAP_SCAN_MAX);
        return;
    }
    assert_int_equal(r, 0);
    assert_int_equal(range->size, rounded);
    assert_int_equal(range->offset % alignment, 0);
    assert_false(range->span->is_closed);
    assert_false(range->free);
    assert_null(range->user);
    assert_true(list_is_empty(&range->user_link));
    model_insert(model, range);
}

static void model_split(struct model *model) {
    unsigned i = (unsigned)random_below(model->count);
    struct heap_range *range = model->taken[i].range, *upper = NULL;
    uint64_t granules = range->size / HEAP_GRANULE;

    if (granules < 2)
        return;
    uint64_t distance = (1 + random_below(granules - 1)) * HEAP_GRANULE;
    assert_int_equal(heap_split(range, distance, &upper), 0);
    assert_int_equal(range->size, distance);
    assert_int_equal(upper->offset, model->taken[i].offset + distance);
    assert_ptr_equal(range->user, model);
    assert_null(upper->user);
    assert_true(list_is_empty(&upper->user_link));
    model->taken_bytes -= model->taken[i].size - distance;
    model->taken[i].size = distance;
    model_insert(model, upper);
}

static void model_toggle_span(struct model *model) {
    unsigned i = (unsigned)random_below(MODEL_SPANS);
    struct heap_span *span = model->spans[i];

    if (span == NULL) {
        uint64_t size = random_below(2) == 0 ? (1 + random_below(64)) * 2 * MIB : (1 + random_below(8)) * GIB;
        model->spans[i] = add_span(model->heap, size);
        model->bytes += size;
        return;
    }
    if (random_below(8) != 0)
        return;
    for (unsigned k = model->count; k-- > 0;)
        if (model->taken[k].span == i) {
            heap_give(model->taken[k].range);
            model_remove(model, k);
        }
    assert_int_equal(span->taken_bytes, 0);
    model->bytes -= span->size;
    heap_remove_span(span);
    model->spans[i] = NULL;
}

static void model_close_or_open(struct model *model) {
    struct heap_span *span = model->spans[random_below(MODEL_SPANS)];

    if (span != NULL && random_below(2) == 0)
        heap_close_span(span);
    else if (span != NULL)
        heap_open_span(span);
}

static void run_history(uint64_t seed, unsigned operations, unsigned full_check_every) {
    struct model *model = calloc(1, sizeof *model);
    assert_non_null(model);
    model->heap = heap_new();
    random_state = seed;

    for (unsigned i = 0; i < operations; i++) {
        /* Phases in which taking outweighs giving, and the other way round. */
        uint64_t taking = i / 2048 % 2 == 0 ? 60 : 40, dice = random_below(100);
        if (random_below(128) == 0)
            model_toggle_span(model);
        else if (random_below(128) == 0)
            model_close_or_open(model);
        else if (dice < taking) {
            if (model->count < MODEL_RANGES)
                model_take(model);
        } else if (model->count > 0) {
            if (dice < taking + 8 && model->count < MODEL_RANGES)
                model_split(model);
            else {
                unsigned k = (unsigned)random_below(model->count);
                heap_give(model->taken[k].range);
                model_remove(model, k);
            }
        }
        assert_int_equal(model->heap->taken_bytes, model->taken_bytes);
        assert_int_equal(model->heap->free_bytes, model->bytes - model->taken_bytes);
        assert_int_equal(model->heap->taken_ranges, model->count);
        if (i % full_check_every == 0)
            assert_heap_is_the_model(model);
    }
    while (model->count > 0) {
        heap_give(model->taken[0].range);
        model_remove(model, 0);
    }
    assert_heap_is_the_model(model);
    for (unsigned i = 0; i < MODEL_SPANS; i++)
        if (model->spans[i] != NULL) {
            assert_true(model->spans[i]->lowest->free && model->spans[i]->lowest->upper == NULL);
            heap_remove_span(model->spans[i]);
        }
    assert_true(heap_is_valid(model->heap));
    assert_int_equal(model->heap->free_bytes, 0);
    heap_destroy(model->heap);
    free(model);
}

static void random_histories_agree_with_the_model(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++)
        run_history(seed * UINT64_C(0x9e3779b97f4a7c15), 29000, 97);
}

static void short_histories_agree_at_every_step(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++)
        run_history(seed * UINT64_C(0xd1342543de82ef95), 1000, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_agree_with_the_model),
        cmocka_unit_test(short_histories_agree_at_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
