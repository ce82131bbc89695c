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
#define PART_BYTES           (2 * MIB) /* what is done with mapped handles without a look at them in between */

void operation_free(struct operation *operation) {
    sim_range_unref(operation->to_range);
    sim_range_unref(operation->from_range);
    free(operation);
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

static void do_part(const struct operation *operation, uint64_t offset_bytes, uint64_t size_bytes) {
    char *to = (char *)operation->to + offset_bytes;

    if (operation->kind == OPERATION_COPY)
        memmove(to, (const char *)operation->from + offset_bytes, size_bytes);
    else if (operation->value == 0 && operation->to_range->kind != SIM_RANGE_HOST)
        zero(to, size_bytes);
    else
        memset(to, (int)operation->value, size_bytes);
}

static bool is_mapped_handle(const struct sim_range *range) {
    return range != NULL && range->kind == SIM_RANGE_VMM;
}

/* Whether the device may use a part of both sides now, as far as they are mapped handles. */
static bool reaches(const struct operation *operation, uint64_t offset_bytes, uint64_t size_bytes) {
    return (!is_mapped_handle(operation->to_range) ||
            sim_vmm_reaches(operation->physical, (const char *)operation->to + offset_bytes, size_bytes,
                            GPU_ACCESS_READ_WRITE)) &&
           (!is_mapped_handle(operation->from_range) ||
            sim_vmm_reaches(operation->physical, (const char *)operation->from + offset_bytes, size_bytes,
                            GPU_ACCESS_READ));
}

/* With mapped handles: they may be taken away between any two parts. */
static void do_in_parts(const struct operation *operation) {
    for (uint64_t offset = 0; offset < operation->size_bytes; offset += PART_BYTES) {
        uint64_t left = operation->size_bytes - offset, part = left < PART_BYTES ? left : PART_BYTES;

        sim_vmm_use_begin();
        bool is_reached = reaches(operation, offset, part);
        if (is_reached)
            do_part(operation, offset, part);
        sim_vmm_use_end();
        if (!is_reached) {
            sim_vmm_fault(operation->physical);
            return;
        }
    }
}

/* Writes the word (OPERATION_WRITE64), or looks at it once. Returns whether it has the value by then. A
 * mapping that was taken away ends the device, and the wait. */
static bool word_has_value(const struct operation *operation) {
    bool is_handle = is_mapped_handle(operation->to_range), has_value = true;
    uint64_t *word = operation->to;

    if (is_handle)
        sim_vmm_use_begin();
    bool is_reached = reaches(operation, 0, sizeof(*word));
    if (is_reached && operation->kind == OPERATION_WRITE64)
        __atomic_store_n(word, operation->value, __ATOMIC_RELEASE);
    else if (is_reached) /* The device compares cyclically too, by CU_STREAM_WAIT_VALUE_GEQ. */
        has_value = (int64_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - operation->value) >= 0;
    if (is_handle)
        sim_vmm_use_end();
    if (!is_reached)
        sim_vmm_fault(operation->physical);
    return has_value;
}

static void do_word(const struct operation *operation) {
    uint64_t pause_ns = WAIT_NS_MIN;

    while (!word_has_value(operation)) {
        nanosleep(&(struct timespec){.tv_nsec = (long)pause_ns}, NULL);
        pause_ns = 2 * pause_ns < WAIT_NS_MAX ? 2 * pause_ns : WAIT_NS_MAX;
    }
}

void operation_do(const struct operation *operation) {
    if (sim_vmm_has_faulted(operation->physical))
        return;
    switch (operation->kind) {
    case OPERATION_WRITE64:
    case OPERATION_WAIT64:
        do_word(operation);
        return;
    case OPERATION_SET:
    case OPERATION_COPY:
        if (is_mapped_handle(operation->to_range) || is_mapped_handle(operation->from_range))
            do_in_parts(operation);
        else
            do_part(operation, 0, operation->size_bytes);
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

/* Whether a word lies in host memory by a handle that the device may use. */
static bool is_host_handle(unsigned physical, const struct sim_range *range, const uint64_t *word) {
    if (!is_mapped_handle(range))
        return false;
    sim_vmm_use_begin();
    bool is_host =
        sim_vmm_is_host(word) && sim_vmm_reaches(physical, word, sizeof(*word), GPU_ACCESS_READ_WRITE);
    sim_vmm_use_end();
    return is_host;
}

int operation_make_word(enum operation_kind kind, unsigned physical, uint64_t *word, uint64_t value,
                        struct operation **ret_operation) {
    if (word == NULL || (uintptr_t)word % sizeof(*word) != 0)
        return GPU_ERROR_INVALID_VALUE;
    _cleanup_(sim_range_unrefp) struct sim_range *range = sim_range_find(word);
    /* A word that is aligned lies in the range as a whole. */
    if (range == NULL || (range->kind != SIM_RANGE_HOST && !is_host_handle(physical, range, word)))
        return GPU_ERROR_INVALID_VALUE;
    return operation_make(
        &(struct operation){
            .kind = kind, .physical = physical, .to = word, .to_range = take_ptr(&range), .value = value},
        ret_operation);
}

static bool reaches_now(unsigned physical, const void *start, uint64_t size_bytes, enum gpu_access access) {
    sim_vmm_use_begin();
    bool is_reached = sim_vmm_reaches(physical, start, size_bytes, access);
    sim_vmm_use_end();
    return is_reached;
}

/* Checks one side of an operation. *ret_range gets a reference, or NULL for unregistered host memory. */
static int side_get(unsigned physical, const void *start, uint64_t size_bytes, enum gpu_access access,
                    struct sim_range **ret_range) {
    _cleanup_(sim_range_unrefp) struct sim_range *range = sim_range_find(start);

    if (is_mapped_handle(range)) {
        if (!reaches_now(physical, start, size_bytes, access))
            return GPU_ERROR_INVALID_VALUE;
        *ret_range = take_ptr(&range);
        return 0;
    }
    if (range != NULL) {
        if (size_bytes > range->size_bytes - ((uintptr_t)start - range->start))
            return GPU_ERROR_INVALID_VALUE;
        *ret_range = take_ptr(&range);
        return 0;
    }
    if (start == NULL || sim_range_touches(start, size_bytes) || !sim_is_mapped(start, size_bytes) ||
        sim_is_reserved(start, size_bytes))
        return GPU_ERROR_INVALID_VALUE;
    *ret_range = NULL;
    return 0;
}

int operation_make_set(unsigned physical, void *memory, uint8_t byte, uint64_t size_bytes,
                       struct operation **ret_operation) {
    struct sim_range *range;
    int r = side_get(physical, memory, size_bytes, GPU_ACCESS_READ_WRITE, &range);

    if (r != 0)
        return r;
    if (range == NULL) /* the device cannot reach it */
        return GPU_ERROR_INVALID_VALUE;
    return operation_make(&(struct operation){.kind = OPERATION_SET,
                                              .physical = physical,
                                              .to = memory,
                                              .to_range = range,
                                              .value = byte,
                                              .size_bytes = size_bytes},
                          ret_operation);
}

int operation_make_copy(unsigned physical, void *to, const void *from, uint64_t size_bytes,
                        struct operation **ret_operation) {
    _cleanup_(sim_range_unrefp) struct sim_range *to_range = NULL;
    struct sim_range *from_range;
    int r = side_get(physical, to, size_bytes, GPU_ACCESS_READ_WRITE, &to_range);

    if (r == 0)
        r = side_get(physical, from, size_bytes, GPU_ACCESS_READ, &from_range);
    if (r != 0)
        return r;
    return operation_make(&(struct operation){.kind = OPERATION_COPY,
                                              .physical = physical,
                                              .to = to,
                                              .from = from,
                                              .to_range = take_ptr(&to_range),
                                              .from_range = from_range,
                                              .size_bytes = size_bytes},
                          ret_operation);
}
