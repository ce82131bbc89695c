/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the range allocator, case by case. */
#include <errno.h>

#include "heap_fixture.h"
#include "tests/failing_memory.h"

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
    struct heap_span *large = add_span(heap, GIB), *small = add_span(heap, 512 * KIB),
                     *other = add_span(heap, GIB);
    struct heap_range *range = take(heap, 512 * KIB);
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

static void taken_neighbours_become_one_range(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_span *span = add_span(heap, MIB);
    struct heap_range *range = take(heap, 8192), *upper = NULL;

    assert_int_equal(heap_split(range, 2048, &upper), 0);
    heap_join(range);
    assert_int_equal(range->size, 8192);
    assert_int_equal(heap->taken_ranges, 1);
    assert_int_equal(heap->taken_bytes, 8192);
    assert_true(heap_is_valid(heap));
    heap_give(range);
    assert_int_equal(span->taken_bytes, 0);
    assert_int_equal(heap_largest_free(heap), MIB);
    heap_destroy(heap);
}

static void a_span_grows_at_its_end(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_span *span = add_span(heap, MIB);
    struct heap_range *range = take(heap, 8192), *more = NULL;

    assert_int_equal(heap_extend_span(span, 0, &more), -EINVAL);
    assert_int_equal(heap_extend_span(span, 511, &more), -EINVAL);
    assert_int_equal(heap_extend_span(span, HEAP_SPAN_MAX, &more), -EINVAL);
    assert_int_equal(heap_extend_span(span, MIB, &more), 0);
    assert_int_equal(more->offset, MIB);
    assert_int_equal(more->size, MIB);
    assert_false(more->free);
    assert_int_equal(heap->taken_bytes, MIB + 8192);
    assert_true(heap_is_valid(heap));
    heap_give(more); /* and is joined with what was free at the old end */
    assert_int_equal(heap_largest_free(heap), 2 * MIB - 8192);
    assert_true(heap_is_valid(heap));
    heap_give(range);
    heap_remove_span(span);
    heap_destroy(heap);
}

/* Takes `count` ranges of one size, each fenced by a taken granule, in a span that has nothing else free. */
static struct heap_range **take_fenced_ranges(struct heap *heap, unsigned count, uint64_t size) {
    struct heap_range **ranges = calloc(count, sizeof *ranges);
    assert_non_null(ranges);
    add_span(heap, count * (size + HEAP_GRANULE));
    for (unsigned i = 0; i < count; i++) {
        ranges[i] = take(heap, size + HEAP_GRANULE);
        struct heap_range *fence = NULL;
        assert_int_equal(heap_split(ranges[i], size, &fence), 0);
    }
    return ranges;
}

static void give_ranges(struct heap_range **ranges, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        heap_give(ranges[i]);
    free(ranges);
}

static void make_free_ranges(struct heap *heap, unsigned count, uint64_t size) {
    give_ranges(take_fenced_ranges(heap, count, size), count);
}

/* Programs ask for the same sizes again and again: what one leaves is for the next, and nothing larger is
 * cut. */
static void the_best_of_a_class_is_taken(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    /* 512 KiB to 528 KiB - 512 are of one class. */
    struct heap_span *large = add_span(heap, 8 * MIB), *above = add_span(heap, 524 * KIB),
                     *best = add_span(heap, 514 * KIB), *below = add_span(heap, 513 * KIB),
                     *next = add_span(heap, 532 * KIB), *next_larger = add_span(heap, 536 * KIB);

    assert_ptr_equal(take(heap, 514 * KIB)->span, best);
    assert_ptr_equal(take(heap, 514 * KIB)->span, above);
    assert_ptr_equal(take(heap, 514 * KIB)->span, next); /* the class above, its smallest too */
    assert_ptr_equal(take(heap, 514 * KIB)->span, next_larger);
    assert_ptr_equal(take(heap, 514 * KIB)->span, large);
    assert_int_equal(below->taken_bytes, 0);
    assert_true(heap_is_valid(heap));
    heap_destroy(heap);
}

