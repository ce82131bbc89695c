/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/miss.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/cache/add_lease.h"
#include "client/cache/arena_addresses.h"
#include "client/cache/cache.h"
#include "client/cache/give_back.h"
#include "client/cache/miss_arena.h"
#include "client/cache/take.h"
#include "client/core/arena.h"
#include "client/core/deferred.h"
#include "client/core/extent_size.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/session.h"
#include "client/session/submit.h"

/* Memory that was just released on a stream which is through with it is there after 4 us (H200), sooner than
 * an answer from the daemon: so long is looked at it first. */
#define MOMENT_NS (10 * NS_PER_US)
/* Fences that a stream is made to wait for at a time. */
#define ORDER_MAX 32u

/* Where the daemon grants less than that of what a stream heap should have more of, the pool is nearly full.
 */
#define TIGHT_SHARE 4u
/* A request that waits for segments tries its arena again after that time, and each time after twice as long.
 * Each time it loses its place in the daemon's queue, so it does not where other processes wait. */
#define RETRY_NS (250 * NS_PER_MS)
/* Longer pieces fill more slots of an arena than they keep from other uses. */
#define LENT_SLOTS 2u

/* --- what the process has --- */

static enum acquire_event take(struct miss *miss, bool has_asked) {
    struct cache *cache = miss->cache;
    struct thread_cache *thread = thread_cache_get(cache, &cache->threads);
    int r = thread == NULL ? -ENOMEM
                           : take_piece(thread, miss->stream_heap, miss->size_bytes, has_asked, &miss->piece);

    if (r == -ENOSPC)
        return ACQUIRE_LACKS;
    return r == 0 ? ACQUIRE_HAS : miss_fail(miss, error_no_memory());
}

static enum acquire_event take_first(struct miss *miss) {
    enum acquire_event event = take(miss, false);
    bool may_collect = event == ACQUIRE_LACKS &&
                       !shortage_is_tight(&miss->cache->shortage, miss->stream_heap->pool) &&
                       take_may_collect(miss->stream_heap, miss->size_bytes);

    return may_collect ? ACQUIRE_SPREAD : event;
}

static enum acquire_event flush(struct miss *miss) {
    struct cache *cache = miss->cache;

    thread_caches_collect(&cache->threads, thread_cache_get(cache, &cache->threads), miss->stream_heap,
                          false);
    return take(miss, false);
}

static enum acquire_event look(struct miss *miss) {
    struct stream_heap *stream_heap = miss->stream_heap;
    uint64_t end_ns = clock_now_ns() + MOMENT_NS;
    bool ready = false, any;

    do {
        pthread_mutex_lock(&stream_heap->lock);
        any = stream_heap->deferred_bytes > 0;
        ready = any && deferred_settle_locked(stream_heap, UINT_MAX);
        pthread_mutex_unlock(&stream_heap->lock);
    } while (any && !ready && clock_now_ns() < end_ns);
    return ready ? ACQUIRE_HAS : ACQUIRE_LACKS;
}

static enum acquire_event retake(struct miss *miss) {
    return take(miss, true);
}

/* --- the way to more --- */

/* Whether the stream heap grows for pieces that will be split off, as others were of late. The idle memory
 * beside those goes back first. */
static bool begin_to_lend(struct cache *cache, struct stream_heap *stream_heap) {
    pthread_mutex_lock(&stream_heap->lock);
    bool lends = stream_heap->lent > 0;
    pthread_mutex_unlock(&stream_heap->lock);
    if (lends)
        give_back_lent(cache, stream_heap);
    return lends;
}

/* Whether a piece that will be split off is leased as one range, though there is an arena. There it would be
 * a row, and keep the segments that it begins and ends in from other uses. Not where the arena has as much
 * free memory. */
static bool is_lent_as_range(struct stream_heap *stream_heap, uint64_t size_bytes) {
    pthread_mutex_lock(&stream_heap->lock);
    bool is_range = size_bytes <= LENT_SLOTS * stream_heap->arena->slot_bytes &&
                    size_bytes > stream_heap->heaps[STREAM_HEAP_LARGE].free_bytes;
    pthread_mutex_unlock(&stream_heap->lock);
    return is_range;
}

