/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_SIZE_CLASS_H
#define CLIENT_CORE_SIZE_CLASS_H
/*
 * Size classes: what a thread cache sorts pieces by. Up to 4 KiB there is one for each 512 bytes, above that
 * eight for each power of two. Small requests take a piece of their class's full size, which wastes at most
 * 1/8 and 1/16 on average; others take what they need, and look whether a cached piece of their class happens
 * to suit them.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/units.h"
#include "heap/heap.h"

#define SIZE_CLASS_LINEAR    8u /* of one granule each */
#define SIZE_CLASS_PER_POWER 8u
#define SIZE_CLASSES         (SIZE_CLASS_LINEAR + 44u * SIZE_CLASS_PER_POWER) /* up to 2^56 bytes, PROTO_SIZE_MAX */

/* Above this a request is not rounded to its class: memory on a GPU is what users run out of. On 32
 * variations of each recorded trace (replay --vary), pools that move memory reserved 1.0445 of what was live
 * where requests of up to 1 MiB were rounded, 1.0420 up to 64 KiB, 1.0412 up to 16 KiB. Other pools reserved
 * 0.812, 0.810 and 0.812 of what PyTorch's allocator does (6 variations), but 1.04 of it for small_tensors as
 * recorded with 16 KiB, instead of 0.96. An operation took as long. */
#define SIZE_CLASS_ROUNDED_MAX (64 * KIB)

/* The first class of which the depot keeps nothing. */
#define SIZE_CLASS_LARGE 72u

/* The first class above 16 KiB. From here on a thread has pieces of one class at a time at hand: what lies in
 * bins is not joined with its neighbours, nor is the best of what is free taken from there. On the recorded
 * traces and four variations of each, pools reserved 0.82 of what PyTorch's allocator did, 2 of 40 more than
 * 1.02; where all classes up to 64 KiB were kept, 0.84 and 5; all up to 1 MiB, and bins emptied often, 0.86
 * and 4; up to 4 KiB only, 0.82 and 1, and an operation took 5 to 20 % longer. */
#define SIZE_CLASS_SINGLE 24u

/* The class of a size from 1 to PROTO_SIZE_MAX. */
static inline unsigned size_class_of(uint64_t size_bytes) {
    uint64_t granules = (size_bytes + HEAP_GRANULE - 1) / HEAP_GRANULE;
    if (granules <= SIZE_CLASS_LINEAR)
        return (unsigned)granules - 1;
    unsigned power = 63u ^ (unsigned)__builtin_clzll(granules - 1); /* 3 or more; one instruction with ^ */
    return SIZE_CLASS_LINEAR + (power - 3) * SIZE_CLASS_PER_POWER +
           (unsigned)((granules - 1) >> (power - 3) & 7);
}

/* The largest size of a class. */
static inline uint64_t size_class_bytes(unsigned size_class) {
    if (size_class < SIZE_CLASS_LINEAR)
        return (size_class + 1) * HEAP_GRANULE;
    unsigned power = (size_class - SIZE_CLASS_LINEAR) / SIZE_CLASS_PER_POWER;
    uint64_t step = (size_class - SIZE_CLASS_LINEAR) % SIZE_CLASS_PER_POWER + SIZE_CLASS_PER_POWER + 1;
    return (step << power) * HEAP_GRANULE;
}

/* The size that a request takes from the process's heap. */
static inline uint64_t size_class_round(uint64_t size_bytes) {
    if (size_bytes <= SIZE_CLASS_ROUNDED_MAX)
        return size_class_bytes(size_class_of(size_bytes));
    return heap_round_up(size_bytes);
}

/* Whether a cached piece may serve a request: one that is large enough, and wastes no more of a large request
 * than 1/64. */
static inline bool size_class_suits(uint64_t capacity_bytes, uint64_t size_bytes) {
    return capacity_bytes >= size_bytes &&
           (capacity_bytes <= SIZE_CLASS_ROUNDED_MAX || capacity_bytes - size_bytes <= capacity_bytes / 64);
}

#endif
