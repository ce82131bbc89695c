/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/whole.h"

#include <stdlib.h>

#include "base/clock.h"
#include "client/api/client.h"
#include "client/cache/give_back.h"
#include "client/cache/miss.h"
#include "client/cache/shortage.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/question.h"

/* A block that is asked for. */
struct asking {
    struct gpupool_client *client;
    const struct pool *pool;
    uint64_t bytes, deadline_ns;
    uint32_t flags;               /* PROTO_ACQUIRE_… of the request that waits */
    struct segment_grant *grants; /* room for all */
    uint32_t n_granted;
};

/* The widths of a pool's segments: large ones, halves of these, and those of one slot. Arenas ask for the first two and
 * the last. A buffer of 128 MiB in a large pool would lie in eight segments without the others, and a process that has
 * it by a name or a token imports and maps each. */
#define WIDTHS_MAX 6u
_Static_assert(PROTO_LARGE_BYTES_MAX >> (WIDTHS_MAX - 1) == PROTO_SLOT_BYTES_MAX,
               "pools with large segments have the widest slots");

/* Lists them, the widest first. Returns how many there are. */
static unsigned list_widths(const struct pool *pool, uint64_t widths[static WIDTHS_MAX]) {
    uint64_t slot_bytes = proto_slot_bytes(pool->limit_bytes);
    unsigned count = 0;

    for (uint64_t bytes = proto_large_bytes(pool->limit_bytes); bytes > slot_bytes; bytes /= 2)
        widths[count++] = bytes;
    widths[count++] = slot_bytes;
    return count;
}

/* The narrowest segments that are few enough for one lease; 0: none are. */
static uint64_t narrow_bytes(const struct pool *pool, uint64_t size_bytes) {
    uint64_t widths[WIDTHS_MAX];

    for (unsigned i = list_widths(pool, widths); i-- > 0;)
        if (size_bytes <= widths[i] * PROTO_ROW_PARTS_MAX)
            return widths[i];
    return 0;
}

uint64_t whole_bytes(const struct pool *pool, uint64_t size_bytes) {
    uint64_t width = narrow_bytes(pool, size_bytes);

    return width == 0 ? 0 : (size_bytes + width - 1) / width * width;
}

/* --- segments --- */

static int ask(struct asking *asking, uint64_t segment_bytes, uint64_t count, uint32_t flags,
               uint64_t timeout_ns) {
    const struct proto_acquire_segments acquire = {.pool = asking->pool->id,
                                                   .flags = flags,
                                                   .segment_bytes = segment_bytes,
                                                   .count = (uint32_t)count,
                                                   .timeout_ns = timeout_ns};
    struct question question =
        question_of_segments(&asking->client->session, &acquire, asking->grants + asking->n_granted);
    int r;

    do {
        r = question_ask(&question);
        if (r == 0)
            r = question_exchange(&question);
        r = question_take(&question, r);
    } while (r == QUESTION_IS_PART);
    if (r == 0)
        asking->n_granted += acquire.count;
    return r;
}

static void give_back_granted(struct asking *asking) {
    lease_give_back_segments(&asking->client->session, asking->grants, asking->n_granted);
    asking->n_granted = 0;
}

/* Asks without a wait for other processes, only for the pool to grow. */
static int ask_growing(struct asking *asking, uint64_t segment_bytes, uint64_t count) {
    return ask(asking, segment_bytes, count, PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBES,
               clock_left_ns(asking->deadline_ns));
}

/* As few segments as there can be: as wide as they fit. */
static int ask_wide(struct asking *asking) {
    uint64_t widths[WIDTHS_MAX], left = asking->bytes;
    unsigned n_widths = list_widths(asking->pool, widths);
    int r = 0;

    for (unsigned i = 0; i < n_widths && r == 0; i++) {
        uint64_t count = left / widths[i];
        if (count > 0)
            r = ask_growing(asking, widths[i], count);
        left -= count * widths[i];
    }
    if (r < 0)
        give_back_granted(asking);
    return r;
}

