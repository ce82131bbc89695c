/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RANDOM_H
#define TESTS_RANDOM_H
/* xorshift64* (Vigna, 2016): the same numbers on every machine. */
#include <stdint.h>

/* The state for a seed; neighbouring seeds lie far apart (splitmix64's finalizer). Never 0. */
static inline uint64_t random_seed(uint64_t seed) {
    uint64_t mixed = seed + UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
    return (mixed ^ mixed >> 31) | 1;
}

static inline uint64_t random_next(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

#endif
