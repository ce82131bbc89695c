/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/core.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/closing.h"
#include "daemon/core/collect.h"
#include "daemon/core/explain.h"
#include "daemon/core/fence.h"
#include "daemon/core/lease.h"
#include "daemon/core/plan.h"
#include "daemon/core/pool.h"
#include "daemon/core/request.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/wait_queue.h"
#include "daemon/core/waiting.h"

int core_new(struct core **ret_core) {
    struct core *core = calloc(1, sizeof *core);
    if (core == NULL)
        return -ENOMEM;
    list_init(&core->tenants);
    list_init(&core->sessions);
    list_init(&core->ready);
    list_init(&core->answered);
    list_init(&core->retiring);
    list_init(&core->reclaiming);
    core->sessions_limit = SESSIONS_MAX_DEFAULT;
    core->session_leases_limit = SESSION_LEASES_DEFAULT;
    core->undelivered_limit = UNDELIVERED_MAX;
    core->passes_limit = PASSES_MAX;
    *ret_core = core;
    return 0;
}

/* Serves the pools that are ready. Each entry point that knows the time ends with it. A pool that its own
 * plan marks again is left to the tick, which comes at once: a plan must not give a request up and another
 * one, in the same call, grow. */
static void core_serve(struct core *core, uint64_t now_ns) {
    struct list *last = core->ready.previous;

    for (bool is_last = list_is_empty(&core->ready); !is_last;) {
        struct pool *pool = list_first(&core->ready, struct pool, ready_link);
        is_last = &pool->ready_link == last;
        list_remove(&pool->ready_link);
        pool_serve(pool, now_ns);
    }
}

/* Marks a pool whose state or limits changed, and serves it. */
static void core_serve_pool(struct pool *pool, uint64_t now_ns) {
    pool_mark_ready(pool);
    core_serve(pool->core, now_ns);
}

static void core_mark_all_ready(struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++)
        pool_mark_ready(core->pools[i]);
}

static void segment_forget(struct segment *segment) {
    struct pool *pool = segment->pool;
    pool->core->segments[segment->slot] = NULL;
    pool->reserved_bytes -= segment->size_bytes;
    list_remove(&segment->link);
    free(segment);
}

struct core *core_free(struct core *core) {
    if (core == NULL)
        return NULL;
    assert(list_is_empty(&core->sessions) && list_is_empty(&core->answered) &&
           list_is_empty(&core->reclaiming));
    for (size_t slot = 0; slot < core->segment_slots; slot++) {
        struct segment *segment = core->segments[slot];
        if (segment == NULL)
            continue;
        if (segment->state == SEGMENT_ASSIGNED)
            tenant_disown(segment);
        segment_forget(segment);
    }
    assert(list_is_empty(&core->tenants));
    for (unsigned i = 0; i < core->n_pools; i++) {
        assert(core->pools[i]->reserved_bytes == 0 && core->pools[i]->leased_bytes == 0 &&
               core->pools[i]->fenced_bytes == 0);
        free(core->pools[i]);
    }
    assert(core->tokens == NULL);
    lease_table_deinit(&core->leases);
    policy_free(core->policy);
    free(core->segments);
    free(core);
    return NULL;
}

static uint64_t round_down_to_segment(uint64_t bytes) {
    return bytes / SEGMENT_GRANULE * SEGMENT_GRANULE;
}

static void pool_set_sizes(struct pool *pool, const struct pool_sizes *sizes) {
    uint64_t reserve_bytes =
        sizes->reserve_bytes < sizes->limit_bytes ? sizes->reserve_bytes : sizes->limit_bytes;
    pool->limit_bytes = round_down_to_segment(sizes->limit_bytes);
    pool->step_bytes = sizes->step_bytes == POOL_STEP_BY_SIZE ? POOL_STEP_BY_SIZE
                       : sizes->step_bytes < SEGMENT_GRANULE  ? SEGMENT_GRANULE
                                                              : round_down_to_segment(sizes->step_bytes);
    pool->reserve_bytes = round_down_to_segment(reserve_bytes);
    pool->low_water_bytes = sizes->low_water_bytes;
}

