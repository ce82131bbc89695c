/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_FNV_H
#define BASE_FNV_H
/*
 * FNV-1a of 64 bits, http://www.isthe.com/chongo/tech/comp/fnv: a hash for tables and for telling layouts apart.
 * No guard against anybody who wants two hashes to be equal.
 */
#include <stddef.h>
#include <stdint.h>

#define FNV_FIRST UINT64_C(0xcbf29ce484222325)

/* Goes on with a hash over size bytes; the first one is FNV_FIRST. */
static inline uint64_t fnv_hash(uint64_t hash, const void *bytes, size_t size) {
    const uint8_t *at = bytes;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
