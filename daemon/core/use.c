/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/use.h"

#include <stdbool.h>
#include <string.h>

#include "daemon/core/types.h"
#include "proto/page.h"

/* A page's counters of a pool, added up. */
struct counted {
    bool any; /* whether it says anything */
    uint64_t taken_bytes, given_bytes, hits, misses, moves;
};

static uint64_t read_once(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* Sums the lines of each pool, modulo 2^64 as they were counted. */
static void page_count(const struct proto_page *page, unsigned n_pools, struct counted *sums) {
    for (unsigned i = 0; i < PROTO_PAGE_COUNTERS; i++) {
        const struct proto_counters *line = &page->counters[i];
        uint32_t pool = atomic_load_explicit(&line->pool, memory_order_relaxed);
        if (pool == 0)
            break;
        if (pool > n_pools)
            continue;
        struct counted *sum = &sums[pool - 1];
        sum->any = true;
        sum->taken_bytes += read_once(&line->taken_bytes);
        sum->given_bytes += read_once(&line->given_bytes);
        sum->hits += read_once(&line->hits);
        sum->misses += read_once(&line->misses);
        sum->moves += read_once(&line->moves);
    }
}

/* The bytes in a session's cache, of the memory that it holds alone. Counters that were read while the client
 * went on, or that lie, can say more than there is, or less than nothing. */
static uint64_t cached_bytes(const struct counted *counted, uint64_t held_bytes) {
    uint64_t in_use = counted->taken_bytes - counted->given_bytes;
    if (!counted->any)
        return 0;
    if (in_use > INT64_MAX)
        return held_bytes;
    return in_use < held_bytes ? held_bytes - in_use : 0;
}

void use_of_session(const struct session *session, struct use *ret_uses) {
    unsigned n_pools = session->core->n_pools;
    struct counted counted[PROTO_POOLS_MAX];

    memset(counted, 0, n_pools * sizeof *counted);
    if (session->page != NULL)
        page_count(session->page, n_pools, counted);
    for (unsigned i = 0; i < n_pools; i++) {
        uint64_t cached = 0;
        /* The cache of a lost session will not be used any more. */
        if (session->state == SESSION_ACTIVE)
            cached =
                cached_bytes(&counted[i], session->pools[i].leased_bytes - session->pools[i].shared_bytes);
        ret_uses[i] = (struct use){.in_use_bytes = session->pools[i].leased_bytes - cached,
                                   .cached_bytes = cached,
                                   .hits = counted[i].hits,
                                   .misses = counted[i].misses,
                                   .moves = counted[i].moves};
    }
}

static uint64_t add_saturating(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

void use_add(struct use *sum, const struct use *use) {
    sum->in_use_bytes += use->in_use_bytes;
    sum->cached_bytes += use->cached_bytes;
    sum->hits = add_saturating(sum->hits, use->hits);
    sum->misses = add_saturating(sum->misses, use->misses);
    sum->moves = add_saturating(sum->moves, use->moves);
}

void use_of_pools(const struct core *core, struct use *ret_uses) {
    struct use uses[PROTO_POOLS_MAX];

    memset(ret_uses, 0, core->n_pools * sizeof *ret_uses);
    list_for_each_entry(const struct session, session, &core->sessions, link) {
        use_of_session(session, uses);
        for (unsigned i = 0; i < core->n_pools; i++)
            use_add(&ret_uses[i], &uses[i]);
    }
    /* Sessions that share a block hold it each; their caches have only blocks that they hold alone. */
    for (unsigned i = 0; i < core->n_pools; i++)
        ret_uses[i].in_use_bytes = core->pools[i]->leased_bytes - ret_uses[i].cached_bytes;
}