int core_add_pool(struct core *core, const struct pool_config *config, struct pool **ret_pool) {
    if (core->n_pools == PROTO_POOLS_MAX)
        return -ENOSPC;
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return -ENOMEM;
    pool->core = core;
    pool->id = core->n_pools + 1;
    pool->kind = config->kind;
    pool->device = config->device;
    pool->numa_node = config->numa_node;
    memcpy(pool->uuid, config->uuid, sizeof pool->uuid);
    snprintf(pool->name, sizeof pool->name, "%s", config->name);
    for (char *c = pool->name; *c != '\0'; c++) /* it goes onto the wire, where text is printable */
        if (*c < ' ' || *c > '~')
            *c = '?';
    pool->waiters.next_deadline_ns = NS_FOREVER;
    pool_set_sizes(pool, &config->sizes);
    list_init(&pool->ready_link);
    list_init(&pool->segments);
    list_init(&pool->heaps);
    list_init(&pool->waiters.queues);
    list_init(&pool->waiters.overdue);
    list_init(&pool->waiters.pressed);
    list_init(&pool->waiters.for_growth);
    core->pools[core->n_pools++] = pool;
    *ret_pool = pool;
    return 0;
}

struct pool *core_find_pool(const struct core *core, uint32_t id) {
    return id >= 1 && id <= core->n_pools ? core->pools[id - 1] : NULL;
}

void core_pool_ready(struct pool *pool, uint64_t now_ns) {
    assert(pool->state == POOL_STARTING);
    pool->state = POOL_READY;
    core_serve_pool(pool, now_ns);
}

void core_pool_failed(struct pool *pool, const char *error, uint64_t now_ns) {
    assert(pool->state == POOL_STARTING);
    pool->state = POOL_FAILED;
    snprintf(pool->last_error, sizeof pool->last_error, "%s", error);
    core_serve_pool(pool, now_ns);
}

void core_pool_lost(struct pool *pool, const char *error, uint64_t now_ns) {
    if (pool_is_closed(pool))
        return;
    if (pool->growth.is_decided) { /* the shell has not taken it yet */
        pool->growth.is_decided = pool->growth.is_ahead = false;
        pool->growth.bytes = 0;
    }
    pool->state = POOL_LOST;
    pool->reclaim.is_stuck = pool->reclaim.is_owed = false;
    pool->growth.demand = NULL;
    snprintf(pool->last_error, sizeof pool->last_error, "%s", error);
    pool_refuse_all(pool);
    core_serve_pool(pool, now_ns);
}

void core_pool_stalled(struct pool *pool, const char *call, uint64_t for_ns) {
    pool->stalled_call = call;
    pool->stalled_for_ns = for_ns;
}

void core_pool_configure(struct pool *pool, const struct pool_sizes *sizes, uint64_t now_ns) {
    pool_set_sizes(pool, sizes);
    pool_refuse_too_large(pool); /* the limit may have been lowered */
    core_serve_pool(pool, now_ns);
}

/* The tenant's quota may have changed: marks the pools in which its requests wait for that. */
static void tenant_mark_ready(struct tenant *tenant) {
    list_for_each_entry(struct tenant_heap, heap, &tenant->heaps, tenant_link) {
        if (wait_queue_first(&heap->held) != NULL)
            pool_mark_ready(heap->pool);
    }
}

void core_set_policy(struct core *core, struct policy *policy, uint64_t now_ns) {
    policy_free(core->policy);
    core->policy = policy;
    list_for_each_entry(struct tenant, tenant, &core->tenants, link) {
        tenant_apply_policy(tenant, NULL);
    }
    list_for_each_entry(struct session, session, &core->sessions, link) {
        session->pools_allowed = policy_pools(policy, &session->peer);
        list_for_each_entry_safe(struct request, request, &session->requests, session_link) {
            if (request->state == REQUEST_WAITING && !session_may_use(session, request->pool))
                request_refuse(request, PROTO_E_NO_POOL);
        }
    }
    core_mark_all_ready(core);
    core_serve(core, now_ns);
}