static void search_in_a_class_is_bounded(void **state) {
    (void)state;
    /* 512 KiB and 512 KiB + 512 are of one class (a class there is 16 KiB wide). One member fits; whether it
     * is found depends on how many that do not fit were freed after it, and HEAP_SCAN_MAX is where that
     * changes.
     */
    for (unsigned after = HEAP_SCAN_MAX - 3; after <= HEAP_SCAN_MAX + 3; after++) {
        struct heap *heap = heap_new();
        struct heap_range *range = NULL;
        /* The fitting one enters the list first, so that it is the last to be looked at. */
        struct heap_range **ranges = take_fenced_ranges(heap, after, MIB / 2);
        add_span(heap, MIB / 2 + 512);
        give_ranges(ranges, after);
        int r = heap_take(heap, MIB / 2 + 512, HEAP_GRANULE, &range);
        assert_int_equal(r, after < HEAP_SCAN_MAX ? 0 : -ENOSPC);
        assert_true(heap_is_valid(heap));
        heap_destroy(heap);
    }
}

static void higher_class_is_found_past_a_crowded_one(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    make_free_ranges(heap, 4 * HEAP_SCAN_MAX, MIB / 2);
    struct heap_range *range = NULL;
    assert_int_equal(heap_take(heap, MIB / 2 + 512, HEAP_GRANULE, &range), -ENOSPC);
    /* With an alignment too: the range at offset 0 would do, and was freed before all others. */
    assert_int_equal(heap_take(heap, MIB / 2, 64 * MIB, &range), -ENOSPC);
    struct heap_span *span = add_span(heap, 8 * MIB);
    assert_int_equal(heap_take(heap, MIB / 2 + 512, HEAP_GRANULE, &range), 0);
    assert_ptr_equal(range->span, span);
    assert_int_equal(heap_take(heap, MIB / 2 + 512, 2 * MIB, &range), 0);
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
    unsigned allocations = 0;
    for (unsigned round = 0; round < 2; round++) {
        struct heap_range *ranges[200];
        for (unsigned i = 0; i < 200; i++)
            ranges[i] = take(heap, 1 + random_below(MIB));
        for (unsigned i = 0; i < 200; i++)
            heap_give(ranges[i]);
        if (round == 0)
            allocations = memory_allocations(); /* what the first round has allocated serves all others */
    }
    assert_int_equal(memory_allocations(), allocations);
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

/* Runs a history in which each verb needs nodes, with the n-th allocation failing. A verb that failed is
 * called again. Returns the number of failed allocations. */
static unsigned history_with_failure(unsigned n) {
    struct heap *heap = heap_new();
    struct heap_range *ranges[400];
    unsigned failures = 0, count = 0;

    memory_fail_nth(n);
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
    unsigned allocations = memory_allocations();
    for (unsigned i = 0; i < count; i++)
        heap_give(ranges[i * 11 % count]); /* 11 divides neither 399 nor 400: each once */
    assert_int_equal(memory_allocations(), allocations);
    memory_fail_nth(0);
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

/* A span of which only a granule is taken, so that the size that is asked for stays free in it. */
static struct heap_span *add_cut_span(struct heap *heap, uint64_t free_size) {
    struct heap_span *span = add_span(heap, free_size + HEAP_GRANULE);
    struct heap_range *range = span->lowest, *rest;

    heap_claim(range);
    assert_int_equal(heap_split(range, HEAP_GRANULE, &rest), 0);
    heap_give(rest);
    assert_int_equal(span->taken_bytes, HEAP_GRANULE);
    return span;
}

static void of_ranges_that_fit_exactly_a_whole_span_is_taken_last(void **state) {
    (void)state;
    for (unsigned order = 0; order < 2; order++) { /* in which the two came back */
        struct heap *heap = heap_new();
        struct heap_span *whole = add_span(heap, 64 * MIB), *cut = add_cut_span(heap, 64 * MIB);

        for (unsigned round = 0; round < 2; round++) {
            struct heap_range *range = take(heap, 64 * MIB), *other = take(heap, 64 * MIB);
            assert_ptr_equal(range->span, cut);
            assert_ptr_equal(other->span, whole);
            heap_give(order == 0 ? other : range);
            heap_give(order == 0 ? range : other);
        }
        assert_true(heap_is_valid(heap));
        heap_destroy(heap);
    }
}

/* Taken ranges lie together. */
static void of_ranges_of_one_size_the_first_of_the_oldest_span_is_cut(void **state) {
    (void)state;
    for (unsigned first = 0; first < 4; first++) { /* that comes back */
        struct heap *heap = heap_new();
        struct heap_range *ranges[4], *fences[4];
        for (unsigned i = 0; i < 4; i++) {
            if (i % 2 == 0)
                add_span(heap, 2 * (MIB + HEAP_GRANULE));
            ranges[i] = take(heap, MIB + HEAP_GRANULE);
            assert_int_equal(heap_split(ranges[i], MIB, &fences[i]), 0);
        }
        for (unsigned i = 0; i < 4; i++)
            heap_give(ranges[(first + i) % 4]);
        for (unsigned i = 0; i < 4; i++) {
            struct heap_range *range = take(heap, MIB / 2 + HEAP_GRANULE);
            assert_ptr_equal(range->span, fences[i]->span);
            assert_int_equal(range->offset, fences[i]->offset - MIB);
        }
        assert_true(heap_is_valid(heap));
        heap_destroy(heap);
    }
}

static void many_free_spans_do_not_hide_what_is_left_of_another(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_span *cut = add_cut_span(heap, 65 * MIB);

    for (unsigned i = 0; i < HEAP_SCAN_MAX + 2; i++) /* of the same class, and too small */
        add_span(heap, 64 * MIB);
    assert_true(heap_has(heap, 65 * MIB));
    assert_ptr_equal(take(heap, 65 * MIB)->span, cut);
    assert_false(heap_has(heap, 65 * MIB));
    assert_true(heap_is_valid(heap));
    heap_destroy(heap);
}

static void what_a_heap_has_can_be_taken(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_range *range = NULL;

    assert_false(heap_has(heap, 1));
    add_span(heap, MIB);
    assert_true(heap_has(heap, MIB));
    assert_true(heap_has(heap, MIB - HEAP_GRANULE + 1)); /* it is rounded up, as what is taken */
    assert_false(heap_has(heap, MIB + 1));
    assert_int_equal(heap_take(heap, MIB + 1, HEAP_GRANULE, &range), -ENOSPC);
    range = take(heap, MIB - HEAP_GRANULE + 1);
    assert_int_equal(range->size, MIB);
    assert_false(heap_has(heap, 1));
    heap_give(range);
    assert_true(heap_has(heap, MIB));
    heap_destroy(heap);
}

static void a_part_of_a_free_range_can_be_claimed(void **state) {
    struct heap *heap = heap_new();
    struct heap_span *span;
    struct heap_range *part;

    (void)state;
    assert_int_equal(heap_add_span(heap, 8 * MIB, NULL, &span), 0);
    assert_int_equal(heap_claim_part(heap_range_at(span, 3 * MIB), 2 * MIB, 3 * MIB, &part), 0);
    assert_int_equal(part->offset, 2 * MIB);
    assert_int_equal(part->size, 3 * MIB);
    assert_false(part->free);
    assert_true(heap_range_at(span, 2 * MIB) == part);
    assert_true(heap_range_at(span, 2 * MIB - 1)->free);
    assert_true(heap_range_at(span, 5 * MIB)->free);
    assert_null(heap_range_at(span, 8 * MIB));
    assert_true(heap_is_valid(heap));
    heap_give(part);
    assert_int_equal(heap_largest_free(heap), 8 * MIB);
    assert_int_equal(heap_claim_part(heap_range_at(span, 0), 0, 8 * MIB, &part), 0);
    heap_give(part);
    assert_true(heap_is_valid(heap));
    heap_destroy(heap);
}

/* As heap_range_at(), by a walk from the lowest range on. */
static const struct heap_range *walk_to(const struct heap_span *span, uint64_t offset) {
    const struct heap_range *range = span->lowest;

    while (range != NULL && range->offset + range->size <= offset)
        range = range->upper;
    return range;
}

/* A search begins where the last one ended: ranges are joined and divided there in between. */
static void a_range_is_found_wherever_the_last_search_ended(void **state) {
    const uint64_t size = 64;
    struct heap *heap = heap_new();
    struct heap_range *ranges[64] = {0}, *part;
    struct heap_span *span;

    (void)state;
    random_state = 7;
    assert_int_equal(heap_add_span(heap, size * HEAP_GRANULE, NULL, &span), 0);
    for (unsigned i = 0; i < 20000; i++) {
        uint64_t which = random_below(size), offset = random_below(size + 2) * HEAP_GRANULE;
        assert_ptr_equal(heap_range_at(span, offset), walk_to(span, offset));
        if (ranges[which] != NULL) {
            heap_give(ranges[which]);
            ranges[which] = NULL;
        } else if (random_below(4) == 0 && heap_range_at(span, which * HEAP_GRANULE)->free) {
            assert_int_equal(heap_claim_part(heap_range_at(span, which * HEAP_GRANULE), which * HEAP_GRANULE,
                                             HEAP_GRANULE, &part),
                             0);
            ranges[which] = part;
        } else {
            (void)heap_take(heap, (1 + random_below(8)) * HEAP_GRANULE, HEAP_GRANULE, &ranges[which]);
        }
        assert_true(heap_is_valid(heap));
    }
    heap_destroy(heap);
}

static void what_is_free_in_a_closed_span_is_found_by_no_search(void **state) {
    (void)state;
    struct heap *heap = heap_new();
    struct heap_span *closed = add_span(heap, 4 * MIB), *open = add_span(heap, 2 * MIB);
    struct heap_range *range = take(heap, 4 * MIB), *other, *upper;

    assert_ptr_equal(range->span, closed);
    assert_int_equal(heap_split(range, MIB, &upper), 0);
    heap_give(range);
    heap_close_span(closed);
    heap_close_span(closed); /* once more does nothing */
    assert_true(heap_is_valid(heap));
    heap_give(upper); /* it joins all the same */
    assert_true(heap_is_valid(heap));
    assert_int_equal(heap->free_bytes, 6 * MIB);
    assert_int_equal(heap_largest_free(heap), 2 * MIB);
    assert_false(heap_has(heap, 3 * MIB));
    assert_int_equal(heap_take(heap, 3 * MIB, HEAP_GRANULE, &range), -ENOSPC);
    other = take(heap, 2 * MIB);
    assert_ptr_equal(other->span, open);
    assert_int_equal(heap_claim_part(closed->lowest, MIB, MIB, &range), 0); /* a walk finds it */
    assert_int_equal(heap_take(heap, MIB, HEAP_GRANULE, &upper), -ENOSPC);
    heap_open_span(closed);
    heap_open_span(closed);
    assert_true(heap_is_valid(heap));
    assert_int_equal(take(heap, 2 * MIB)->offset, 2 * MIB);
    heap_give(range);
    heap_close_span(open);
    heap_give(other);
    heap_remove_span(open);
    assert_true(heap_is_valid(heap));
    heap_destroy(heap);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_is_found_wherever_the_last_search_ended),
        cmocka_unit_test(a_part_of_a_free_range_can_be_claimed),
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
        cmocka_unit_test(taken_neighbours_become_one_range),
        cmocka_unit_test(a_span_grows_at_its_end),
        cmocka_unit_test(the_best_of_a_class_is_taken),
        cmocka_unit_test(search_in_a_class_is_bounded),
        cmocka_unit_test(higher_class_is_found_past_a_crowded_one),
        cmocka_unit_test(nodes_are_reused),
        cmocka_unit_test(damage_is_seen_by_the_validator),
        cmocka_unit_test(each_failed_allocation_changes_nothing),
        cmocka_unit_test(of_ranges_that_fit_exactly_a_whole_span_is_taken_last),
        cmocka_unit_test(of_ranges_of_one_size_the_first_of_the_oldest_span_is_cut),
        cmocka_unit_test(many_free_spans_do_not_hide_what_is_left_of_another),
        cmocka_unit_test(what_a_heap_has_can_be_taken),
        cmocka_unit_test(what_is_free_in_a_closed_span_is_found_by_no_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
