/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/answering.h"

#include "client/cache/cache.h"
#include "client/cache/give_back.h"
#include "client/session/lease.h"
#include "client/session/session.h"

void answering_init(struct answering *answering) {
    pthread_mutex_init(&answering->lock, NULL);
}

void answering_deinit(struct answering *answering) {
    pthread_mutex_destroy(&answering->lock);
}

/* The number of the newest question. A session without a page has none: it counts its own, and its answers
 * are to the newest question that the daemon has sent by then. */
static uint64_t newest_question(struct cache *cache) {
    const struct proto_page *page = cache->session->page.memory;
    return page != NULL ? atomic_load_explicit(&page->shortage.asked, memory_order_acquire)
                        : atomic_load(&cache->answering.asked) + 1;
}

/* The pools that the daemon asks for: those that it marks as short, of which this process has segments
 * mapped. */
static uint64_t pools_asked_for(struct cache *cache) {
    const struct proto_page *page = cache->session->page.memory;
    uint64_t mapped = segments_pools(&cache->session->segments);
    return page == NULL ? mapped : mapped & atomic_load_explicit(&page->shortage.pools, memory_order_acquire);
}

/* Sends what both have said by now. */
static int send_locked(struct cache *cache, uint32_t pool) {
    const struct pool_answer *answer = &cache->answering.pools[pool - 1];
    struct session *session = cache->session;
    enum proto_reclaim outcome = answer->of_library;

    if (cache->purger.reclaim != NULL && answer->by_program < answer->by_library)
        outcome = PROTO_RECLAIM_PENDING;
    else if (cache->purger.reclaim != NULL && answer->of_program != PROTO_RECLAIM_NOTHING)
        outcome = answer->of_program;
    const struct proto_message message = {
        .header.operation = PROTO_RECLAIMED,
        .reclaimed = {.pool = pool,
                      .outcome = outcome,
                      .asked = session->page.memory != NULL ? answer->by_library : 0,
                      .kept_bytes = answer->kept_bytes},
    };
    return connection_tell(&session->connection, &message, connection_deadline_ns(&session->connection, 0));
}

static bool is_asked_for(struct cache *cache, uint32_t pool) {
    return (pools_asked_for(cache) & shortage_bit(pool)) != 0;
}

/* Requests wait for memory of a pool: gives back what lies idle there, keeps nothing of it from now on, and
 * closes the segments that the daemon names, if it names any. */
static int give_back(struct cache *cache, uint32_t pool, uint64_t *ret_bytes) {
    bool any;

    shortage_begin(cache, pool);
    *ret_bytes = give_back_pool(cache, pool);
    int r = lease_close_idle(cache->session, pool, 0, cache_is_busy(cache), &any);
    shortage_end_if_over(cache, pool);
    return r;
}

/* The library's part. */
static int answer(struct cache *cache, uint32_t pool, uint64_t question) {
    struct answering *answering = &cache->answering;
    struct pool_answer *own = &answering->pools[pool - 1];
    uint64_t bytes;

    int r = give_back(cache, pool, &bytes);
    if (r < 0)
        return r;
    pthread_mutex_lock(&answering->lock);
    own->by_library = question;
    own->of_library = bytes > 0 ? PROTO_RECLAIM_DONE : PROTO_RECLAIM_NOTHING;
    r = send_locked(cache, pool);
    pthread_mutex_unlock(&answering->lock);
    return r;
}

int answering_answer(struct cache *cache) {
    struct answering *answering = &cache->answering;
    const struct purger *purger = &cache->purger;
    uint64_t question = newest_question(cache);
    int r = 0;

    atomic_fetch_or(&answering->pools_asked, pools_asked_for(cache));
    atomic_store(&answering->asked, question);
    if (purger->reclaim != NULL) /* what the program releases goes back with the rest */
        purger->reclaim(purger->reclaim_argument);
    for (uint64_t pools = pools_asked_for(cache); pools != 0 && r == 0; pools &= pools - 1)
        r = answer(cache, 1 + (uint32_t)__builtin_ctzll(pools), question);
    return r;
}

void answering_give_back(struct cache *cache) {
    uint64_t bytes;
    int r = 0;

    for (uint64_t pools = pools_asked_for(cache); pools != 0 && r == 0; pools &= pools - 1)
        r = give_back(cache, 1 + (uint32_t)__builtin_ctzll(pools), &bytes);
}

/* The program's part. */
static int tell(struct cache *cache, uint32_t pool, enum proto_reclaim outcome, uint64_t kept_bytes) {
    struct answering *answering = &cache->answering;
    struct pool_answer *own = &answering->pools[pool - 1];
    uint64_t question = atomic_load(&answering->asked), bytes;
    int r = 0;

    if (outcome == PROTO_RECLAIM_DONE && is_asked_for(cache, pool)) /* else no request waits any more */
        r = give_back(cache, pool, &bytes);
    if (r < 0)
        return r;
    pthread_mutex_lock(&answering->lock);
    own->by_program = question;
    own->of_program = outcome;
    own->kept_bytes = kept_bytes;
    if (own->by_library == question && question != 0) /* else the library's answer brings it */
        r = send_locked(cache, pool);
    pthread_mutex_unlock(&answering->lock);
    return r;
}

int answering_tell(struct cache *cache, uint32_t pool, enum proto_reclaim outcome, uint64_t kept_bytes) {
    uint64_t pools = atomic_load(&cache->answering.pools_asked);
    int r = 0;

    if (pool != 0)
        pools &= shortage_bit(pool);
    for (; pools != 0 && r == 0; pools &= pools - 1)
        r = tell(cache, 1 + (uint32_t)__builtin_ctzll(pools), outcome, kept_bytes);
    return r;
}