static int session_open(struct core *core, const struct peer *peer, uint64_t now_ns,
                        struct session **ret_session) {
    struct tenant *tenant;

    if (core->n_sessions >= core->sessions_limit)
        return PROTO_E_LIMIT;
    struct session *session = calloc(1, sizeof *session);
    if (session == NULL)
        return -ENOMEM;
    int r = tenant_get(core, peer->uid, &tenant);
    if (r < 0) {
        free(session);
        return r;
    }
    tenant_apply_policy(tenant, peer);
    r = undelivered_is_too_much(tenant) ? PROTO_E_LIMIT
                                        : charge_make(&session->charge, &tenant->quota, QUOTA_SESSIONS, 1);
    if (r != 0) {
        tenant->quota.n_refusals++;
        tenant_apply_policy(tenant, NULL);
        tenant_drop_if_unused(tenant);
        free(session);
        return r;
    }
    tenant->sessions++;
    session->core = core;
    session->pools_allowed = policy_pools(core->policy, peer);
    session->tenant = tenant;
    session->id = ++core->next_session_id;
    session->peer = *peer;
    session->connected_ns = now_ns;
    list_init(&session->leases);
    list_init(&session->requests);
    list_init(&session->fenced);
    list_init(&session->reclaim_link);
    list_append(&core->sessions, &session->link);
    core->n_sessions++;
    tenant_mark_ready(tenant); /* its groups may have raised the quota */
    *ret_session = session;
    return 0;
}

int core_session_open(struct core *core, const struct peer *peer, uint64_t now_ns,
                      struct session **ret_session) {
    int r = session_open(core, peer, now_ns, ret_session);
    core->n_sessions_refused += r != 0;
    core_serve(core, now_ns);
    return r;
}

void core_explain_sessions(struct core *core, const struct peer *peer, struct proto_failure *ret_failure) {
    char text[PROTO_TEXT_MAX / 2];
    struct tenant *tenant;

    if (core->n_sessions >= core->sessions_limit) {
        proto_failure_set(ret_failure, PROTO_E_LIMIT,
                          "the daemon has as many sessions as it may: raise sessions_limit in its "
                          "configuration, or end some");
        return;
    }
    if (tenant_get(core, peer->uid, &tenant) < 0) {
        proto_failure_set(ret_failure, PROTO_E_LIMIT, "the user has as many sessions as it may");
        return;
    }
    tenant_apply_policy(tenant, peer);
    if (undelivered_is_too_much(tenant))
        undelivered_explain(tenant, text, sizeof text);
    else
        tenant_explain_quota(tenant, QUOTA_SESSIONS, text, sizeof text);
    tenant_apply_policy(tenant, NULL);
    tenant_drop_if_unused(tenant);
    proto_failure_set(ret_failure, PROTO_E_LIMIT, "%s", text);
}

int core_session_keep_reply(struct session *session, uint64_t bytes) {
    int r = charge_make(&session->replies, &session->tenant->quota, QUOTA_REPLIES, bytes);
    session->tenant->quota.n_refusals += r != 0;
    return r;
}

void core_session_drop_reply(struct session *session, uint64_t bytes) {
    charge_reduce(&session->replies, bytes);
}

void core_session_want_reclaim(struct session *session) {
    assert(session->n_leases == 0);
    session->wants_reclaim = true;
}

void core_session_set_page(struct session *session, struct proto_page *page) {
    session->page = page;
}

static void session_clear(struct session *session) {
    struct core *core = session->core;

    while (!list_is_empty(&session->requests))
        request_free(container_of(session->requests.next, struct request, session_link));
    while (!list_is_empty(&session->leases))
        lease_close(container_of(session->leases.next, struct lease, session_link));
    fences_free(session);
    for (unsigned i = 0; i < core->n_pools; i++)
        if (core->pools[i]->reclaim.spared == session)
            core->pools[i]->reclaim.spared = NULL;
    for (size_t word = 0; word < session->seen_words; word++)
        while (session->seen[word] != 0) {
            unsigned bit = (unsigned)__builtin_ctzll(session->seen[word]);
            closing_unmap(session, core->segments[word * 64 + bit]);
        }
}

