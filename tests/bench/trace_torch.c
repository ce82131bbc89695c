/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes that PyTorch's caching allocator would reserve for a trace, by the rules of
 * c10/cuda/CUDACachingAllocator.cpp (2.11, default settings): to compare with where there is no PyTorch.
 * Sizes are rounded up to 512 bytes. Up to 1 MiB they come from segments of 2 MiB, up to 10 MiB from segments
 * of 20 MiB, larger ones have segments of their own, rounded up to 2 MiB. The smallest free block of the
 * stream and of its kind (small, large) that fits is taken, and split when 512 bytes (small) or more than 1
 * MiB (large) are left. Free neighbours of a segment are joined. Segments are kept.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "tests/bench/trace.h"

#define ROUND_BYTES    UINT64_C(512)
#define SMALL_MAX      (1 * MIB)
#define SMALL_SEGMENT  (2 * MIB)
#define MIDDLE_LIMIT   (10 * MIB)
#define MIDDLE_SEGMENT (20 * MIB)
#define LARGE_ROUND    (2 * MIB)

struct block {
    uint64_t address, size_bytes;
    uint32_t stream;
    bool is_small, is_free;
    struct block *lower, *upper; /* in the segment */
};

/* Free blocks, by kind, stream, size, address. */
struct set {
    struct block **blocks;
    size_t count, capacity;
};

static int compare(const struct block *a, const struct block *b) {
    if (a->is_small != b->is_small)
        return a->is_small ? -1 : 1;
    if (a->stream != b->stream)
        return a->stream < b->stream ? -1 : 1;
    if (a->size_bytes != b->size_bytes)
        return a->size_bytes < b->size_bytes ? -1 : 1;
    return a->address < b->address ? -1 : a->address > b->address;
}

static size_t lower_bound(const struct set *set, const struct block *key) {
    size_t low = 0, high = set->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (compare(set->blocks[middle], key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void *must(void *memory) {
    if (memory == NULL) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    return memory;
}

static void set_insert(struct set *set, struct block *block) {
    if (set->count == set->capacity) {
        set->capacity = set->capacity == 0 ? 256 : set->capacity * 2;
        set->blocks = must(realloc(set->blocks, set->capacity * sizeof *set->blocks));
    }
    size_t at = lower_bound(set, block);
    memmove(&set->blocks[at + 1], &set->blocks[at], (set->count - at) * sizeof *set->blocks);
    set->blocks[at] = block;
    set->count++;
    block->is_free = true;
}

static void set_remove(struct set *set, struct block *block) {
    size_t at = lower_bound(set, block);
    memmove(&set->blocks[at], &set->blocks[at + 1], (set->count - at - 1) * sizeof *set->blocks);
    set->count--;
    block->is_free = false;
}

static uint64_t segment_bytes(uint64_t size_bytes) {
    if (size_bytes <= SMALL_MAX)
        return SMALL_SEGMENT;
    if (size_bytes < MIDDLE_LIMIT)
        return MIDDLE_SEGMENT;
    return (size_bytes + LARGE_ROUND - 1) / LARGE_ROUND * LARGE_ROUND;
}

static struct block *allocate(struct set *set, uint64_t size_bytes, uint32_t stream, uint64_t *reserved) {
    size_bytes = (size_bytes + ROUND_BYTES - 1) / ROUND_BYTES * ROUND_BYTES;
    struct block key = {.size_bytes = size_bytes, .stream = stream, .is_small = size_bytes <= SMALL_MAX};
    size_t at = lower_bound(set, &key);
    struct block *block = at < set->count ? set->blocks[at] : NULL;

    if (block != NULL && block->is_small == key.is_small && block->stream == stream) {
        set_remove(set, block);
    } else {
        block = must(calloc(1, sizeof *block));
        *block = key;
        block->address = *reserved;
        block->size_bytes = segment_bytes(size_bytes);
        *reserved += block->size_bytes;
    }
    uint64_t left_bytes = block->size_bytes - size_bytes;
    if (key.is_small ? left_bytes >= ROUND_BYTES : left_bytes > SMALL_MAX) {
        struct block *rest = must(calloc(1, sizeof *rest));
        *rest = *block;
        rest->address += size_bytes;
        rest->size_bytes = left_bytes;
        rest->lower = block;
        if (rest->upper != NULL)
            rest->upper->lower = rest;
        block->upper = rest;
        block->size_bytes = size_bytes;
        set_insert(set, rest);
    }
    return block;
}

/* Joins a block with its upper neighbour, which ends. */
static void join(struct block *block, struct block *upper) {
    block->size_bytes += upper->size_bytes;
    block->upper = upper->upper;
    if (block->upper != NULL)
        block->upper->lower = block;
    free(upper);
}

static void release(struct set *set, struct block *block) {
    if (block->upper != NULL && block->upper->is_free) {
        set_remove(set, block->upper);
        join(block, block->upper);
    }
    if (block->lower != NULL && block->lower->is_free) {
        struct block *lower = block->lower;
        set_remove(set, lower);
        join(lower, block);
        block = lower;
    }
    set_insert(set, block);
}

uint64_t trace_torch_model(const struct trace *trace) {
    struct block **slots = must(calloc(trace->slots + 1, sizeof *slots));
    struct set set = {0};
    uint64_t reserved_bytes = 0;

    for (size_t i = 0; i < trace->count; i++) {
        const struct trace_event *event = &trace->events[i];
        if (event->is_free) {
            release(&set, slots[event->slot]);
            slots[event->slot] = NULL;
        } else {
            slots[event->slot] = allocate(&set, event->size_bytes, event->stream, &reserved_bytes);
        }
    }
    for (uint32_t slot = 0; slot < trace->slots; slot++)
        if (slots[slot] != NULL)
            release(&set, slots[slot]);
    for (size_t i = 0; i < set.count; i++)
        free(set.blocks[i]);
    free(set.blocks);
    free(slots);
    return reserved_bytes;
}