static bool is_served_by_arena(struct miss *miss) {
    return arena_serves(miss->cache, miss->stream_heap, heap_round_up(miss->size_bytes));
}

/* The way to an arena's memory: by the room in the pool. */
static enum acquire_event choose_arena(const struct miss *miss) {
    static const enum acquire_event events[] = {[SHORTAGE_ROOMY] = ACQUIRE_IS_PLACED,
                                                [SHORTAGE_TIGHT] = ACQUIRE_IS_TIGHT_PLACED,
                                                [SHORTAGE_SHORT] = ACQUIRE_IS_SHORT_PLACED};

    return events[shortage_room_of(&miss->cache->shortage, miss->stream_heap->pool)];
}

static enum acquire_event choose(struct miss *miss) {
    struct cache *cache = miss->cache;
    struct stream_heap *stream_heap = miss->stream_heap;

    if (shortage_is_on(&cache->shortage, stream_heap->pool))
        shortage_end_if_over(cache, stream_heap->pool);
    bool is_short = shortage_is_on(&cache->shortage, stream_heap->pool);
    bool lends = !is_short && begin_to_lend(cache, stream_heap);
    if (is_served_by_arena(miss) && !(lends && is_lent_as_range(stream_heap, miss->size_bytes)))
        return choose_arena(miss);
    return is_short ? ACQUIRE_IS_SHORT : ACQUIRE_IS_RANGE;
}

static enum acquire_event rechoose(struct miss *miss) {
    return is_served_by_arena(miss) ? choose_arena(miss) : ACQUIRE_IS_SHORT;
}

/* --- questions for a range --- */

enum acquire_event miss_ask(struct miss *miss) {
    int r = question_ask(&miss->question);
    if (r == 0)
        return ACQUIRE_HAS;
    miss->error = question_take(&miss->question, r);
    return ACQUIRE_REFUSED;
}

static enum acquire_event ask_with(struct miss *miss, const struct proto_acquire *acquire) {
    miss->question = question_of_lease(miss->session, acquire);
    return miss_ask(miss);
}

/* As much as the stream heap should have more of. Just what is needed, while a request of the process waits
 * in the pool: the rest would be cut for smaller requests, and that one could have it. */
static uint64_t wanted_bytes(struct stream_heap *stream_heap, uint64_t needed) {
    if (core_pool_waits(stream_heap->core_pool))
        return needed;
    pthread_mutex_lock(&stream_heap->lock);
    uint64_t wanted = extent_size_locked(stream_heap, needed);
    stream_heap->lent /= 2;
    pthread_mutex_unlock(&stream_heap->lock);
    return wanted;
}

/* Growth of the pool is waited for, and nothing else. */
static enum acquire_event ask(struct miss *miss) {
    uint64_t needed = cache_needs(miss->stream_heap, miss->size_bytes);

    return ask_with(miss, &(struct proto_acquire){
                              .pool = miss->pool,
                              .flags = PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBES,
                              .size_bytes = wanted_bytes(miss->stream_heap, needed),
                              .least_bytes = needed,
                              .timeout_ns = clock_left_ns(miss->deadline_ns),
                          });
}

/* A range that is free now. The pool has no room, but a client without a cache may have released more in one
 * segment than the arena can take from there. */
static enum acquire_event ask_range(struct miss *miss) {
    uint64_t needed = heap_round_up(miss->size_bytes);

    return ask_with(miss, &(struct proto_acquire){
                              .pool = miss->pool,
                              .flags = PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBES,
                              .size_bytes = needed,
                              .least_bytes = needed,
                          });
}

/* A place in what was granted beyond the piece; NULL: the piece has it all. */
static const char *rest_of_grant(const struct miss *miss) {
    const struct grant *grant = &miss->question.grant;
    const char *start = grant->memory, *end = start + grant->lease.capacity_bytes;
    const char *piece_end = miss->piece->memory + miss->piece->capacity_bytes;

    if (miss->piece->memory != start)
        return start;
    return piece_end < end ? piece_end : NULL;
}