static void session_free(struct session *session, uint64_t now_ns) {
    struct core *core = session->core;
    struct tenant *tenant = session->tenant;

    session_clear(session);
    assert(session->n_leases == 0 && session->n_requests == 0 && session->leased_bytes == 0 &&
           session->fenced_bytes == 0 && session->n_segments == 0);
    list_remove(&session->reclaim_link);
    list_remove(&session->link);
    core->n_sessions--;
    charge_free(&session->replies);
    charge_free(&session->charge);
    free(session->seen);
    free(session->told);
    free(session);
    if (core->policy != NULL && core->policy->has_group_rules)
        tenant_apply_policy(tenant, NULL); /* a limit goes with the last of its group */
    tenant->sessions--; /* only now: until here it keeps the tenant */
    tenant_drop_if_unused(tenant);
    core_mark_all_ready(core);
    core_serve(core, now_ns);
}

void core_session_close(struct session *session, uint64_t now_ns) {
    assert(session->state == SESSION_ACTIVE);
    session_free(session, now_ns);
}

void core_session_lose(struct session *session, uint64_t now_ns, const char *reason) {
    assert(session->state == SESSION_ACTIVE);
    while (!list_is_empty(&session->requests))
        request_free(container_of(session->requests.next, struct request, session_link));
    list_for_each_entry(struct lease, lease, &session->leases, session_link) {
        lease_quarantine(lease);
    }
    list_remove(&session->reclaim_link);
    session_fall_silent(session);
    session->state = SESSION_QUARANTINED;
    session->lost_ns = now_ns;
    session->quarantine_reason = reason;
    core_mark_all_ready(session->core); /* its requests may have held others up */
    core_serve(session->core, now_ns);
}

void core_session_gone(struct session *session, uint64_t now_ns) {
    assert(session->state == SESSION_QUARANTINED);
    session_free(session, now_ns);
}

int core_acquire(struct session *session, uint64_t request_id, const struct proto_acquire *acquire,
                 uint64_t now_ns) {
    struct pool *pool = core_find_pool(session->core, acquire->pool);
    struct request *request;

    assert(session->state == SESSION_ACTIVE);
    if (pool != NULL && !session_may_use(session, pool))
        pool = NULL; /* as if there were none */
    int r = request_new(session, pool, request_id, acquire, now_ns, &request);
    if (r < 0) {
        if (pool != NULL)
            pool->stats.n_failures++;
        return r;
    }
    if (pool == NULL)
        request_refuse(request, PROTO_E_NO_POOL);
    else if (session->n_requests > SESSION_WAITING_MAX)
        request_refuse(request, PROTO_E_LIMIT);
    else
        pool_ask(pool, request, now_ns);
    core_serve(session->core, now_ns);
    return 0;
}

int core_idle(struct session *session, const struct proto_idle *idle, uint64_t now_ns,
              struct proto_segments *ret_segments) {
    struct pool *pool = core_find_pool(session->core, idle->pool);

    *ret_segments = (struct proto_segments){0};
    if (pool == NULL || (idle->size_bytes != 0 && !session_may_use(session, pool)))
        return PROTO_E_NO_POOL;
    struct tenant_heap *heap = tenant_heap_find(session->tenant, pool);
    if (heap != NULL)
        (void)collect_heap(heap);
    core_serve(session->core, now_ns); /* memory that came back serves as it is, before segments are closed */
    closing_choose(session, pool, idle, now_ns, ret_segments);
    return 0;
}

int core_closed(struct session *session, const struct proto_closed *closed, uint64_t now_ns) {
    struct pool *pool = closing_finish(session, closed->segment);

    if (pool == NULL)
        return PROTO_E_INVALID;
    pool->stats.n_closes++;
    pool->stats.close_ns += closed->time_ns < CLOSE_NS_MAX ? closed->time_ns : CLOSE_NS_MAX;
    core_serve_pool(pool, now_ns);
    return 0;
}