/* Has this process give back what it keeps idle, and asks for segments that other processes give back. */
static int ask_waiting(struct asking *asking, uint64_t segment_bytes) {
    struct gpupool_client *client = asking->client;
    struct cache *cache = &client->cache;
    bool has_purger = cache->enabled && cache->purger.runs, any_closed = false;
    uint64_t collected_bytes = 0;
    int r = 0;

    if (cache->enabled) {
        shortage_tighten(cache, asking->pool->id);
        collected_bytes = give_back_pool(cache, asking->pool->id);
    }
    uint64_t wait_ns = clock_left_ns(asking->deadline_ns);
    if (collected_bytes > 0 && wait_ns < MISS_GRACE_NS)
        wait_ns = MISS_GRACE_NS;
    if (!has_purger || wait_ns < MISS_GRACE_NS)
        r = lease_close_idle(&client->session, asking->pool->id, asking->bytes,
                             has_purger && cache_is_busy(cache), &any_closed);
    if (any_closed && wait_ns < MISS_GROWTH_NS)
        wait_ns = MISS_GROWTH_NS;
    return r < 0 ? r : ask(asking, segment_bytes, asking->bytes / segment_bytes, asking->flags, wait_ns);
}

static int ask_for_all(struct asking *asking) {
    uint64_t narrow = narrow_bytes(asking->pool, asking->bytes), widths[WIDTHS_MAX];
    bool has_wide = list_widths(asking->pool, widths) > 1 && asking->bytes >= 2 * narrow;

    int r = ask_wide(asking);
    if (miss_is_refused(r) && has_wide)
        r = ask_growing(asking, narrow, asking->bytes / narrow);
    return miss_is_refused(r) ? ask_waiting(asking, narrow) : r;
}

/* --- one lease --- */

static struct proto_lease lease_of(const struct segment_grant *grant) {
    return (struct proto_lease){.lease = grant->lease, .generation = grant->generation};
}

/* Makes one lease of those on the segments. Where that fails, all go back: each with an answer, because a MERGE of
 * which it is not known whether it was sent may have ended one of them. */
static int merge(struct asking *asking) {
    struct session *session = &asking->client->session;
    const struct proto_lease first = lease_of(&asking->grants[0]);
    uint32_t merged = 1;
    int r = 0;

    while (merged < asking->n_granted && r == 0) {
        const struct proto_lease other = lease_of(&asking->grants[merged]);
        r = lease_append(session, &first, &other, merged % LEASE_ONE_WAY_MAX == 0);
        merged += r == 0;
    }
    if (r == 0)
        return 0;
    for (uint32_t i = merged; i < asking->n_granted; i++) {
        const struct proto_lease other = lease_of(&asking->grants[i]);
        lease_give_back(session, &other);
    }
    lease_give_back(session, &first);
    return r;
}

int whole_acquire(struct gpupool_client *client, const struct pool *pool, uint64_t bytes, uint64_t timeout_ns,
                  uint32_t flags, struct own_block *ret_block) {
    uint64_t narrow = narrow_bytes(pool, bytes);
    struct asking asking = {.client = client,
                            .pool = pool,
                            .bytes = bytes,
                            .deadline_ns = clock_deadline_ns(clock_now_ns(), timeout_ns),
                            .flags = (flags & GPUPOOL_IDLE_ONLY) != 0 ? PROTO_ACQUIRE_IDLE_ONLY : 0};

    asking.grants = calloc(bytes / narrow, sizeof *asking.grants);
    if (asking.grants == NULL)
        return error_no_memory();
    int r = ask_for_all(&asking);
    if (r == 0)
        r = merge(&asking);
    if (r < 0) {
        free(asking.grants);
        return r;
    }
    *ret_block = (struct own_block){
        .lease = {.lease = asking.grants[0].lease, .generation = asking.grants[0].generation},
        .segments = asking.grants,
        .count = asking.n_granted};
    return 0;
}

void whole_free(struct own_block *block) {
    free(block->segments);
    *block = (struct own_block){0};
}

void whole_give_back(struct gpupool_client *client, struct own_block *block) {
    const struct proto_lease lease = {.lease = block->lease.lease, .generation = block->lease.generation};

    lease_give_back(&client->session, &lease);
    whole_free(block);
}
