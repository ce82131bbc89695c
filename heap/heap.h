/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEAP_HEAP_H
#define HEAP_HEAP_H
/*
 * The range allocator: cuts spans (a daemon's segments, a client's extents) into ranges and joins them again.
 * It never touches the memory that it deals in: a range is an offset and a size, and all bookkeeping is in
 * nodes of its own.
 *
 * Search is a two-level segregated good fit (Masmano et al., TLSF, 2004): the class of a size is its power of
 * two, divided linearly into HEAP_SUBCLASSES. The search looks at two classes: first the request's own, whose
 * members may fit, then the first class whose members surely fit, which a bitmap finds in constant time. It
 * takes the smallest of the first HEAP_CHOICE_MAX members. To take any member of a class that surely fits
 * needed up to a seventh more memory, on traces of programs' allocations. (Taking what lies lowest instead
 * spoils as much memory, and has to look at far more ranges.) Where only the request's own class is left, up
 * to HEAP_SCAN_MAX of its members are looked at. Freed ranges are joined with free neighbours at once.
 *
 * Among the members of a class, a range that is the whole of its span is taken last: it could also go back to
 * where it came from.
 *
 * A span may be closed for a time. Its free ranges count as free and join, and a caller that walks the span
 * can claim them, but no search finds them.
 *
 * Invariants (heap_is_valid): the ranges of a span tile it without gap or overlap; no two neighbours are both
 * free; every free range of a span that is not closed is in the list of its class, and the bitmaps say so;
 * free_bytes + taken_bytes is the sum of spans.
 *
 * Not thread-safe: the owner locks.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

/* Every offset and size is a multiple of this. 512 is what CUDA aligns allocations to in practice and what
 * PyTorch's caching allocator rounds to; it also satisfies O_DIRECT on common disks. */
#define HEAP_GRANULE UINT64_C(512)

/* 32 linear classes in each power of two: a good fit wastes no search on more than 1/32 of the size. */
#define HEAP_SUBCLASSES 32u
#define HEAP_CLASSES    64u
#define HEAP_CHOICE_MAX 16u
#define HEAP_SCAN_MAX   64u

/* Largest span: 2^56 bytes leaves room for sums of many spans in 64 bits. */
#define HEAP_SPAN_MAX (UINT64_C(1) << 56)

/* The bytes that a request of so many takes. */
static inline uint64_t heap_round_up(uint64_t size) {
    return (size + HEAP_GRANULE - 1) / HEAP_GRANULE * HEAP_GRANULE;
}

struct heap;
struct heap_span;

/* One range of a span. The heap owns the node; offset, size and span are the heap's and may be read; user and
 * user_link are the owner's for as long as the range is taken (user is NULL and user_link unlinked when it is
 * handed out; user_link must be unlinked when it is given back). */
struct heap_range {
    uint64_t offset, size;
    struct heap_span *span;
    bool free;
    uint32_t record; /* the owner's, as user; 0 when it is handed out */
    void *user;
    struct list user_link;
    /* below: the heap's own */
    struct heap_range *lower, *upper; /* neighbours by address in the span */
    struct list class_link; /* in its class's list while free; in the heap's spare nodes while unused */
};

/* One contiguous piece of memory that the heap deals in. user is the owner's (a segment, an extent). */
struct heap_span {
    struct heap *heap;
    uint64_t number; /* in the order in which they were added */
    uint64_t size;
    uint64_t taken_bytes; /* 0: the whole span is free */
    void *user;
    bool is_closed;
    struct heap_range *lowest; /* the range at offset 0 */
    struct heap_range *highest;
    struct heap_range *found;  /* near what heap_range_at() found last; NULL: nothing yet */
    struct list link;          /* in heap->spans */
};

struct heap {
    struct list spans;
    uint64_t free_bytes, taken_bytes;
    uint64_t taken_ranges;
    uint64_t next_number;
    uint64_t class_bitmap;
    uint32_t subclass_bitmap[HEAP_CLASSES];
    struct list classes[HEAP_CLASSES][HEAP_SUBCLASSES];
    struct list spare_nodes;
    void *node_chunks; /* chunks that nodes are carved from, freed by heap_deinit */
};