/* The fence is not ready: what is released leaves the session, and waits. */
static int core_release_later(struct lease *lease, const struct proto_release *release, unsigned beyond) {
    struct session *session = lease->session;
    struct pool *pool = lease->block->segment->pool;
    struct fence_queue *queue;

    int r = fence_queue_get(session, pool, release->fence - 1, &queue);
    if (r < 0)
        return r;
    if (release->size_bytes != 0 && !lease_is_all(lease, release->offset_bytes, release->size_bytes)) {
        if (!session_may_lease(session, beyond))
            return PROTO_E_LIMIT;
        r = lease_split(lease, release->offset_bytes, release->size_bytes, beyond, &lease);
        if (r != 0)
            return r;
    }
    lease_fence(lease, queue, release->fence_value);
    (void)collect_queue(queue, FENCES_PER_RELEASE);
    return 0;
}

static int release_within(struct session *session, const struct proto_release *release, unsigned beyond) {
    struct lease *lease = lease_find(session->core, session, release->lease, release->generation);

    if (lease == NULL)
        return PROTO_E_STALE;
    if (release->fence != 0) {
        if (session->page == NULL)
            return PROTO_E_INVALID;
        if (!fence_is_ready(session, release->fence - 1, release->fence_value))
            return core_release_later(lease, release, beyond);
    }
    if (release->size_bytes != 0)
        return lease_release_part(lease, release->offset_bytes, release->size_bytes, beyond);
    lease_close(lease);
    return 0;
}

int core_release(struct session *session, const struct proto_release *release, uint64_t now_ns) {
    int r = release_within(session, release, 0);
    core_serve(session->core, now_ns);
    return r;
}

int core_release_one_way(struct session *session, const struct proto_release *release, uint64_t now_ns) {
    int r = release_within(session, release, PROTO_ONE_WAY_MAX);
    core_serve(session->core, now_ns);
    return r;
}

int core_split(struct session *session, const struct proto_release *split, struct lease **ret_lease) {
    struct core *core = session->core;
    struct lease *lease = lease_find(core, session, split->lease, split->generation);
    if (lease == NULL)
        return PROTO_E_STALE;
    if (!session_may_lease(session, 0))
        return PROTO_E_LIMIT;
    return lease_split(lease, split->offset_bytes, split->size_bytes, 0, ret_lease);
}

static int merge_within(struct session *session, const struct proto_merge *merge, unsigned beyond) {
    struct lease *lease = lease_find(session->core, session, merge->lease, merge->generation);
    struct lease *other = lease_find(session->core, session, merge->other_lease, merge->other_generation);
    return lease == NULL || other == NULL ? PROTO_E_STALE : lease_merge(lease, other, beyond);
}

int core_merge(struct session *session, const struct proto_merge *merge) {
    return merge_within(session, merge, 0);
}

int core_merge_one_way(struct session *session, const struct proto_merge *merge) {
    return merge_within(session, merge, PROTO_ONE_WAY_MAX);
}

int core_share(struct session *session, const struct proto_lease_name *name, uint64_t size_bytes,
               const struct proto_token *fresh, struct proto_token *ret_token) {
    struct lease *lease = lease_find(session->core, session, name->lease, name->generation);
    if (lease == NULL)
        return PROTO_E_STALE;
    /* A session that attaches is told one range: what came back of the block may be another session's. */
    if (size_bytes > lease->block->capacity_bytes || lease->block->held_bytes != lease->block->capacity_bytes)
        return PROTO_E_INVALID;
    int r = block_share(session->core, lease->block, fresh, ret_token);
    if (r == 0 && size_bytes > 0)
        lease->block->size_bytes = size_bytes;
    return r;
}

int core_attach(struct session *session, const struct proto_token *token, struct lease **ret_lease) {
    struct core *core = session->core;
    struct block *block = block_find(core, token);

    /* One answer for all three, so that another tenant learns nothing. A block that only dead processes hold
     * is on its way back to the pool: no session may join it. */
    if (block == NULL || block->segment->owner->tenant != session->tenant || block->live == 0 ||
        !session_may_use(session, block->segment->pool))
        return PROTO_E_NO_TOKEN;
    if (pool_is_closed(block->segment->pool))
        return PROTO_E_DRIVER;
    if (!session_may_lease(session, 0))
        return PROTO_E_LIMIT;
    int r = session_reserve_segment(session, block->segment);
    if (r < 0)
        return r;
    return lease_join(session, block, ret_lease);
}

