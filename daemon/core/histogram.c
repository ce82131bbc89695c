/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/histogram.h"

#include <assert.h>

#define LAST (HISTOGRAM_BUCKETS - 1)

void histogram_add(struct histogram *histogram, uint64_t began_ns, uint64_t ended_ns) {
    uint64_t ns = ended_ns > began_ns ? ended_ns - began_ns : 0;
    unsigned bucket = ns == 0 ? 0 : 64 - (unsigned)__builtin_clzll(ns);

    histogram->buckets[bucket < LAST ? bucket : LAST]++;
    histogram->count++;
    histogram->sum_ns += ns;
}

uint64_t histogram_upper_ns(unsigned bucket) {
    assert(bucket < HISTOGRAM_BUCKETS);
    return bucket == LAST ? UINT64_MAX : UINT64_C(1) << bucket;
}

uint64_t histogram_quantile_ns(const struct histogram *histogram, unsigned permille) {
    uint64_t below = 0;

    assert(permille <= 1000);
    if (histogram->count == 0)
        return 0;
    /* the rank of the one that is looked for, from 1; exact where counts stay below 2^54 */
    uint64_t rank = (histogram->count * permille + 999) / 1000;
    if (rank == 0)
        rank = 1;
    for (unsigned bucket = 0; bucket < LAST; bucket++) {
        uint64_t here = histogram->buckets[bucket];
        if (below + here < rank) {
            below += here;
            continue;
        }
        if (bucket == 0)
            return 0;
        uint64_t lower = UINT64_C(1) << (bucket - 1); /* as wide as it is high */
        return lower + (uint64_t)((double)lower * (double)(rank - below) / (double)(here + 1));
    }
    return UINT64_C(1) << (LAST - 1);
}
