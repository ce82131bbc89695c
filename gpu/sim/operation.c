/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of the simulated GPU's streams: what one is, and how it is done. Addresses are checked when an
 * operation is made, and the operation keeps the ranges that it touches: memory that is freed meanwhile stays
 * mapped until the operation is done.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "gpu/sim/operation.h"

/* A waiting stream looks at its word at these intervals, ever longer. */
#define WAIT_NS_MIN (2 * NS_PER_US)
#define WAIT_NS_MAX (200 * NS_PER_US)

#define PAGE_BYTES           UINT64_C(4096)
#define ZERO_BY_PUNCHING_MIN (1 * MIB) /* below that, writing is as quick */

void operation_free(struct operation *operation) {
    sim_range_unref(operation->to_range);
    sim_range_unref(operation->from_range);
    free(operation);
}

static void wait_for_word(const uint64_t *word, uint64_t value) {
    uint64_t pause_ns = WAIT_NS_MIN;

    /* The device compares cyclically too: CU_STREAM_WAIT_VALUE_GEQ is (int64_t)(*word - value) >= 0. */
    while ((int64_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
        nanosleep(&(struct timespec){.tv_nsec = (long)pause_ns}, NULL);
        pause_ns = 2 * pause_ns < WAIT_NS_MAX ? 2 * pause_ns : WAIT_NS_MAX;
    }
}

/* Zeroes without making the pages real: the daemon zeroes each new segment, and a simulated GPU may have more
 * memory than this machine. Memory that cannot be punched out (locked host memory) is written. */
static void zero(char *start, uint64_t size_bytes) {
    char *first = (char *)(((uintptr_t)start + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1));
    char *last = (char *)((uintptr_t)(start + size_bytes) & ~(PAGE_BYTES - 1));

    if (size_bytes < ZERO_BY_PUNCHING_MIN || madvise(first, (size_t)(last - first), MADV_REMOVE) < 0) {
        memset(start, 0, size_bytes);
        return;
    }
    memset(start, 0, (size_t)(first - start));
    memset(last, 0, (size_t)(start + size_bytes - last));
}

void operation_do(const struct operation *operation) {
    switch (operation->kind) {
    case OPERATION_WRITE64:
        __atomic_store_n((uint64_t *)operation->to, operation->value, __ATOMIC_RELEASE);
        return;
    case OPERATION_WAIT64:
        wait_for_word(operation->to, operation->value);
        return;
    case OPERATION_SET:
        if (operation->value == 0 && operation->to_range->kind != SIM_RANGE_HOST)
            zero(operation->to, operation->size_bytes);
        else
            memset(operation->to, (int)operation->value, operation->size_bytes);
        return;
    case OPERATION_COPY:
        memmove(operation->to, operation->from, operation->size_bytes);
        return;
    }
}

/* Makes an operation with the members. Takes the ranges, also on failure. */
static int operation_make(const struct operation *members, struct operation **ret_operation) {
    struct operation *operation = malloc(sizeof *operation);

    if (operation == NULL) {
        sim_range_unref(members->to_range);
        sim_range_unref(members->from_range);
        return GPU_ERROR_MEMORY_ALLOCATION;
    }
    *operation = *members;
    *ret_operation = operation;
    return 0;
}

int operation_make_word(enum operation_kind kind, uint64_t *word, uint64_t value,
                        struct operation **ret_operation) {
    if (word == NULL || (uintptr_t)word % sizeof(*word) != 0)
        return GPU_ERROR_INVALID_VALUE;
    _cleanup_(sim_range_unrefp) struct sim_range *range = sim_range_find(word);
    /* A word that is aligned lies in the range as a whole. */
    if (range == NULL || range->kind != SIM_RANGE_HOST)
        return GPU_ERROR_INVALID_VALUE;
    return operation_make(
        &(struct operation){.kind = kind, .to = word, .to_range = take_ptr(&range), .value = value},
        ret_operation);
}

/* Checks one side of an operation. *ret_range gets a reference, or NULL for unregistered host memory. */
static int side_get(const void *start, uint64_t size_bytes, struct sim_range **ret_range) {
    _cleanup_(sim_range_unrefp) struct sim_range *range = sim_range_find(start);

    if (range != NULL) {
        if (size_bytes > range->size_bytes - ((uintptr_t)start - range->start))
            return GPU_ERROR_INVALID_VALUE;
        *ret_range = take_ptr(&range);
        return 0;
    }
    if (start == NULL || sim_range_touches(start, size_bytes) || !sim_is_mapped(start, size_bytes))
        return GPU_ERROR_INVALID_VALUE;
    *ret_range = NULL;
    return 0;
}

int operation_make_set(void *memory, uint8_t byte, uint64_t size_bytes, struct operation **ret_operation) {
    struct sim_range *range;
    int r = side_get(memory, size_bytes, &range);

    if (r != 0)
        return r;
    if (range == NULL) /* the device cannot reach it */
        return GPU_ERROR_INVALID_VALUE;
    return operation_make(
        &(struct operation){
            .kind = OPERATION_SET, .to = memory, .to_range = range, .value = byte, .size_bytes = size_bytes},
        ret_operation);
}

int operation_make_copy(void *to, const void *from, uint64_t size_bytes, struct operation **ret_operation) {
    _cleanup_(sim_range_unrefp) struct sim_range *to_range = NULL;
    struct sim_range *from_range;
    int r = side_get(to, size_bytes, &to_range);

    if (r == 0)
        r = side_get(from, size_bytes, &from_range);
    if (r != 0)
        return r;
    return operation_make(&(struct operation){.kind = OPERATION_COPY,
                                              .to = to,
                                              .from = from,
                                              .to_range = take_ptr(&to_range),
                                              .from_range = from_range,
                                              .size_bytes = size_bytes},
                          ret_operation);
}