int core_query(struct session *session, const struct proto_lease_name *name, struct proto_info *ret_info) {
    const struct lease *lease = lease_find(session->core, session, name->lease, name->generation);
    if (lease == NULL)
        return PROTO_E_STALE;
    const struct block *block = lease->block;
    *ret_info = (struct proto_info){
        .segment = block->segment->id,
        .offset_bytes = block->offset_bytes,
        .size_bytes = block->size_bytes,
        .capacity_bytes = block->capacity_bytes,
        .pool = block->segment->pool->id,
        .holders = block->live + block->quarantined,
        .shared = block->shared,
    };
    return 0;
}

/* Finds a slot that no segment has, or makes more of them. Returns 0 or -ENOMEM. */
static int core_find_slot(struct core *core, size_t *ret_slot) {
    for (size_t slot = 0; slot < core->segment_slots; slot++)
        if (core->segments[slot] == NULL) {
            *ret_slot = slot;
            return 0;
        }
    size_t slots = core->segment_slots == 0 ? 64 : core->segment_slots * 2;
    struct segment **segments = realloc(core->segments, slots * sizeof *segments);
    if (segments == NULL)
        return -ENOMEM;
    for (size_t slot = core->segment_slots; slot < slots; slot++)
        segments[slot] = NULL;
    *ret_slot = core->segment_slots;
    core->segments = segments;
    core->segment_slots = slots;
    return 0;
}

static void pool_growth_over(struct pool *pool) {
    assert(pool->growth.bytes > 0 && !pool->growth.is_decided);
    pool->growth.bytes = 0;
    pool->growth.is_ahead = false;
}

int core_segment_made(struct pool *pool, uint64_t size_bytes, void *backing, uint64_t now_ns) {
    struct core *core = pool->core;
    size_t slot;

    assert(size_bytes == pool->growth.bytes && size_bytes % SEGMENT_GRANULE == 0);
    struct segment *segment = calloc(1, sizeof *segment);
    if (segment == NULL || core_find_slot(core, &slot) < 0) {
        free(segment);
        core_growth_failed(pool, "the daemon has no memory for its bookkeeping", now_ns);
        return -ENOMEM;
    }
    pool_growth_over(pool);
    histogram_add(&pool->stats.growing, pool->growth.decided_ns, now_ns);
    segment->pool = pool;
    segment->id = ++core->next_segment_id;
    segment->slot = (uint32_t)slot;
    segment->size_bytes = size_bytes;
    segment->backing = backing;
    core->segments[slot] = segment;
    list_append(&pool->segments, &segment->link);
    pool->n_segments++;
    pool->stats.n_grows++;
    pool->reserved_bytes += size_bytes;
    pool_note_peaks(pool);
    pool->unassigned_bytes += size_bytes;
    pool->growth.is_exact = false;
    if (!pool_is_closed(pool))
        pool->last_error[0] = '\0';
    core_serve_pool(pool, now_ns);
    return 0;
}

void core_growth_failed(struct pool *pool, const char *error, uint64_t now_ns) {
    uint64_t tried = pool->growth.bytes;
    bool ahead = pool->growth.is_ahead;
    const struct request *first = wait_queue_oldest(pool);

    pool_growth_over(pool);
    if (pool_is_closed(pool))
        return;
    snprintf(pool->last_error, sizeof pool->last_error, "%s", error);
    /* A whole step may be too much where what is needed is not; idle segments may be in the way; else the
     * driver is asked again after a while. A failed growth ahead of demand says nothing of requests that came
     * since. */
    if (ahead) {
        pool->growth.ahead_retry_ns = clock_deadline_ns(now_ns, AHEAD_RETRY_NS);
    } else if (!pool->growth.is_exact && first != NULL && first->least_bytes + SEGMENT_GRANULE <= tried) {
        pool->growth.is_exact = true;
    } else {
        pool->growth.is_exact = false;
        if (first == NULL || pool_retire_idle(pool, tried, 0) == 0)
            pool->growth.retry_ns = clock_deadline_ns(now_ns, GROW_RETRY_NS);
    }
    core_serve_pool(pool, now_ns);
}

