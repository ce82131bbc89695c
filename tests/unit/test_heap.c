/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold for the range allocator. Random histories run beside a reference model, which knows nothing
 * of classes: per span, a plain array of the taken ranges. After each step heap and model must agree on the
 * range that changed and on the sums; now and then on everything, with the heap's own validator.
 *
 * calloc is wrapped by the linker, so that the n-th allocation can be made to fail.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/units.h"
#include "heap/heap.h"

/* The n-th allocation from now fails, once; 0: none. */
static unsigned fail_at;
static unsigned allocations;

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

static bool allocation_fails(void) {
    allocations++;
    return fail_at != 0 && --fail_at == 0;
}

void *__wrap_calloc(size_t count, size_t size) {
    return allocation_fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_malloc(size_t size) {
    return allocation_fails() ? NULL : __real_malloc(size);
}

/* xorshift64*: the same numbers on every machine. */
static uint64_t random_state;

static uint64_t random64(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(2685821657736338717);
}

static uint64_t random_below(uint64_t bound) {
    return random64() % bound;
}

static struct heap *heap_new(void) {
    struct heap *heap = malloc(sizeof *heap);
    assert_non_null(heap);
    heap_init(heap);
    return heap;
}

static void heap_destroy(struct heap *heap) {
    heap_deinit(heap);
    free(heap);
}

static struct heap_span *add_span(struct heap *heap, uint64_t size) {
    struct heap_span *span = NULL;
    assert_int_equal(heap_add_span(heap, size, heap, &span), 0);
    assert_non_null(span);
    return span;
}

static struct heap_range *take(struct heap *heap, uint64_t size) {
    struct heap_range *range = NULL;
    assert_int_equal(heap_take(heap, size, HEAP_GRANULE, &range), 0);
    return range;
}

/* ---- directed ---- */

static void empty_heap_is_valid_and_has_nothing(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_range *range = NULL;

    assert_true(heap_is_valid(heap));
    assert_int_equal(heap_largest_free(heap), 0);
    assert_int_equal(heap_take(heap, 1, HEAP_GRANULE, &range), -ENOSPC);
    assert_null(range);
    heap_destroy(heap);

    static struct heap zeroed;
    heap_deinit(&zeroed);
    heap_deinit(&zeroed);
}

static void arguments_out_of_range_are_refused(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_span *span = NULL;
    struct heap_range *range = NULL, *upper = NULL;

    assert_int_equal(heap_add_span(heap, 0, NULL, &span), -EINVAL);
    assert_int_equal(heap_add_span(heap, 511, NULL, &span), -EINVAL);
    assert_int_equal(heap_add_span(heap, HEAP_SPAN_MAX + 512, NULL, &span), -EINVAL);
    assert_int_equal(heap_add_span(heap, UINT64_MAX - 511, NULL, &span), -EINVAL);
    assert_null(span);
    add_span(heap, MIB);

    assert_int_equal(heap_take(heap, 0, 512, &range), -EINVAL);
    assert_int_equal(heap_take(heap, HEAP_SPAN_MAX + 1, 512, &range), -EINVAL);
    assert_int_equal(heap_take(heap, UINT64_MAX, 512, &range), -EINVAL);
    assert_int_equal(heap_take(heap, 512, 0, &range), -EINVAL);
    assert_int_equal(heap_take(heap, 512, 256, &range), -EINVAL);
    assert_int_equal(heap_take(heap, 512, 1536, &range), -EINVAL);
    assert_null(range);

    range = take(heap, 4096);
    assert_int_equal(heap_split(range, 0, &upper), -EINVAL);
    assert_int_equal(heap_split(range, 100, &upper), -EINVAL);
    assert_int_equal(heap_split(range, 4096, &upper), -EINVAL);
    assert_int_equal(heap_split(range, UINT64_MAX - 511, &upper), -EINVAL);
    assert_null(upper);
    assert_int_equal(range->size, 4096);
    assert_true(heap_is_valid(heap));
    heap_destroy(heap);
}

static void largest_sizes_do_not_overflow(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_range *range = NULL, *none = NULL;
    struct heap_span *span = NULL;
    unsigned spans = 0;

    add_span(heap, HEAP_SPAN_MAX);
    assert_int_equal(heap_largest_free(heap), HEAP_SPAN_MAX);
    assert_int_equal(heap_take(heap, HEAP_SPAN_MAX, UINT64_C(1) << 63, &range), 0);
    assert_int_equal(range->size, HEAP_SPAN_MAX);
    assert_int_equal(heap_take(heap, 512, UINT64_C(1) << 63, &none), -ENOSPC);
    assert_int_equal(heap_take(heap, HEAP_SPAN_MAX, 512, &none), -ENOSPC);
    heap_give(range);
    assert_int_equal(heap_take(heap, 512, UINT64_C(1) << 63, &range), 0);
    assert_int_equal(heap_take(heap, 512, UINT64_C(1) << 63, &none), -ENOSPC);
    heap_give(range);
    assert_true(heap_is_valid(heap));

    /* The sum of all spans stays within 64 bits: one span too many is refused. */
    for (spans = 1; heap_add_span(heap, HEAP_SPAN_MAX, NULL, &span) == 0; spans++)
        assert_in_range(spans, 1, 255);
    assert_int_equal(spans, 255);
    assert_true(heap_is_valid(heap));
    heap_destroy(heap);
}

static void sizes_are_rounded_up_to_the_granule(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_span *span = add_span(heap, 4096);

    struct heap_range *a = take(heap, 1), *b = take(heap, 513);
    assert_int_equal(a->size, 512);
    assert_int_equal(b->size, 1024);
    assert_ptr_equal(a->span, span);
    assert_false(a->free);
    assert_null(a->user);
    assert_true(list_is_empty(&a->user_link));
    assert_int_equal(heap->taken_bytes, 1536);
    assert_int_equal(heap->free_bytes, 2560);
    assert_int_equal(heap->taken_ranges, 2);
    assert_int_equal(span->taken_bytes, 1536);
    heap_destroy(heap); /* with ranges taken: deinit frees all the same */
}

static void given_neighbours_join(void **state) {
    (void)state;
    /* Every order of giving four neighbours back leaves one free range. */
    for (unsigned order = 0; order < 256; order++) {
        unsigned digits[4] = {order & 3, order >> 2 & 3, order >> 4 & 3, order >> 6 & 3};
        if ((1u << digits[0] | 1u << digits[1] | 1u << digits[2] | 1u << digits[3]) != 15)
            continue;
        struct heap *heap = heap_new();
        struct heap_span *span = add_span(heap, 4 * MIB);
        struct heap_range *ranges[4];
        for (unsigned i = 0; i < 4; i++)
            ranges[i] = take(heap, MIB);
        assert_int_equal(heap->free_bytes, 0);
        assert_int_equal(heap_largest_free(heap), 0);
        for (unsigned i = 0; i < 4; i++) {
            heap_give(ranges[digits[i]]);
            assert_true(heap_is_valid(heap));
        }
        assert_int_equal(heap_largest_free(heap), 4 * MIB);
        assert_int_equal(span->taken_bytes, 0);
        heap_remove_span(span);
        assert_true(heap_is_valid(heap));
        assert_int_equal(heap->free_bytes, 0);
        heap_destroy(heap);
    }
}

static void exact_fit_is_found(void **state) {
    (void)state;
    /* A free range of just the size serves it, whatever class the size begins or ends. */
    for (uint64_t size = 512; size <= 4 * MIB; size += size < 64 * KIB ? 512 : 64 * KIB - 512) {
        struct heap *heap = heap_new();
        uint64_t rounded = (size + 511) / 512 * 512;
        add_span(heap, rounded);
        struct heap_range *range = take(heap, size);
        assert_int_equal(range->size, rounded);
        assert_int_equal(heap->free_bytes, 0);
        assert_true(heap_is_valid(heap));
        heap_destroy(heap);
    }
}

static void smaller_fitting_class_is_preferred(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_span *large = add_span(heap, GIB), *small = add_span(heap, 2 * MIB),
                     *other = add_span(heap, GIB);
    struct heap_range *range = take(heap, 2 * MIB);
    assert_ptr_equal(range->span, small);
    assert_int_equal(large->taken_bytes + other->taken_bytes, 0);
    heap_destroy(heap);
}

static void spans_do_not_join(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_range *range = NULL;
    add_span(heap, MIB);
    add_span(heap, MIB);
    assert_int_equal(heap_take(heap, 2 * MIB, HEAP_GRANULE, &range), -ENOSPC);
    assert_int_equal(heap_largest_free(heap), MIB);
    heap_destroy(heap);
}

static void alignment_is_kept_and_the_surplus_stays_free(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_range *aligned = NULL;
    add_span(heap, 16 * MIB);
    struct heap_range *first = take(heap, 512);

    assert_int_equal(heap_take(heap, MIB, 2 * MIB, &aligned), 0);
    assert_int_equal(aligned->offset, 2 * MIB);
    assert_int_equal(aligned->size, MIB);
    assert_true(heap_is_valid(heap));
    assert_int_equal(heap->free_bytes, 16 * MIB - MIB - 512);
    assert_true(aligned->lower->free && aligned->upper->free);
    assert_int_equal(aligned->lower->size, 2 * MIB - 512);
    heap_give(aligned);
    heap_give(first);
    assert_int_equal(heap_largest_free(heap), 16 * MIB);
    heap_destroy(heap);
}

static void aligned_range_without_surplus_is_found(void **state) {
    (void)state;
    /* Nothing is as large as size + alignment, yet the range fits as it lies. */
    struct heap *heap = heap_new();
    struct heap_range *range = NULL, *none = NULL;
    add_span(heap, 2 * MIB);
    assert_int_equal(heap_take(heap, 2 * MIB, 2 * MIB, &range), 0);
    assert_int_equal(range->offset, 0);
    heap_give(range);
    /* The only free range begins off the alignment and is too short behind it. */
    struct heap_range *first = take(heap, 512);
    assert_int_equal(heap_take(heap, MIB + 512, MIB, &none), -ENOSPC);
    assert_int_equal(heap_take(heap, MIB, MIB, &range), 0);
    assert_int_equal(range->offset, MIB);
    assert_true(heap_is_valid(heap));
    heap_give(first);
    heap_destroy(heap);
}

static void split_parts_are_ranges_of_their_own(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_span *span = add_span(heap, MIB);
    struct heap_range *range = take(heap, 8192), *upper = NULL, *middle = NULL;
    int owner;

    range->user = &owner;
    assert_int_equal(heap_split(range, 6144, &upper), 0);
    assert_int_equal(heap_split(range, 2048, &middle), 0);
    assert_ptr_equal(range->user, &owner);
    assert_null(upper->user);
    assert_true(list_is_empty(&middle->user_link));
    assert_int_equal(range->size, 2048);
    assert_int_equal(middle->offset, range->offset + 2048);
    assert_int_equal(middle->size, 4096);
    assert_int_equal(upper->offset, range->offset + 6144);
    assert_int_equal(upper->size, 2048);
    assert_int_equal(heap->taken_ranges, 3);
    assert_int_equal(heap->taken_bytes, 8192);
    assert_true(heap_is_valid(heap));
    heap_give(middle);
    assert_true(heap_is_valid(heap));
    assert_int_equal(heap->taken_bytes, 4096);
    heap_give(range);
    heap_give(upper);
    assert_int_equal(span->taken_bytes, 0);
    assert_int_equal(heap_largest_free(heap), MIB);
    heap_destroy(heap);
}

/* Makes `count` free ranges of one size, each fenced by a taken granule, in a span that has nothing else
 * free. */
static void make_free_ranges(struct heap *heap, unsigned count, uint64_t size) {
    struct heap_range **ranges = calloc(count, sizeof *ranges);
    assert_non_null(ranges);
    add_span(heap, count * (size + HEAP_GRANULE));
    for (unsigned i = 0; i < count; i++) {
        ranges[i] = take(heap, size + HEAP_GRANULE);
        struct heap_range *fence = NULL;
        assert_int_equal(heap_split(ranges[i], size, &fence), 0);
    }
    for (unsigned i = 0; i < count; i++)
        heap_give(ranges[i]);
    free(ranges);
}

static void search_in_a_class_is_bounded(void **state) {
    (void)state;
    /* 1 MiB and 1 MiB + 512 are of one class (a class there is 32 KiB wide). One member fits; whether it is
     * found depends on how many that do not fit were freed after it, and HEAP_SCAN_MAX is where that changes.
     */
    for (unsigned after = HEAP_SCAN_MAX - 3; after <= HEAP_SCAN_MAX + 3; after++) {
        struct heap *heap = heap_new();
        struct heap_range *range = NULL;
        /* The fitting one enters the list first, so that it is the last to be looked at. */
        struct heap_span *fitting = add_span(heap, MIB + 512);
        make_free_ranges(heap, after, MIB);
        assert_int_equal(fitting->taken_bytes, 0);
        int r = heap_take(heap, MIB + 512, HEAP_GRANULE, &range);
        assert_int_equal(r, after < HEAP_SCAN_MAX ? 0 : -ENOSPC);
        assert_true(heap_is_valid(heap));
        heap_destroy(heap);
    }
}

static void higher_class_is_found_past_a_crowded_one(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    make_free_ranges(heap, 4 * HEAP_SCAN_MAX, MIB);
    struct heap_range *range = NULL;
    assert_int_equal(heap_take(heap, MIB + 512, HEAP_GRANULE, &range), -ENOSPC);
    /* With an alignment too: the range at offset 0 would do, and was freed before all others. */
    assert_int_equal(heap_take(heap, MIB, 64 * MIB, &range), -ENOSPC);
    struct heap_span *span = add_span(heap, 8 * MIB);
    assert_int_equal(heap_take(heap, MIB + 512, HEAP_GRANULE, &range), 0);
    assert_ptr_equal(range->span, span);
    assert_int_equal(heap_take(heap, MIB + 512, 2 * MIB, &range), 0);
    assert_ptr_equal(range->span, span);
    assert_int_equal(range->offset % (2 * MIB), 0);
    assert_true(heap_is_valid(heap));
    heap_destroy(heap);
}

static void nodes_are_reused(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    add_span(heap, GIB);
    random_state = 1;
    for (unsigned round = 0; round < 2; round++) {
        struct heap_range *ranges[200];
        for (unsigned i = 0; i < 200; i++)
            ranges[i] = take(heap, 1 + random_below(MIB));
        for (unsigned i = 0; i < 200; i++)
            heap_give(ranges[i]);
        if (round == 0)
            allocations = 0; /* what the first round has allocated serves all others */
    }
    assert_int_equal(allocations, 0);
    heap_destroy(heap);
}

/* A validator that always says yes would prove nothing: each kind of damage must be seen. */
static void damage_is_seen_by_the_validator(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_span *span = add_span(heap, 16 * MIB);
    struct heap_range *a = take(heap, MIB), *b = take(heap, MIB), *c = take(heap, MIB);
    heap_give(b);
    assert_true(heap_is_valid(heap));

#define SEEN(damage, repair)                                                                                 \
    do {                                                                                                     \
        damage;                                                                                              \
        assert_false(heap_is_valid(heap));                                                                   \
        repair;                                                                                              \
        assert_true(heap_is_valid(heap));                                                                    \
    } while (0)
    SEEN(a->size += 512, a->size -= 512);
    SEEN(a->size -= 1, a->size += 1);
    SEEN(c->offset += 512, c->offset -= 512);
    SEEN(a->free = true, a->free = false);
    SEEN(b->free = false, b->free = true);
    SEEN(c->lower = a, c->lower = b);
    SEEN(a->span = NULL, a->span = span);
    SEEN(span->taken_bytes += 512, span->taken_bytes -= 512);
    SEEN(span->size += 512, span->size -= 512);
    SEEN(heap->free_bytes -= 512, heap->free_bytes += 512);
    SEEN(heap->taken_bytes -= 512, heap->taken_bytes += 512);
    SEEN(heap->taken_ranges++, heap->taken_ranges--);
    SEEN(heap->class_bitmap ^= UINT64_C(1) << 20, heap->class_bitmap ^= UINT64_C(1) << 20);
    SEEN(heap->class_bitmap ^= UINT64_C(1) << 40, heap->class_bitmap ^= UINT64_C(1) << 40);
    SEEN(heap->subclass_bitmap[20] ^= 1u, heap->subclass_bitmap[20] ^= 1u);
    SEEN(heap->subclass_bitmap[20] ^= 1u << 31, heap->subclass_bitmap[20] ^= 1u << 31);
    struct list *class = b->class_link.previous;
    SEEN((list_remove(&b->class_link)), (list_append(class, &b->class_link)));
    /* A node that is nowhere. */
    struct heap_range *spare = container_of(heap->spare_nodes.next, struct heap_range, class_link);
    SEEN(list_remove(&spare->class_link), list_prepend(&heap->spare_nodes, &spare->class_link));
#undef SEEN
    heap_destroy(heap);
}

/* ---- allocation failure ---- */

struct sums {
    uint64_t free_bytes, taken_bytes, taken_ranges, largest;
};

static struct sums sums_of(const struct heap *heap) {
    return (struct sums){heap->free_bytes, heap->taken_bytes, heap->taken_ranges, heap_largest_free(heap)};
}

static void assert_unchanged(const struct heap *heap, struct sums before) {
    struct sums after = sums_of(heap);
    assert_true(heap_is_valid(heap));
    assert_memory_equal(&after, &before, sizeof after);
}

/* Runs a history in which each verb needs nodes, with the n-th allocation failing; what failed is done again.
 * Returns how many allocations failed. */
static unsigned history_with_failure(unsigned n) {
    struct heap *heap = heap_new();
    struct heap_range *ranges[400];
    unsigned failures = 0, count = 0;

    fail_at = n;
    for (unsigned i = 0; i < 3; i++) {
        struct heap_span *span = NULL;
        struct sums before = sums_of(heap);
        int r;
        while ((r = heap_add_span(heap, 64 * MIB, NULL, &span)) == -ENOMEM) {
            assert_null(span);
            assert_unchanged(heap, before);
            failures++;
        }
        assert_int_equal(r, 0);
    }
    random_state = 99;
    while (count + 1 < sizeof ranges / sizeof *ranges) {
        struct heap_range *range = NULL, *upper = NULL;
        struct sums before = sums_of(heap);
        uint64_t size = 512 + random_below(64 * KIB), alignment = HEAP_GRANULE << random_below(10);
        int r;
        while ((r = heap_take(heap, size, alignment, &range)) == -ENOMEM) {
            assert_null(range);
            assert_unchanged(heap, before);
            failures++;
        }
        assert_int_equal(r, 0);
        ranges[count++] = range;
        if (range->size == HEAP_GRANULE || random_below(2) == 0)
            continue;
        before = sums_of(heap);
        size = range->size;
        while ((r = heap_split(range, HEAP_GRANULE, &upper)) == -ENOMEM) {
            assert_null(upper);
            assert_int_equal(range->size, size);
            assert_unchanged(heap, before);
            failures++;
        }
        assert_int_equal(r, 0);
        ranges[count++] = upper;
    }
    /* Giving needs no memory at all. */
    unsigned allocations_before = allocations;
    for (unsigned i = 0; i < count; i++)
        heap_give(ranges[i * 11 % count]); /* 11 divides neither 399 nor 400: each once */
    assert_int_equal(allocations, allocations_before);
    fail_at = 0;
    assert_true(heap_is_valid(heap));
    assert_int_equal(heap->taken_bytes, 0);
    assert_int_equal(heap->free_bytes, 3 * 64 * MIB);
    heap_destroy(heap);
    return failures;
}

static void each_failed_allocation_changes_nothing(void **state) {
    (void)state;
    unsigned n = 1;
    /* Until n is beyond the last allocation of a history, each n fails one verb, once. */
    while (history_with_failure(n) == 1)
        n++;
    assert_true(n > 8); /* three spans and the chunks of several hundred nodes */
    assert_int_equal(history_with_failure(n + 1), 0);
}

/* ---- random histories beside a model ---- */

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

/* What the gaps between the taken ranges offer a request. */
struct gaps {
    uint64_t largest;
    unsigned candidates; /* gaps of at least floor bytes */
    bool fits;           /* one of them holds the request at its alignment */
};

static struct gaps model_gaps(const struct model *model, uint64_t size, uint64_t alignment, uint64_t floor) {
    uint64_t(*places)[3] = __real_malloc((model->count + MODEL_SPANS) * sizeof *places);
    struct gaps gaps = {0};
    unsigned count = 0;

    assert_non_null(places);
    for (unsigned i = 0; i < model->count; i++, count++) {
        places[count][0] = model->taken[i].span;
        places[count][1] = model->taken[i].offset;
        places[count][2] = model->taken[i].size;
    }
    for (unsigned span = 0; span < MODEL_SPANS; span++)
        if (model->spans[span] != NULL) { /* an end mark */
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
    assert_int_equal(heap_largest_free(heap), model_gaps(model, 1, 1, 1).largest);
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
         * alignment. What fits nevertheless may be missed only in a crowd. */
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
        cmocka_unit_test(empty_heap_is_valid_and_has_nothing),
        cmocka_unit_test(arguments_out_of_range_are_refused),
        cmocka_unit_test(largest_sizes_do_not_overflow),
        cmocka_unit_test(sizes_are_rounded_up_to_the_granule),
        cmocka_unit_test(given_neighbours_join),
        cmocka_unit_test(exact_fit_is_found),
        cmocka_unit_test(smaller_fitting_class_is_preferred),
        cmocka_unit_test(spans_do_not_join),
        cmocka_unit_test(alignment_is_kept_and_the_surplus_stays_free),
        cmocka_unit_test(aligned_range_without_surplus_is_found),
        cmocka_unit_test(split_parts_are_ranges_of_their_own),
        cmocka_unit_test(search_in_a_class_is_bounded),
        cmocka_unit_test(higher_class_is_found_past_a_crowded_one),
        cmocka_unit_test(nodes_are_reused),
        cmocka_unit_test(damage_is_seen_by_the_validator),
        cmocka_unit_test(each_failed_allocation_changes_nothing),
        cmocka_unit_test(random_histories_agree_with_the_model),
        cmocka_unit_test(short_histories_agree_at_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
