/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The range allocator's code. A node (struct heap_range) is in one of three states: spare (span NULL, in
 * spare_nodes), free (in the list of its class, unless its span is closed) or taken (in no list of the
 * heap's). Nodes are carved from
 * chunks and never go back to the C library before heap_deinit, so that giving cannot fail and a node that
 * was given back twice is still there for an assertion to look at: a spare node counts as free.
 *
 * Every verb that needs nodes gets them all before it changes anything.
 *
 * Known weakness: where every range that could fit lies in the request's own class, only HEAP_SCAN_MAX of
 * them are looked at, so that heap_take may say -ENOSPC although a later member would fit (by less than 1/32
 * of the size). With an alignment beyond the granule the same bound holds for all classes between the size
 * and the size that surely fits: there a range may be missed by more.
 */
#include "heap/heap.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NODES_PER_CHUNK 64u /* about 6 KiB: a few pages for a few hundred ranges */
#define SUBCLASS_BITS   5u
#define NO_CLASS        UINT32_MAX

_Static_assert(1u << SUBCLASS_BITS == HEAP_SUBCLASSES, "a subclass is the 5 bits below a size's highest one");
_Static_assert(HEAP_SUBCLASSES == 32, "subclass_bitmap has 32 bits");
_Static_assert(HEAP_CLASSES == 64, "class_bitmap has 64 bits");
_Static_assert(HEAP_GRANULE >= HEAP_SUBCLASSES, "the smallest size has 5 bits below its highest one");

struct node_chunk {
    struct node_chunk *next;
    struct heap_range nodes[NODES_PER_CHUNK];
};

/* Gets a node that is in no list. NULL: no memory. */
static struct heap_range *node_new(struct heap *heap) {
    if (list_is_empty(&heap->spare_nodes)) {
        struct node_chunk *chunk = calloc(1, sizeof *chunk);
        if (chunk == NULL)
            return NULL;
        chunk->next = heap->node_chunks;
        heap->node_chunks = chunk;
        for (unsigned i = 0; i < NODES_PER_CHUNK; i++) {
            chunk->nodes[i].free = true;
            list_append(&heap->spare_nodes, &chunk->nodes[i].class_link);
        }
    }
    struct heap_range *node = list_first(&heap->spare_nodes, struct heap_range, class_link);
    list_remove(&node->class_link);
    __builtin_prefetch(heap->spare_nodes.next, 1); /* where several are taken in a row */
    list_init(&node->user_link);
    node->user = NULL;
    node->record = 0;
    return node;
}

/* Makes a node spare. Accepts NULL. */
static void node_drop(struct heap *heap, struct heap_range *node) {
    if (node == NULL)
        return;
    node->span = NULL;
    node->lower = node->upper = NULL;
    node->free = true;
    list_prepend(&heap->spare_nodes,
                 &node->class_link); /* last used, first reused: it is in the CPU's cache */
}

/* Links a node into its span, above lower (NULL: it is the lowest) and below what was above that. */
static void node_link_above(struct heap_span *span, struct heap_range *lower, struct heap_range *node) {
    node->span = span;
    node->lower = lower;
    node->upper = lower != NULL ? lower->upper : span->lowest;
    if (lower != NULL)
        lower->upper = node;
    else
        span->lowest = node;
    if (node->upper != NULL)
        node->upper->lower = node;
    else
        span->highest = node;
}

static void node_unlink(struct heap_range *node) {
    if (node->lower != NULL)
        node->lower->upper = node->upper;
    else
        node->span->lowest = node->upper;
    if (node->upper != NULL)
        node->upper->lower = node->lower;
    else
        node->span->highest = node->lower;
    if (node->span->found == node)
        node->span->found = node->lower;
}

/* Classes are numbered through: power of two times HEAP_SUBCLASSES plus subclass. Larger sizes never have a
 * smaller number. */
static unsigned class_of(uint64_t size) {
    unsigned power = 63u - (unsigned)__builtin_clzll(size);
    return power << SUBCLASS_BITS | (unsigned)(size >> (power - SUBCLASS_BITS) & (HEAP_SUBCLASSES - 1));
}

/* The first class whose members are all at least so large. */
static unsigned class_that_fits(uint64_t size) {
    unsigned power = 63u - (unsigned)__builtin_clzll(size);
    return class_of(size + (UINT64_C(1) << (power - SUBCLASS_BITS)) - 1);
}

static struct list *class_list(struct heap *heap, unsigned class) {
    return &heap->classes[class >> SUBCLASS_BITS][class & (HEAP_SUBCLASSES - 1)];
}

/* The first class at or above this one that has members, or NO_CLASS. */
static unsigned class_up(const struct heap *heap, unsigned class) {
    unsigned power = class >> SUBCLASS_BITS;
    uint32_t subclasses = heap->subclass_bitmap[power] & UINT32_MAX << (class & (HEAP_SUBCLASSES - 1));
    if (subclasses == 0) {
        uint64_t powers = power == HEAP_CLASSES - 1 ? 0 : heap->class_bitmap & UINT64_MAX << (power + 1);
        if (powers == 0)
            return NO_CLASS;
        power = (unsigned)__builtin_ctzll(powers);
        subclasses = heap->subclass_bitmap[power];
    }
    return power << SUBCLASS_BITS | (unsigned)__builtin_ctz(subclasses);
}

/* The next class that has members, or NO_CLASS. */
static unsigned class_after(const struct heap *heap, unsigned class) {
    return class + 1 == HEAP_CLASSES * HEAP_SUBCLASSES ? NO_CLASS : class_up(heap, class + 1);
}

/* The first class at or below this one that has members, or NO_CLASS. */
static unsigned class_down(const struct heap *heap, unsigned class) {
    unsigned power = class >> SUBCLASS_BITS;
    uint32_t subclasses =
        heap->subclass_bitmap[power] & UINT32_MAX >> (HEAP_SUBCLASSES - 1 - (class & (HEAP_SUBCLASSES - 1)));
    if (subclasses == 0) {
        uint64_t powers = heap->class_bitmap & ((UINT64_C(1) << power) - 1);
        if (powers == 0)
            return NO_CLASS;
        power = 63u - (unsigned)__builtin_clzll(powers);
        subclasses = heap->subclass_bitmap[power];
    }
    return power << SUBCLASS_BITS | (31u - (unsigned)__builtin_clz(subclasses));
}

/* Whether a free range is all of its span. */
static bool range_is_whole(const struct heap_range *range) {
    return range->size == range->span->size;
}

/* Makes a node that is linked into its span a free range. In a class whole spans come last. */
static void range_enlist(struct heap *heap, struct heap_range *range) {
    unsigned class = class_of(range->size);
    range->free = true;
    if (range->span->is_closed) {
        list_init(&range->class_link);
        return;
    }
    if (range_is_whole(range))
        list_append(class_list(heap, class), &range->class_link);
    else
        list_prepend(class_list(heap, class), &range->class_link);
    heap->subclass_bitmap[class >> SUBCLASS_BITS] |= UINT32_C(1) << (class & (HEAP_SUBCLASSES - 1));
    heap->class_bitmap |= UINT64_C(1) << (class >> SUBCLASS_BITS);
}

/* Takes a free range out of its list. Its size is still the one that it was enlisted with. */
static void range_delist(struct heap *heap, struct heap_range *range) {
    unsigned class = class_of(range->size), power = class >> SUBCLASS_BITS;
    if (range->span->is_closed)
        return;
    list_remove(&range->class_link);
    if (!list_is_empty(class_list(heap, class)))
        return;
    heap->subclass_bitmap[power] &= ~(UINT32_C(1) << (class & (HEAP_SUBCLASSES - 1)));
    if (heap->subclass_bitmap[power] == 0)
        heap->class_bitmap &= ~(UINT64_C(1) << power);
}

static uint64_t align_up(uint64_t offset, uint64_t alignment) {
    return (offset + alignment - 1) & ~(alignment - 1);
}

static bool range_fits(const struct heap_range *range, uint64_t size, uint64_t alignment) {
    uint64_t skipped = align_up(range->offset, alignment) - range->offset;
    return skipped <= range->size && size <= range->size - skipped;
}

/* Whether a range lies before another one: in an older span, or lower in the same one. */
static bool range_comes_before(const struct heap_range *range, const struct heap_range *other) {
    return range->span == other->span ? range->offset < other->offset
                                      : range->span->number < other->span->number;
}

/* The smallest suitable member of a class, of the first few; of several the one that comes first, so that
 * what is taken lies together. One that fits exactly is taken at once. NULL: there is none. */
static struct heap_range *class_find(struct heap *heap, unsigned class, uint64_t size, uint64_t alignment,
                                     unsigned *looks_left) {
    struct heap_range *best = NULL;

    list_for_each_entry(struct heap_range, range, class_list(heap, class), class_link) {
        if (*looks_left == 0)
            break;
        (*looks_left)--;
        if ((best == NULL || range->size < best->size ||
             (range->size == best->size && range_comes_before(range, best))) &&
            range_fits(range, size, alignment)) {
            best = range;
            if (range->size == size)
                break;
        }
    }
    return best;
}

/* A suitable free range, or NULL. */
static struct heap_range *range_find(struct heap *heap, uint64_t size, uint64_t alignment) {
    uint64_t sure_size = size + alignment - HEAP_GRANULE; /* wherever the range begins */
    unsigned own = class_of(size), looks = HEAP_CHOICE_MAX;

    /* Those of its own class that fit, fit best: programs ask for the same sizes again and again. */
    struct heap_range *range = class_find(heap, own, size, alignment, &looks);
    if (range != NULL)
        return range;
    for (unsigned class = class_up(heap, class_that_fits(sure_size)); class != NO_CLASS;
         class = class_after(heap, class)) {
        looks = HEAP_CHOICE_MAX;
        range = class_find(heap, class, size, alignment, &looks);
        if (range != NULL)
            return range;
    }

    /* The other free ranges may fit. The largest first: of those the fewest fail the alignment. */
    looks = HEAP_SCAN_MAX;
    for (unsigned class = class_down(heap, class_of(sure_size));
         class != NO_CLASS && class >= own && range == NULL; class = class_down(heap, class - 1))
        range = class_find(heap, class, size, alignment, &looks);
    return range;
}

void heap_init(struct heap *heap) {
    memset(heap, 0, sizeof *heap);
    list_init(&heap->spans);
    list_init(&heap->spare_nodes);
    for (unsigned power = 0; power < HEAP_CLASSES; power++)
        for (unsigned subclass = 0; subclass < HEAP_SUBCLASSES; subclass++)
            list_init(&heap->classes[power][subclass]);
}

void heap_deinit(struct heap *heap) {
    if (heap->spans.next == NULL) /* zeroed, never initialised */
        return;
    list_for_each_entry_safe(struct heap_span, span, &heap->spans, link) {
        free(span);
    }
    for (struct node_chunk *chunk = heap->node_chunks, *next; chunk != NULL; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    memset(heap, 0, sizeof *heap);
}

int heap_add_span(struct heap *heap, uint64_t size, void *user, struct heap_span **ret_span) {
    if (size == 0 || size > HEAP_SPAN_MAX || size % HEAP_GRANULE != 0)
        return -EINVAL;
    if (size > UINT64_MAX - heap->free_bytes - heap->taken_bytes)
        return -EINVAL;

    struct heap_span *span = calloc(1, sizeof *span);
    if (span == NULL)
        return -ENOMEM;
    struct heap_range *range = node_new(heap);
    if (range == NULL) {
        free(span);
        return -ENOMEM;
    }
    span->heap = heap;
    span->number = heap->next_number++;
    span->size = size;
    span->user = user;
    list_append(&heap->spans, &span->link);

    range->offset = 0;
    range->size = size;
    node_link_above(span, NULL, range);
    range_enlist(heap, range);
    heap->free_bytes += size;
    *ret_span = span;
    return 0;
}

void heap_remove_span(struct heap_span *span) {
    struct heap *heap = span->heap;
    struct heap_range *range = span->lowest;

    assert(span->taken_bytes == 0);
    assert(range->free && range->upper == NULL && range->size == span->size);
    range_delist(heap, range);
    node_drop(heap, range);
    heap->free_bytes -= span->size;
    list_remove(&span->link);
    free(span);
}

void heap_close_span(struct heap_span *span) {
    for (struct heap_range *range = span->lowest; range != NULL && !span->is_closed; range = range->upper)
        if (range->free)
            range_delist(span->heap, range);
    span->is_closed = true;
}

void heap_open_span(struct heap_span *span) {
    if (!span->is_closed)
        return;
    span->is_closed = false;
    for (struct heap_range *range = span->lowest; range != NULL; range = range->upper)
        if (range->free)
            range_enlist(span->heap, range);
}

/* A range that has left the lists becomes its taker's. */
static void range_mark_taken(struct heap *heap, struct heap_range *range) {
    range->free = false;
    range->user = NULL;
    range->record = 0;
    list_init(&range->user_link);
    range->span->taken_bytes += range->size;
    heap->taken_bytes += range->size;
    heap->free_bytes -= range->size;
    heap->taken_ranges++;
}

int heap_take(struct heap *heap, uint64_t size, uint64_t alignment, struct heap_range **ret_range) {
    if (size == 0 || size > HEAP_SPAN_MAX)
        return -EINVAL;
    if (alignment < HEAP_GRANULE || (alignment & (alignment - 1)) != 0)
        return -EINVAL;
    size = heap_round_up(size);

    struct heap_range *range = range_find(heap, size, alignment);
    if (range == NULL)
        return -ENOSPC;
    assert(range->free && range_fits(range, size, alignment));

    uint64_t below = align_up(range->offset, alignment) - range->offset;
    uint64_t above = range->size - below - size;
    struct heap_range *lower = NULL, *upper = NULL;
    if (below > 0 && (lower = node_new(heap)) == NULL)
        return -ENOMEM;
    if (above > 0 && (upper = node_new(heap)) == NULL) {
        node_drop(heap, lower);
        return -ENOMEM;
    }

    /* The surplus on either side becomes free ranges; beyond them the neighbours are taken, there is nothing
     * to join. */
    range_delist(heap, range);
    if (lower != NULL) {
        lower->offset = range->offset;
        lower->size = below;
        node_link_above(range->span, range->lower, lower);
        range_enlist(heap, lower);
    }
    range->offset += below;
    range->size = size;
    if (upper != NULL) {
        upper->offset = range->offset + size;
        upper->size = above;
        node_link_above(range->span, range, upper);
        range_enlist(heap, upper);
    }
    range_mark_taken(heap, range);
    *ret_range = range;
    return 0;
}

bool heap_has(struct heap *heap, uint64_t size) {
    return range_find(heap, heap_round_up(size), HEAP_GRANULE) != NULL;
}

void heap_claim(struct heap_range *range) {
    assert(range->free);
    range_delist(range->span->heap, range);
    range_mark_taken(range->span->heap, range);
}

struct heap_range *heap_range_at(struct heap_span *span, uint64_t offset) {
    struct heap_range *range = span->found;

    if (offset >= span->size)
        return NULL;
    if (range == NULL || (range->offset > offset && offset < range->offset - offset))
        range = span->lowest;
    else if (range->offset < offset && span->size - offset < offset - range->offset)
        range = span->highest;
    while (range->offset > offset)
        range = range->lower;
    while (range->offset + range->size <= offset)
        range = range->upper;
    span->found = range;
    return range;
}

int heap_split(struct heap_range *range, uint64_t distance, struct heap_range **ret_upper) {
    assert(!range->free);
    if (distance == 0 || distance >= range->size || distance % HEAP_GRANULE != 0)
        return -EINVAL;

    struct heap *heap = range->span->heap;
    struct heap_range *upper = node_new(heap);
    if (upper == NULL)
        return -ENOMEM;
    upper->offset = range->offset + distance;
    upper->size = range->size - distance;
    upper->free = false;
    node_link_above(range->span, range, upper);
    range->size = distance;
    heap->taken_ranges++;
    *ret_upper = upper;
    return 0;
}

void heap_join(struct heap_range *range) {
    struct heap_range *upper = range->upper;

    assert(!range->free && upper != NULL && !upper->free && list_is_empty(&upper->user_link));
    range->size += upper->size;
    node_unlink(upper);
    range->span->heap->taken_ranges--;
    node_drop(range->span->heap, upper);
}

int heap_extend_span(struct heap_span *span, uint64_t size, struct heap_range **ret_range) {
    struct heap *heap = span->heap;

    if (size == 0 || size % HEAP_GRANULE != 0 || size > HEAP_SPAN_MAX - span->size ||
        size > UINT64_MAX - heap->free_bytes - heap->taken_bytes)
        return -EINVAL;
    struct heap_range *range = node_new(heap), *highest = span->highest;
    if (range == NULL)
        return -ENOMEM;
    range->offset = span->size;
    range->size = size;
    range->free = false;
    bool was_whole = highest->free && range_is_whole(highest);
    node_link_above(span, highest, range);
    span->size += size;
    if (was_whole) { /* to its place among those that are not */
        range_delist(heap, highest);
        range_enlist(heap, highest);
    }
    span->taken_bytes += size;
    heap->taken_bytes += size;
    heap->taken_ranges++;
    *ret_range = range;
    return 0;
}

void heap_give(struct heap_range *range) {
    assert(!range->free); /* or else it was given back before */
    assert(list_is_empty(&range->user_link));

    struct heap_span *span = range->span;
    struct heap *heap = span->heap;
    assert(span->taken_bytes >= range->size && heap->taken_ranges > 0);
    span->taken_bytes -= range->size;
    heap->taken_bytes -= range->size;
    heap->free_bytes += range->size;
    heap->taken_ranges--;

    struct heap_range *lower = range->lower, *upper = range->upper;
    if (lower != NULL && lower->free) {
        range_delist(heap, lower);
        range->offset = lower->offset;
        range->size += lower->size;
        node_unlink(lower);
        node_drop(heap, lower);
    }
    if (upper != NULL && upper->free) {
        range_delist(heap, upper);
        range->size += upper->size;
        node_unlink(upper);
        node_drop(heap, upper);
    }
    range_enlist(heap, range);
}

int heap_claim_part(struct heap_range *range, uint64_t offset, uint64_t size, struct heap_range **ret_range) {
    uint64_t before = offset - range->offset, after = range->size - before - size;
    struct heap_range *part = range, *rest;
    int r = 0;

    assert(offset >= range->offset && before + size <= range->size);
    heap_claim(range);
    if (before > 0)
        r = heap_split(range, before, &part);
    if (r == 0 && after > 0) {
        r = heap_split(part, size, &rest);
        if (r == 0)
            heap_give(rest);
        else if (before > 0)
            heap_give(part);
    }
    if (r < 0 || before > 0)
        heap_give(range);
    if (r < 0)
        return r;
    *ret_range = part;
    return 0;
}

bool heap_may_have(const struct heap *heap, uint64_t size) {
    if (size == 0 || size > HEAP_SPAN_MAX)
        return false;
    return class_up(heap, class_of(heap_round_up(size))) != NO_CLASS;
}

uint64_t heap_largest_free(const struct heap *heap) {
    unsigned class = class_down(heap, HEAP_CLASSES * HEAP_SUBCLASSES - 1);
    uint64_t largest = 0;

    if (class == NO_CLASS)
        return 0;
    list_for_each_entry(const struct heap_range, range,
                        &heap->classes[class >> SUBCLASS_BITS][class & (HEAP_SUBCLASSES - 1)], class_link) {
        if (range->size > largest)
            largest = range->size;
    }
    return largest;
}

static bool link_is_valid(const struct list *link) {
    return link->next->previous == link && link->previous->next == link;
}

/* Walks a span from its lowest range up, and adds up what it sees. */
static bool span_is_valid(const struct heap_span *span, uint64_t *free_ranges, uint64_t *listed,
                          uint64_t *taken_ranges) {
    const struct heap_range *lower = NULL;
    uint64_t offset = 0, taken_bytes = 0;
    bool has_found = span->found == NULL;

    for (const struct heap_range *range = span->lowest; range != NULL; lower = range, range = range->upper) {
        if (range->span != span || range->lower != lower || range->offset != offset || range->size == 0)
            return false;
        if (range->size % HEAP_GRANULE != 0 || range->size > span->size - offset)
            return false;
        if (range->free) {
            if ((lower != NULL && lower->free) || !link_is_valid(&range->class_link))
                return false;
            (*free_ranges)++;
            *listed += !span->is_closed;
        } else {
            taken_bytes += range->size;
            (*taken_ranges)++;
        }
        offset += range->size;
        has_found = has_found || range == span->found;
    }
    return offset == span->size && taken_bytes == span->taken_bytes && lower == span->highest && has_found;
}

/* Every member of the class's list is a free range of that class, and the bitmaps know whether there is any.
 */
static bool class_is_valid(const struct heap *heap, unsigned class, uint64_t *listed) {
    unsigned power = class >> SUBCLASS_BITS, subclass = class & (HEAP_SUBCLASSES - 1);
    const struct list *list = &heap->classes[power][subclass];

    if (list_is_empty(list) == (heap->subclass_bitmap[power] >> subclass & 1))
        return false;
    if ((heap->subclass_bitmap[power] != 0) != (heap->class_bitmap >> power & 1))
        return false;
    for (const struct list *link = list->next; link != list; link = link->next) {
        const struct heap_range *range = container_of(link, struct heap_range, class_link);
        if (!link_is_valid(link) || !range->free || range->span == NULL || range->span->heap != heap ||
            range->span->is_closed)
            return false;
        if (class_of(range->size) != class)
            return false;
        (*listed)++;
    }
    return true;
}

bool heap_is_valid(const struct heap *heap) {
    uint64_t bytes = 0, taken_bytes = 0, free_ranges = 0, to_be_listed = 0, taken_ranges = 0, listed = 0,
             nodes = 0;

    list_for_each_entry(const struct heap_span, span, &heap->spans, link) {
        if (!link_is_valid(&span->link) || span->heap != heap ||
            !span_is_valid(span, &free_ranges, &to_be_listed, &taken_ranges))
            return false;
        bytes += span->size;
        taken_bytes += span->taken_bytes;
    }
    if (taken_bytes != heap->taken_bytes || bytes - taken_bytes != heap->free_bytes ||
        taken_ranges != heap->taken_ranges)
        return false;
    for (unsigned class = 0; class < HEAP_CLASSES * HEAP_SUBCLASSES; class ++)
        if (!class_is_valid(heap, class, &listed))
            return false;
    if (listed != to_be_listed)
        return false;

    /* No node is lost: what is in no span is spare. */
    for (const struct node_chunk *chunk = heap->node_chunks; chunk != NULL; chunk = chunk->next)
        nodes += NODES_PER_CHUNK;
    list_for_each_entry(const struct heap_range, node, &heap->spare_nodes, class_link) {
        if (!link_is_valid(&node->class_link) || node->span != NULL || !node->free || nodes-- == 0)
            return false;
    }
    return nodes == free_ranges + taken_ranges;
}