/* Adds the extent that the daemon has granted to the stream heap. */
static enum acquire_event add(struct miss *miss) {
    struct cache *cache = miss->cache;
    const struct proto_acquire *acquire = &miss->question.acquire;
    const struct grant *grant = &miss->question.grant;
    uint64_t granted_bytes = grant->lease.capacity_bytes;

    if (granted_bytes < acquire->size_bytes / TIGHT_SHARE)
        shortage_tighten(cache, miss->pool);
    else if (granted_bytes > acquire->least_bytes && granted_bytes >= acquire->size_bytes &&
             shortage_is_tight(&cache->shortage, miss->pool))
        shortage_loosen(cache, miss->pool);
    int r = stream_heap_add_lease(cache, miss->stream_heap, grant, acquire->least_bytes, &miss->piece);
    if (r < 0)
        return miss_fail(miss, r);
    if (miss->piece == NULL)
        return ACQUIRE_LACKS;
    miss->rest = rest_of_grant(miss);
    return ACQUIRE_HAS;
}

/* The rest of what was granted may serve a request that waits, here or with what is beside it at the daemon. */
static enum acquire_event count(struct miss *miss) {
    take_count(thread_cache_get(miss->cache, &miss->cache->threads), miss->stream_heap, miss->piece);
    shortage_offer(miss->cache, miss->stream_heap, miss->rest);
    return ACQUIRE_HAS;
}

/* --- waiting --- */

/* Makes the stream heap's stream wait, on the GPU, for the streams that its deferred pieces were released on,
 * and uses those at once. False: there was nothing to be had that way. */
static bool order_deferred(struct cache *cache, struct stream_heap *stream_heap) {
    struct fence fences[ORDER_MAX];
    unsigned ordered = 0;

    if (!cache_has_order(stream_heap))
        return false;
    pthread_mutex_lock(&stream_heap->lock);
    stream_heap->ordering++; /* they stay meanwhile */
    unsigned count = deferred_fences_locked(stream_heap, fences, ORDER_MAX);
    pthread_mutex_unlock(&stream_heap->lock);
    while (ordered < count && fence_order(cache->session, fences[ordered], (unsigned)stream_heap->device,
                                          stream_heap->stream) == 0)
        ordered++;
    pthread_mutex_lock(&stream_heap->lock);
    stream_heap->ordering--;
    for (unsigned i = 0; i < ordered; i++)
        deferred_order_locked(stream_heap, fences[i]);
    pthread_mutex_unlock(&stream_heap->lock);
    return ordered > 0;
}

static bool has_now(struct stream_heap *stream_heap, uint64_t needed) {
    pthread_mutex_lock(&stream_heap->lock);
    deferred_settle_locked(stream_heap, UINT_MAX);
    bool has = stream_heap_has_locked(stream_heap, needed);
    pthread_mutex_unlock(&stream_heap->lock);
    return has;
}

/* Collects what this process has for the request. HAS: it is in the stream heap. LACKS: what is idle elsewhere
 * and could serve the request in the daemon's hands is there. */
static enum acquire_event collect_bytes(struct miss *miss, uint64_t needed, uint64_t part_bytes) {
    struct cache *cache = miss->cache;
    struct stream_heap *stream_heap = miss->stream_heap;

    if (shortage_is_on(&cache->shortage, miss->pool)) {
        if (has_now(stream_heap, needed))
            return ACQUIRE_HAS;
        if (give_back_has(cache, miss->pool)) /* a grant that came late may have left some */
            (void)give_back_pool(cache, miss->pool);
        return ACQUIRE_LACKS;
    }
    shortage_tighten(cache, miss->pool);
    if (has_now(stream_heap, needed) || (order_deferred(cache, stream_heap) && has_now(stream_heap, needed)))
        return ACQUIRE_HAS;
    miss->collected_bytes = give_back_for_request(cache, stream_heap, needed, part_bytes);
    return has_now(stream_heap, needed) ? ACQUIRE_HAS : ACQUIRE_LACKS;
}