/* Makes an empty heap in caller's memory. Allocates nothing, cannot fail. */
void heap_init(struct heap *heap);

/* Frees all bookkeeping, whatever is still taken. Accepts a zeroed heap that was never initialised. */
void heap_deinit(struct heap *heap);

/* Adds a span of size bytes (a positive multiple of HEAP_GRANULE, at most HEAP_SPAN_MAX), all free. user is
 * borrowed. Returns 0, -EINVAL or -ENOMEM; *ret_span is untouched on failure and owned by the heap on
 * success. */
int heap_add_span(struct heap *heap, uint64_t size, void *user, struct heap_span **ret_span);

/* Removes a span that is wholly free (asserted). Its free range leaves the lists; the node is destroyed. */
void heap_remove_span(struct heap_span *span);

/* Closes a span, or opens it again: see above. Linear in the ranges of the span; cannot fail. Nothing is done
 * where it is so already. */
void heap_close_span(struct heap_span *span);
void heap_open_span(struct heap_span *span);

/* Takes a range of size bytes, rounded up to HEAP_GRANULE, whose offset is a multiple of alignment (a power
 * of two, at least HEAP_GRANULE; pass HEAP_GRANULE where no more is asked). Constant time. Returns 0, -EINVAL
 * (size 0 or too large, alignment), -ENOSPC (no free range fits), -ENOMEM (no node). */
int heap_take(struct heap *heap, uint64_t size, uint64_t alignment, struct heap_range **ret_range);

/* Takes a range that is free, whole, without a search: one that the caller found by walking its span. user is
 * NULL and user_link unlinked. Constant time, cannot fail. */
void heap_claim(struct heap_range *range);

/* As heap_claim(), for a part of a free range: what is left of it on either side stays free. Returns 0, or
 * -ENOMEM (nothing changed). Constant time. */
int heap_claim_part(struct heap_range *range, uint64_t offset, uint64_t size, struct heap_range **ret_range);

/* The range of a span that an offset is in; NULL: it is beyond the span. Walks the span from what was found
 * last, or from the end that is nearer: what is looked for in order takes a step each. */
struct heap_range *heap_range_at(struct heap_span *span, uint64_t offset);

/* Splits a taken range at a distance from its start (a multiple of HEAP_GRANULE, inside the range). The range
 * keeps the lower part; *ret_upper gets the upper one, taken as well, with user NULL and user_link unlinked.
 * Returns 0, -EINVAL or -ENOMEM (nothing changed). Constant time. */
int heap_split(struct heap_range *range, uint64_t distance, struct heap_range **ret_upper);

/* Joins a taken range with the one above it in its span, which has to be taken too and in no list (asserted):
 * that node is gone afterwards. Constant time, cannot fail. */
void heap_join(struct heap_range *range);

/* Makes a span larger, at its end, by so many bytes, which are taken: *ret_range. Constant time.
 * Returns 0, -EINVAL or -ENOMEM (nothing changed). */
int heap_extend_span(struct heap_span *span, uint64_t size, struct heap_range **ret_range);

/* Gives a taken range back and joins it with free neighbours. The node is gone afterwards. Constant time,
 * cannot fail. Double frees are the caller's to prevent; they are asserted where the node is still alive. */
void heap_give(struct heap_range *range);

/* Whether heap_take() would find a range of size bytes (1 or more). Constant time. */
bool heap_has(struct heap *heap, uint64_t size);

/* Size of the largest free range, 0 when there is none. Looks at one class list: at most as long as that
 * list. */
uint64_t heap_largest_free(const struct heap *heap);

/* Whether a range of that size may be free somewhere: false is certain, true is a guess that is off by one
 * class at most. Constant time. */
bool heap_may_have(const struct heap *heap, uint64_t size);

/* Walks everything and checks the invariants above. For tests and on demand: linear. */
bool heap_is_valid(const struct heap *heap);

#endif
