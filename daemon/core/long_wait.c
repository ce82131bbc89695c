/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/long_wait.h"

#include "daemon/core/kept.h"
#include "daemon/core/reach.h"
#include "daemon/core/request.h"

void long_wait_begin(struct request *request) {
    struct pool_waiters *waiters = &request->pool->waiters;

    if (request->look_ns < waiters->next_look_ns)
        waiters->next_look_ns = request->look_ns;
}

/* Walks of one moment, and the reach of the session that the last one was for: its requests are often due
 * together. */
struct walks {
    const struct session *session; /* NULL: none */
    struct reach reach;
    uint64_t n_steps;
    bool are_over; /* one was left out */
};

/* Determines whether the request is alone. Returns false if that takes a walk, for which it is too soon. */
static bool find_out(struct request *request, struct walks *walks, uint64_t now_ns) {
    struct pool *pool = request->pool;

    request->is_alone = reach_is_surely_alone(request);
    if (request->is_alone)
        return true;
    if (walks->session != request->session) {
        if (now_ns < pool->waiters.walk_ns || walks->n_steps >= REACH_STEPS_MAX) {
            walks->are_over = true;
            return false;
        }
        reach_find(request->session, pool, &walks->reach);
        walks->session = request->session;
        walks->n_steps += walks->reach.n_steps;
    }
    request->is_alone = reach_is_alone(&walks->reach, request);
    return true;
}

static void pause_walks(struct pool *pool, uint64_t n_steps, uint64_t now_ns) {
    if (n_steps > 0)
        pool->waiters.walk_ns = clock_deadline_ns(now_ns, n_steps * REACH_PAUSE_NS);
}

/* Tells the shell of the request, once. */
static void tell(struct request *request) {
    if (request->is_told)
        return;
    request->is_told = true;
    kept_change(request->session->core, request->record);
    list_append(&request->session->core->long_waits, &request->long_link);
}

/* Looks at a request that waits. Returns whether it was refused. */
static bool look(struct request *request, struct walks *walks, uint64_t now_ns) {
    uint64_t long_wait_ns = request->session->core->long_wait_ns;

    if (!find_out(request, walks, now_ns))
        return false;
    request->look_ns = clock_deadline_ns(now_ns, long_wait_ns);
    if (request->deadline_ns != NS_FOREVER) {
        request->look_ns = NS_FOREVER;
    } else if (request->is_alone) {
        uint64_t gave_ns = reach_gave_ns(request->session, request->pool);
        uint64_t since_ns = gave_ns > request->asked_ns ? gave_ns : request->asked_ns;
        uint64_t end_ns = clock_deadline_ns(since_ns, long_wait_ns);
        if (end_ns <= now_ns) {
            request_give_up(request);
            return true;
        }
        request->look_ns = end_ns;
    }
    tell(request);
    return false;
}

bool long_waits_look(struct pool *pool, uint64_t now_ns) {
    uint64_t next_ns = NS_FOREVER, soonest_ns = clock_deadline_ns(now_ns, LONG_WAIT_LOOK_NS);
    struct walks walks = {.session = NULL};
    uint64_t n_requests = 0;
    bool any = false;

    list_for_each_entry(struct tenant_heap, heap, &pool->heaps, pool_link) {
        struct wait_queue *const queues[] = {&heap->waiting, &heap->held};
        for (unsigned i = 0; i < sizeof queues / sizeof *queues; i++)
            list_for_each_entry_safe(struct request, request, &queues[i]->requests, link) {
                n_requests++;
                if (request->look_ns <= now_ns && look(request, &walks, now_ns))
                    any = true;
                else if (request->look_ns > now_ns && request->look_ns < next_ns)
                    next_ns = request->look_ns;
            }
    }
    pause_walks(pool, walks.n_steps > 0 ? walks.n_steps + n_requests : 0, now_ns);
    pool->waiters.next_look_ns = next_ns < soonest_ns ? soonest_ns : next_ns;
    if (walks.are_over && pool->waiters.walk_ns < pool->waiters.next_look_ns)
        pool->waiters.next_look_ns = pool->waiters.walk_ns;
    return any;
}

void long_wait_end(struct request *request, uint64_t now_ns) {
    struct walks walks = {.session = NULL};

    if (!find_out(request, &walks, now_ns))
        request->is_alone = false;
    pause_walks(request->pool, walks.n_steps, now_ns);
}