void core_segment_retired(struct segment *segment, uint64_t now_ns) {
    struct pool *pool = segment->pool;
    assert(segment->state == SEGMENT_RETIRING);
    pool->retiring_bytes -= segment->size_bytes;
    segment_forget(segment);
    pool->growth.retry_ns = 0; /* the driver has something to give again */
    core_serve_pool(pool, now_ns);
}

void core_poll_fences(struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++)
        list_for_each_entry(struct tenant_heap, heap, &core->pools[i]->heaps, pool_link) {
            collect_heap(heap);
        }
}

uint64_t core_trim(struct pool *pool) {
    if (pool_is_closed(pool)) /* its driver frees nothing */
        return 0;
    pool->growth.demand = NULL;
    return pool_retire_idle(pool, UINT64_MAX, pool->reserve_bytes);
}

void core_tick(struct core *core, uint64_t now_ns) {
    for (unsigned i = 0; i < core->n_pools; i++)
        if (pool_next_tick_ns(core->pools[i]) <= now_ns)
            pool_mark_ready(core->pools[i]);
    core_serve(core, now_ns);
}

uint64_t core_next_tick_ns(const struct core *core) {
    uint64_t next = NS_FOREVER;
    for (unsigned i = 0; i < core->n_pools; i++) {
        uint64_t tick = pool_next_tick_ns(core->pools[i]);
        if (tick < next)
            next = tick;
    }
    return next;
}

bool core_next_answer(struct core *core, struct answer *ret_answer) {
    struct request *request = list_first(&core->answered, struct request, link);
    if (request == NULL)
        return false;
    ret_answer->session = request->session;
    ret_answer->request = request->id;
    ret_answer->lease = request->lease;
    ret_answer->pool = request->pool;
    ret_answer->asked_ns = request->asked_ns;
    ret_answer->waited = request->waited;
    ret_answer->probe = request_is_probe(request);
    if (request->state == REQUEST_REFUSED)
        request_explain(request, &ret_answer->failure);
    request_free(request);
    return true;
}

void core_answer_sent(const struct answer *answer, uint64_t now_ns) {
    if (answer->pool != NULL && !answer->probe)
        histogram_add(answer->waited ? &answer->pool->stats.waiting : &answer->pool->stats.serving,
                      answer->asked_ns, now_ns);
}

bool core_next_growth(struct core *core, struct pool **ret_pool, uint64_t *ret_size_bytes) {
    for (unsigned i = 0; i < core->n_pools; i++) {
        struct pool *pool = core->pools[i];
        if (pool->growth.is_decided) {
            pool->growth.is_decided = false;
            *ret_pool = pool;
            *ret_size_bytes = pool->growth.bytes;
            return true;
        }
    }
    return false;
}

bool core_next_retirement(struct core *core, struct segment **ret_segment) {
    struct segment *segment = list_first(&core->retiring, struct segment, link);
    if (segment == NULL)
        return false;
    list_remove(&segment->link);
    *ret_segment = segment;
    return true;
}

bool core_next_reclaim(struct core *core, struct session **ret_session) {
    struct session *session = list_first(&core->reclaiming, struct session, reclaim_link);
    if (session == NULL)
        return false;
    list_remove(&session->reclaim_link);
    *ret_session = session;
    return true;
}

void core_describe_lease(struct lease *lease, struct proto_lease *ret_lease, bool *ret_describe) {
    const struct block *block = lease->block;
    struct segment *segment = block->segment;

    *ret_lease = (struct proto_lease){
        .lease = lease->id,
        .generation = lease->generation,
        .segment = segment->id,
        .offset_bytes = block->offset_bytes,
        .size_bytes = block->size_bytes,
        .capacity_bytes = block->capacity_bytes,
        .pool = segment->pool->id,
    };
    *ret_describe = session_map_segment(lease->session, segment);
    if (*ret_describe) {
        ret_lease->description.id = segment->id;
        ret_lease->description.size_bytes = segment->size_bytes;
        ret_lease->description.pool = segment->pool->id;
    }
}
