/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/idle_wait.h"

#include "daemon/core/request.h"

/* Whether memory of the pool is on its way that needs no answer of a session. */
static bool is_coming(const struct pool *pool) {
    return pool->growth.bytes > 0 || pool->retiring_bytes > 0 || pool->closing_bytes > 0 ||
           pool->fenced_bytes > 0;
}

/* The last round of questions for what the request waits for. */
static struct round *round_of(const struct request *request) {
    return request->queue == WAIT_QUEUE_QUOTA ? &request->heap->round : &request->pool->reclaim.round;
}

/* Whether a whole round was made for the request, which brought nothing, as far as it was answered. */
static bool was_asked_for_in_vain(const struct request *request) {
    const struct pool_reclaim *reclaim = &request->pool->reclaim;
    const struct round *round = round_of(request);

    if (request->queue == WAIT_QUEUE_ROOM && !reclaim->is_stuck)
        return false;             /* the pool makes room without the sessions */
    if (reclaim->n_sessions == 0) /* none can be asked */
        return true;
    return round->number != request->round && round->n_came == reclaim->n_came && !round->has_ended_one;
}

/* Until when the sessions that are open are waited for. */
static uint64_t patience_ns(const struct request *request) {
    uint64_t came_ns = request->pool->reclaim.came_ns;
    return clock_deadline_ns(came_ns > request->asked_ns ? came_ns : request->asked_ns, NO_ANSWER_NS);
}

static bool look_again(struct pool *pool, uint64_t at_ns) {
    if (at_ns < pool->waiters.idle_look_ns)
        pool->waiters.idle_look_ns = at_ns;
    return false;
}

static bool ends(struct request *request, uint64_t now_ns) {
    struct pool *pool = request->pool;

    if (!was_asked_for_in_vain(request))
        return false;
    return pool->reclaim.n_open == 0 || patience_ns(request) <= now_ns
               ? true
               : look_again(pool, patience_ns(request));
}

bool idle_wait_end_one(struct pool *pool, uint64_t now_ns) {
    uint64_t lost_ns = clock_deadline_ns(pool->reclaim.lost_ns, QUARANTINE_NEAR_NS);

    pool->waiters.idle_look_ns = NS_FOREVER;
    if (list_is_empty(&pool->waiters.idle_only) || pool->state != POOL_READY || is_coming(pool))
        return false;
    if (pool->quarantined_bytes > 0 && now_ns < lost_ns)
        return look_again(pool, lost_ns);
    list_for_each_entry(struct request, request, &pool->waiters.idle_only, special_link) {
        if (!ends(request, now_ns))
            continue;
        round_of(request)->has_ended_one = true;
        request->is_answered = true;
        request_give_up(request);
        return true;
    }
    return false;
}

bool idle_wait_needs_round(const struct pool *pool) {
    const struct round *round = &pool->reclaim.round;

    list_for_each_entry(const struct request, request, &pool->waiters.idle_only, special_link) {
        if (request->queue == WAIT_QUEUE_ROOM && (round->number == request->round || round->has_ended_one))
            return true;
    }
    return false;
}
