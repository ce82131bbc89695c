/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/transfer.h"

#include <assert.h>
#include <stdlib.h>

#include "base/lock.h"

void transfer_init(struct transfer *transfer) {
    *transfer = (struct transfer){0};
    lock_init_brief(&transfer->lock);
}

static void magazines_free(struct magazine *first) {
    while (first != NULL) {
        struct magazine *magazine = first;
        first = magazine->next;
        free(magazine);
    }
}

void transfer_deinit(struct transfer *transfer) {
    for (unsigned i = 0; i < SIZE_CLASSES; i++)
        magazines_free(transfer->stacks[i].first);
    magazines_free(transfer->empty);
    pthread_mutex_destroy(&transfer->lock);
}

static uint32_t clamp(uint64_t value, uint32_t low, uint32_t high) {
    return value < low ? low : value > high ? high : (uint32_t)value;
}

uint32_t transfer_capacity(unsigned size_class) {
    if (size_class >= SIZE_CLASS_LARGE)
        return 1;
    return clamp(MAGAZINE_BYTES / size_class_bytes(size_class), 2, MAGAZINE_PIECES);
}

uint32_t transfer_limit(unsigned size_class) {
    if (size_class >= SIZE_CLASS_LARGE)
        return 0;
    uint64_t bytes = size_class_bytes(size_class) * transfer_capacity(size_class);
    return clamp(TRANSFER_BYTES / bytes, 1, TRANSFER_MAGAZINES);
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
static struct magazine *take(struct transfer *transfer, unsigned size_class) {
    struct transfer_stack *stack = &transfer->stacks[size_class];
    struct magazine *magazine = pop(&stack->first);

    stack->count -= magazine != NULL;
    if (stack->first == NULL)
        transfer->full[size_class / 64] &= ~(UINT64_C(1) << size_class % 64);
    return magazine;
}

struct magazine *transfer_put(struct transfer *transfer, unsigned size_class, struct magazine *full) {
    struct transfer_stack *stack = &transfer->stacks[size_class];
    struct magazine *empty = full;

    pthread_mutex_lock(&transfer->lock);
    if (full == NULL || stack->count < transfer_limit(size_class)) {
        if (full != NULL) {
            push(&stack->first, full);
            stack->count++;
            stack->touched = true;
            transfer->full[size_class / 64] |= UINT64_C(1) << size_class % 64;
        }
        empty = pop(&transfer->empty);
    }
    pthread_mutex_unlock(&transfer->lock);
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
    empty->capacity = transfer_capacity(size_class);
    return empty;
}

struct magazine *transfer_take(struct transfer *transfer, unsigned size_class, struct magazine *empty) {
    struct transfer_stack *stack = &transfer->stacks[size_class];

    pthread_mutex_lock(&transfer->lock);
    struct magazine *magazine = take(transfer, size_class);
    if (magazine != NULL) {
        stack->touched = true;
        if (empty != NULL)
            push(&transfer->empty, empty);
    }
    pthread_mutex_unlock(&transfer->lock);
    return magazine;
}

struct magazine *transfer_drain(struct transfer *transfer, bool idle_only, unsigned *size_class) {
    struct magazine *magazine = NULL;

    pthread_mutex_lock(&transfer->lock);
    while (magazine == NULL && *size_class < SIZE_CLASSES) {
        uint64_t ahead = transfer->full[*size_class / 64] >> *size_class % 64;
        struct transfer_stack *stack = &transfer->stacks[*size_class];
        if (ahead == 0 && !idle_only) {
            *size_class = (*size_class / 64 + 1) * 64;
        } else if ((ahead & 1) != 0 && !(idle_only && stack->touched)) {
            magazine = take(transfer, *size_class); /* there may be more of this class */
        } else {
            stack->touched = stack->touched && !idle_only;
            ++*size_class;
        }
    }
    pthread_mutex_unlock(&transfer->lock);
    return magazine;
}

void transfer_recycle(struct transfer *transfer, struct magazine *empty) {
    if (empty == NULL)
        return;
    assert(empty->count == 0);
    pthread_mutex_lock(&transfer->lock);
    push(&transfer->empty, empty);
    pthread_mutex_unlock(&transfer->lock);
}

void transfer_shrink(struct transfer *transfer) {
    pthread_mutex_lock(&transfer->lock);
    struct magazine *empty = transfer->empty;
    transfer->empty = NULL;
    pthread_mutex_unlock(&transfer->lock);
    magazines_free(empty);
}
