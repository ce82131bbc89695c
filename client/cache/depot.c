/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/depot.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "client/core/stream_heap.h"

void depot_init(struct depot *depot) {
    *depot = (struct depot){0};
    lock_init_brief(&depot->lock);
}

static void magazines_free(struct magazine *first) {
    while (first != NULL) {
        struct magazine *magazine = first;
        first = magazine->next;
        free(magazine);
    }
}

void depot_deinit(struct depot *depot) {
    for (unsigned i = 0; i < SIZE_CLASSES; i++)
        magazines_free(depot->stacks[i].first);
    magazines_free(depot->empty);
    pthread_mutex_destroy(&depot->lock);
}

static uint32_t clamp(uint64_t value, uint32_t low, uint32_t high) {
    return value < low ? low : value > high ? high : (uint32_t)value;
}

uint32_t depot_capacity(unsigned size_class) {
    if (size_class >= SIZE_CLASS_LARGE)
        return 1;
    return clamp(MAGAZINE_BYTES / size_class_bytes(size_class), 2, MAGAZINE_PIECES);
}

uint32_t depot_limit(unsigned size_class) {
    if (size_class >= SIZE_CLASS_LARGE)
        return 0;
    uint64_t bytes = size_class_bytes(size_class) * depot_capacity(size_class);
    return clamp(DEPOT_BYTES / bytes, 1, DEPOT_MAGAZINES);
}

static struct magazine *pop(struct magazine **first) {
    struct magazine *magazine = *first;
    if (magazine != NULL)
        *first = magazine->next;
    return magazine;
}

static void push(struct magazine **first, struct magazine *magazine) {
    magazine->next = *first;
    *first = magazine;
}

/* Takes a magazine off a stack, if there is one. */
static struct magazine *take(struct depot *depot, unsigned size_class) {
    struct depot_stack *stack = &depot->stacks[size_class];
    struct magazine *magazine = pop(&stack->first);

    stack->count -= magazine != NULL;
    if (stack->first == NULL)
        depot->full[size_class / 64] &= ~(UINT64_C(1) << size_class % 64);
    return magazine;
}

struct magazine *depot_put(struct depot *depot, unsigned size_class, struct magazine *full) {
    struct depot_stack *stack = &depot->stacks[size_class];
    struct magazine *empty = full;

    pthread_mutex_lock(&depot->lock);
    if (full == NULL || stack->count < depot_limit(size_class)) {
        if (full != NULL) {
            push(&stack->first, full);
            stack->count++;
            stack->touched = true;
            depot->full[size_class / 64] |= UINT64_C(1) << size_class % 64;
        }
        empty = pop(&depot->empty);
    }
    pthread_mutex_unlock(&depot->lock);
    if (empty != NULL && empty == full)
        return full;
    if (empty == NULL) {
        empty = aligned_alloc(CACHE_LINE_BYTES, sizeof *empty);
        if (empty == NULL)
            return NULL;
        empty->count = 0;
    }
    assert(empty->count == 0);
    empty->next = NULL;
    empty->capacity = depot_capacity(size_class);
    return empty;
}

struct magazine *depot_take(struct depot *depot, unsigned size_class, struct magazine *empty) {
    struct depot_stack *stack = &depot->stacks[size_class];

    pthread_mutex_lock(&depot->lock);
    struct magazine *magazine = take(depot, size_class);
    if (magazine != NULL) {
        stack->touched = true;
        if (empty != NULL)
            push(&depot->empty, empty);
    }
    pthread_mutex_unlock(&depot->lock);
    return magazine;
}

struct magazine *depot_drain(struct depot *depot, bool idle_only, unsigned *size_class) {
    struct magazine *magazine = NULL;

    pthread_mutex_lock(&depot->lock);
    while (magazine == NULL && *size_class < SIZE_CLASSES) {
        uint64_t ahead = depot->full[*size_class / 64] >> *size_class % 64;
        struct depot_stack *stack = &depot->stacks[*size_class];
        if (ahead == 0 && !idle_only) {
            *size_class = (*size_class / 64 + 1) * 64;
        } else if ((ahead & 1) != 0 && !(idle_only && stack->touched)) {
            magazine = take(depot, *size_class); /* there may be more of this class */
        } else {
            stack->touched = stack->touched && !idle_only;
            ++*size_class;
        }
    }
    pthread_mutex_unlock(&depot->lock);
    return magazine;
}

void depot_recycle(struct depot *depot, struct magazine *empty) {
    if (empty == NULL)
        return;
    assert(empty->count == 0);
    pthread_mutex_lock(&depot->lock);
    push(&depot->empty, empty);
    pthread_mutex_unlock(&depot->lock);
}

void depot_shrink(struct depot *depot) {
    pthread_mutex_lock(&depot->lock);
    struct magazine *empty = depot->empty;
    depot->empty = NULL;
    pthread_mutex_unlock(&depot->lock);
    magazines_free(empty);
}

void depot_give_magazine_locked(struct stream_heap *stream_heap, struct magazine *magazine, unsigned most) {
    if (magazine == NULL)
        return;
    unsigned count = magazine->count < most ? magazine->count : most;
    /* They have lain there for long, and would be fetched one after the other. */
    for (unsigned i = 0; i < count; i++)
        __builtin_prefetch(magazine->pieces[i], 1);
    for (unsigned i = 0; i < count; i++)
        __builtin_prefetch(magazine->pieces[i]->range, 1);
    for (unsigned i = 0; i < count; i++)
        stream_heap_give_locked(stream_heap, magazine->pieces[i]);
    magazine->count -= count;
    if (magazine->count > 0)
        memmove(magazine->pieces, &magazine->pieces[count], magazine->count * sizeof *magazine->pieces);
}

void depot_flush_locked(struct stream_heap *stream_heap, bool idle_only) {
    struct magazine *magazine;
    unsigned size_class = 0;

    while ((magazine = depot_drain(stream_heap->depot, idle_only, &size_class)) != NULL) {
        depot_give_magazine_locked(stream_heap, magazine, UINT_MAX);
        depot_recycle(stream_heap->depot, magazine);
    }
    if (idle_only)
        depot_shrink(stream_heap->depot);
}