/* In a shortage the daemon alone serves: requests of other processes may be older. */
static void enter_queue(struct miss *miss, uint64_t needed, bool is_of_segments) {
    struct core_pool *pool = miss->stream_heap->core_pool;
    bool is_short = shortage_is_on(&miss->cache->shortage, miss->pool);

    miss->collected_bytes = 0;
    miss->is_queued = true;
    pthread_mutex_lock(&pool->lock);
    core_pool_enter_locked(pool, &miss->acquire, is_short ? NULL : miss->stream_heap, needed, is_of_segments);
    pthread_mutex_unlock(&pool->lock);
}

/* A piece that a release has served it with, and that it does not use, is free again. */
static void leave_queue(struct miss *miss) {
    struct stream_heap *stream_heap = miss->stream_heap;
    struct core_pool *pool = stream_heap->core_pool;

    miss->is_queued = false;
    pthread_mutex_lock(&pool->lock);
    core_pool_leave_locked(pool, &miss->acquire);
    struct piece *piece = take_ptr(&miss->acquire.piece);
    if (piece != NULL) {
        pthread_mutex_lock(&stream_heap->lock);
        stream_heap_give_locked(stream_heap, piece);
        pthread_mutex_unlock(&stream_heap->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    shortage_offer(miss->cache, stream_heap, NULL);
}

/* Takes the piece with which a release has served the miss, if one has. All that the daemon has granted to its
 * question goes back, and a release that comes later finds no question. r: as for question_drop(). */
static bool take_turn(struct miss *miss, int r) {
    if (!acquire_may(miss->acquire.state, ACQUIRE_TURN))
        return false;
    struct core_pool *pool = miss->stream_heap->core_pool;
    pthread_mutex_lock(&pool->lock);
    miss->acquire.question_id = 0;
    miss->piece = take_ptr(&miss->acquire.piece);
    pthread_mutex_unlock(&pool->lock);
    if (miss->piece == NULL)
        return false;
    question_drop(&miss->question, r);
    (void)question_take(&miss->question, GPUPOOL_E_CANCELLED); /* of segments: earlier parts, too */
    return true;
}

/* From now on each release looks whether it serves this request. */
static enum acquire_event collect(struct miss *miss) {
    uint64_t needed = heap_round_up(miss->size_bytes);

    enter_queue(miss, needed, false);
    return collect_bytes(miss, needed, HEAP_GRANULE);
}

/* Likewise, and each release gives the daemon the segments that become free. Parts of segments that are in use
 * stay here: the next try may find a place there. */
static enum acquire_event collect_segments(struct miss *miss) {
    uint64_t needed = heap_round_up(miss->size_bytes);

    if (!miss->is_queued)
        enter_queue(miss, needed, true);
    miss->retry_ns = miss->retry_ns == 0 ? RETRY_NS : 2 * miss->retry_ns;
    enum acquire_event event = collect_bytes(miss, needed, PROTO_SLOT_BYTES_MIN);
    if (event == ACQUIRE_LACKS)
        miss->collected_bytes += give_back_stream_heap(miss->cache, miss->stream_heap, PROTO_SLOT_BYTES_MIN);
    return event;
}

/* LACKS: the daemon refused it before its time, or for good. */
static enum acquire_event retry(struct miss *miss) {
    uint64_t now_ns = clock_now_ns();

    return now_ns >= miss->retry_at_ns && now_ns < miss->deadline_ns ? ACQUIRE_HAS : ACQUIRE_LACKS;
}

/* Chooses how long the daemon is to wait. A client whose purger runs answers the daemon's questions meanwhile.
 * One without closes at once what the daemon names, if nothing else helps its own request; so does one whose
 * time would be over. */
static enum acquire_event close_before_waiting(struct miss *miss) {
    const bool has_purger = miss->cache->purger.runs;
    uint64_t left_ns = clock_left_ns(miss->deadline_ns);
    bool any_closed = false;
    int r = 0;

    miss->wait_ns = miss->collected_bytes > 0 && left_ns < MISS_GRACE_NS ? MISS_GRACE_NS : left_ns;
    if (!has_purger || miss->wait_ns < MISS_GRACE_NS)
        r = lease_close_idle(miss->session, miss->pool, miss->acquire.size_bytes,
                             has_purger && cache_is_busy(miss->cache), &any_closed);
    if (any_closed && miss->wait_ns < MISS_GROWTH_NS)
        miss->wait_ns = MISS_GROWTH_NS;
    return r < 0 ? miss_fail(miss, r) : ACQUIRE_HAS;
}

/* The daemon waits until the arena is tried again, unless the time of the request ends before, or other
 * processes wait. */
static enum acquire_event close_for_segments(struct miss *miss) {
    enum acquire_event event = close_before_waiting(miss);
    if (event != ACQUIRE_HAS)
        return event;
    bool is_last = miss->wait_ns <= miss->retry_ns || shortage_is_on(&miss->cache->shortage, miss->pool);
    if (!is_last)
        miss->wait_ns = miss->retry_ns;
    miss->retry_at_ns = clock_deadline_ns(clock_now_ns(), miss->wait_ns);
    return miss_plan_wait(miss, miss->probe | (is_last ? 0 : PROTO_ACQUIRE_PROBES));
}

/* In the daemon's queue, for just what is needed. */
static enum acquire_event wait_for_room(struct miss *miss) {
    const struct cache *cache = miss->cache;
    bool gave_back = !shortage_is_on(&cache->shortage, miss->pool) && cache->purger.reclaim == NULL;

    return ask_with(miss,
                    &(struct proto_acquire){.pool = miss->pool,
                                            .flags = miss->probe | (gave_back ? PROTO_ACQUIRE_GAVE_BACK : 0),
                                            .size_bytes = miss->acquire.size_bytes,
                                            .least_bytes = miss->acquire.size_bytes,
                                            .timeout_ns = miss->wait_ns});
}

/* --- without a cache --- */

static enum acquire_event ask_lease(struct miss *miss) {
    return ask_with(miss, &(struct proto_acquire){.pool = miss->pool,
                                                  .flags = PROTO_ACQUIRE_NO_RECLAIM |
                                                           PROTO_ACQUIRE_PROBE_ROOM | miss->probe,
                                                  .size_bytes = miss->size_bytes,
                                                  .timeout_ns = clock_left_ns(miss->deadline_ns)});
}

/* A client without a cache is never asked to close a segment. Its idle mappings may be just the room that its
 * own request lacks, so it asks by itself when the pool has no room, and then waits. */
static enum acquire_event close_lease(struct miss *miss) {
    bool any_closed;
    int r = lease_close_idle(miss->session, miss->pool, miss->size_bytes, false, &any_closed);

    return r < 0 ? miss_fail(miss, r) : ACQUIRE_HAS;
}

static enum acquire_event wait_lease(struct miss *miss) {
    return ask_with(miss, &(struct proto_acquire){.pool = miss->pool,
                                                  .flags = miss->probe,
                                                  .size_bytes = miss->size_bytes,
                                                  .timeout_ns = clock_left_ns(miss->deadline_ns)});
}

/* --- the machine --- */

/* That of a question asks it; HAS: it waits for the answer. */
static enum acquire_event (*const actions[ACQUIRE_STATES])(struct miss *miss) = {
    [ACQUIRE_TAKE] = take_first,
    [ACQUIRE_FLUSH] = flush,
    [ACQUIRE_LOOK] = look,
    [ACQUIRE_RETAKE] = retake,
    [ACQUIRE_CHOOSE] = choose,
    [ACQUIRE_ASK] = ask,
    [ACQUIRE_RECHOOSE] = rechoose,
    [ACQUIRE_ADD] = add,
    [ACQUIRE_COUNT] = count,
    [ACQUIRE_PLACE] = miss_place,
    [ACQUIRE_MOVE] = miss_move,
    [ACQUIRE_LACK] = miss_lack,
    [ACQUIRE_ASK_SEGMENTS] = miss_ask, /* LACK has prepared it */
    [ACQUIRE_NARROW] = miss_narrow,
    [ACQUIRE_UNPLACE] = miss_unplace,
    [ACQUIRE_MAP] = miss_map,
    [ACQUIRE_ASK_RANGE] = ask_range,
    [ACQUIRE_COLLECT] = collect,
    [ACQUIRE_CLOSE] = close_before_waiting,
    [ACQUIRE_WAIT] = wait_for_room,
    [ACQUIRE_COLLECT_SEGMENTS] = collect_segments,
    [ACQUIRE_CLOSE_SEGMENTS] = close_for_segments,
    [ACQUIRE_WAIT_SEGMENTS] = miss_ask, /* CLOSE_SEGMENTS has prepared it */
    [ACQUIRE_SETTLE] = miss_settle,
    [ACQUIRE_RETRY] = retry,
    [ACQUIRE_ASK_LEASE] = ask_lease,
    [ACQUIRE_CLOSE_LEASE] = close_lease,
    [ACQUIRE_WAIT_LEASE] = wait_lease,
};

static void go(struct miss *miss, enum acquire_event event) {
    miss->acquire.state = acquire_next(miss->acquire.state, event);
    if (miss->is_queued && acquire_leaves_queue(miss->acquire.state))
        leave_queue(miss);
}

/* Goes on until the daemon is to be asked, or the acquire ends. */
static int run(struct miss *miss) {
    while (miss->acquire.state != ACQUIRE_DONE && miss->acquire.state != ACQUIRE_FAILED) {
        enum acquire_event event =
            take_turn(miss, GPUPOOL_E_CANCELLED) ? ACQUIRE_TURN : actions[miss->acquire.state](miss);
        if (event == ACQUIRE_HAS && acquire_asks(miss->acquire.state))
            return MISS_WAITS;
        go(miss, event);
    }
    miss_forget(miss);
    return miss->acquire.state == ACQUIRE_DONE ? 0 : miss->error;
}

int miss_begin(struct miss *miss, struct session *session, struct cache *cache, const struct pool *pool,
               uint64_t size_bytes, void *stream, uint64_t timeout_ns, uint32_t probe) {
    *miss = (struct miss){.acquire.state = cache != NULL ? ACQUIRE_TAKE : ACQUIRE_ASK_LEASE,
                          .session = session,
                          .cache = cache,
                          .pool = pool->id,
                          .probe = probe,
                          .size_bytes = size_bytes,
                          .deadline_ns = clock_deadline_ns(clock_now_ns(), timeout_ns)};
    int r = cache != NULL ? cache_stream_heap(cache, pool, stream, &miss->stream_heap) : 0;
    return r < 0 ? r : run(miss);
}

/* The event that an answer of the daemon is. */
static enum acquire_event event_of(int r) {
    switch (r) {
    case 0:
        return ACQUIRE_GRANTED;
    case QUESTION_IS_PART:
        return ACQUIRE_IS_PART;
    case GPUPOOL_E_EXHAUSTED:
        return ACQUIRE_EXHAUSTED;
    case GPUPOOL_E_LIMIT:
        return ACQUIRE_LIMITED;
    case GPUPOOL_E_CANCELLED:
        return ACQUIRE_CANCELLED;
    default:
        return ACQUIRE_REFUSED;
    }
}

void miss_was_enlisted(struct miss *miss, uint64_t question_id) {
    if (!acquire_may(miss->acquire.state, ACQUIRE_TURN))
        return;
    struct core_pool *pool = miss->stream_heap->core_pool;
    pthread_mutex_lock(&pool->lock);
    miss->acquire.question_id = question_id;
    bool is_served = miss->acquire.piece != NULL;
    pthread_mutex_unlock(&pool->lock);
    if (is_served)
        connection_cancel(&miss->session->connection, question_id);
}

int miss_exchange(struct miss *miss) {
    if (acquire_may(miss->acquire.state, ACQUIRE_TURN)) /* a release may cancel it */
        miss_was_enlisted(miss, connection_announce(miss->question.request));
    return question_exchange(&miss->question);
}

int miss_answer(struct miss *miss, int r) {
    if (take_turn(miss, r)) {
        go(miss, ACQUIRE_TURN);
        return run(miss);
    }
    r = question_take(&miss->question, r);
    miss->error = r;
    if (r == 0 && miss->question.is_of_segments)
        miss_add_segments(miss);
    go(miss, event_of(r));
    return run(miss);
}

void miss_forget(struct miss *miss) {
    arena_plan_free(&miss->plan);
    free(miss->grants);
    miss->grants = NULL;
}
