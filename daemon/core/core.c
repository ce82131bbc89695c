/* SPDX-License-Identifier: Apache-2.0 */
/* The core's entry points for pools, segments and time, and the decisions that the shell fetches. */
#include "daemon/core/core.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/collect.h"
#include "daemon/core/explain.h"
#include "daemon/core/kept.h"
#include "daemon/core/lease.h"
#include "daemon/core/name_wait.h"
#include "daemon/core/parcel.h"
#include "daemon/core/pool.h"
#include "daemon/core/recorder.h"
#include "daemon/core/request.h"
#include "daemon/core/scope.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/wait_queue.h"
#include "daemon/core/waiting.h"

int core_new(struct core **ret_core) {
    struct core *core = calloc(1, sizeof *core);
    if (core == NULL)
        return -ENOMEM;
    list_init(&core->tenants);
    list_init(&core->accounts);
    list_init(&core->scopes);
    list_init(&core->sessions);
    list_init(&core->ready);
    list_init(&core->answered);
    list_init(&core->retiring);
    list_init(&core->channels);
    list_init(&core->channels_changed);
    list_init(&core->channels_gone);
    list_init(&core->names_answered);
    list_init(&core->reclaiming);
    list_init(&core->long_waits);
    core->sessions_limit = SESSIONS_MAX_DEFAULT;
    core->session_leases_limit = SESSION_LEASES_DEFAULT;
    core->undelivered_limit = UNDELIVERED_MAX;
    core->segments_limit = UINT32_MAX;
    core->channel_pages_limit = UINT32_MAX;
    core->passes_limit = PASSES_MAX;
    core->long_wait_ns = LONG_WAIT_NS;
    *ret_core = core;
    return 0;
}

static void segment_forget(struct segment *segment) {
    struct pool *pool = segment->pool;
    segment_leave_slot(segment);
    pool->reserved_bytes -= segment->size_bytes;
    pool->n_retiring -= segment->state == SEGMENT_RETIRING;
    pool->n_orphans -= segment->is_orphan;
    pool->orphan_bytes -= segment->is_orphan ? segment->size_bytes : 0;
    segment_leave(segment);
    kept_end(pool->core, &segment->record);
    free(segment);
}

struct core *core_free(struct core *core) {
    if (core == NULL)
        return NULL;
    assert(list_is_empty(&core->sessions) && list_is_empty(&core->answered) &&
           list_is_empty(&core->reclaiming) && list_is_empty(&core->names_answered) &&
           list_is_empty(&core->long_waits));
    assert(core->parcels.count == 0);
    free(core->parcels.entries);
    for (size_t slot = 0; slot < core->segment_slots; slot++) {
        struct segment *segment = core->segments[slot];
        if (segment == NULL)
            continue;
        if (segment->state == SEGMENT_ASSIGNED)
            tenant_disown(segment);
        segment_forget(segment);
    }
    assert(list_is_empty(&core->tenants) && list_is_empty(&core->accounts));
    while (!list_is_empty(&core->scopes))
        scope_drop(list_first(&core->scopes, struct scope, link));
    for (unsigned i = 0; i < core->n_pools; i++) {
        assert(core->pools[i]->reserved_bytes == 0 && core->pools[i]->leased_bytes == 0 &&
               core->pools[i]->fenced_bytes == 0);
        free(core->pools[i]);
    }
    assert(core->tokens == NULL);
    lease_table_deinit(&core->leases);
    policy_free(core->policy);
    free(core->segments);
    free(core->free_slots);
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
    pool->limit_of = sizes->limit_of;
    pool->step_bytes = sizes->step_bytes == POOL_STEP_BY_SIZE ? POOL_STEP_BY_SIZE
                       : sizes->step_bytes < SEGMENT_GRANULE  ? SEGMENT_GRANULE
                                                              : round_down_to_segment(sizes->step_bytes);
    pool->reserve_bytes = round_down_to_segment(reserve_bytes);
    pool->low_water_bytes = sizes->low_water_bytes;
}

int core_add_pool(struct core *core, const struct pool_config *config, struct pool **ret_pool) {
    assert(list_is_empty(&core->sessions));
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
    pool->takes_descriptors = config->takes_descriptors;
    memcpy(pool->uuid, config->uuid, sizeof pool->uuid);
    snprintf(pool->name, sizeof pool->name, "%s", config->name);
    for (char *c = pool->name; *c != '\0'; c++) /* it goes onto the wire, where text is printable */
        if (*c < ' ' || *c > '~')
            *c = '?';
    pool->waiters.next_look_ns = pool->waiters.idle_look_ns = NS_FOREVER;
    pool->changes = 1;
    pool_set_sizes(pool, &config->sizes);
    list_init(&pool->ready_link);
    list_init(&pool->segments);
    list_init(&pool->idle);
    list_init(&pool->closing);
    list_init(&pool->heaps);
    list_init(&pool->waiters.queues);
    list_init(&pool->waiters.overdue);
    list_init(&pool->waiters.pressed);
    list_init(&pool->waiters.for_growth);
    list_init(&pool->waiters.held_for_growth);
    list_init(&pool->waiters.idle_only);
    core->pools[core->n_pools++] = pool;
    if (config->needs_vmm)
        core->pools_of_vmm |= UINT64_C(1) << (pool->id - 1);
    *ret_pool = pool;
    return 0;
}

struct pool *core_find_pool(const struct core *core, uint32_t id) {
    return id >= 1 && id <= core->n_pools ? core->pools[id - 1] : NULL;
}

void core_pool_ready(struct pool *pool, uint64_t now_ns) {
    assert(pool->state == POOL_STARTING);
    pool->state = POOL_READY;
    recorder_set_time(pool->core, now_ns);
    record(pool->core, &(struct recorded){.kind = PROTO_RECORD_POOL_READY, .pool = pool});
    pool_mark_ready(pool);
    core_serve(pool->core, now_ns);
}

void core_pool_failed(struct pool *pool, const char *error, uint64_t now_ns) {
    assert(pool->state == POOL_STARTING);
    pool->state = POOL_FAILED;
    recorder_set_time(pool->core, now_ns);
    record(pool->core, &(struct recorded){.kind = PROTO_RECORD_POOL_LOST, .pool = pool});
    snprintf(pool->last_error, sizeof pool->last_error, "%s", error);
    pool_mark_ready(pool);
    core_serve(pool->core, now_ns);
}

/* Gives a growth up that the shell has not taken yet, and any reason to grow. */
static void drop_growth(struct pool *pool) {
    if (pool->growth.is_decided) {
        pool->growth.is_decided = pool->growth.is_ahead = pool->growth.is_trimmed = false;
        pool->growth.bytes = 0;
    }
    pool->growth.demand = NULL;
}

void core_pool_lost(struct pool *pool, const char *error, uint64_t now_ns) {
    if (pool_is_closed(pool))
        return;
    drop_growth(pool);
    pool->state = POOL_LOST;
    recorder_set_time(pool->core, now_ns);
    record(pool->core, &(struct recorded){.kind = PROTO_RECORD_POOL_LOST, .pool = pool});
    pool->reclaim.is_stuck = pool->reclaim.is_owed = false;
    snprintf(pool->last_error, sizeof pool->last_error, "%s", error);
    pool_refuse(pool, 0, PROTO_E_DRIVER);
    pool_mark_ready(pool);
    core_serve(pool->core, now_ns);
}

void core_pool_drain(struct pool *pool, bool is_draining, uint64_t now_ns) {
    recorder_set_time(pool->core, now_ns);
    record(pool->core, &(struct recorded){.kind = is_draining ? PROTO_RECORD_DRAIN : PROTO_RECORD_DRAIN_END,
                                          .pool = pool,
                                          .bytes = pool->leased_bytes});
    pool->is_draining = is_draining;
    pool->reclaim.next_ns = 0; /* sessions are asked at once: also for the first request after the drain */
    if (is_draining) {
        drop_growth(pool);
        pool->reclaim.is_stuck = pool->reclaim.is_owed = false;
        pool->reclaim.refused_bytes = 0;
        pool_refuse(pool, 0, PROTO_E_SHUTDOWN);
        if (pool->takes_descriptors)
            pool_mark_descriptors(pool->core);
    }
    pool_mark_ready(pool);
    core_serve(pool->core, now_ns);
}

bool core_is_draining(const struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++)
        if (!core->pools[i]->is_draining)
            return false;
    return core->n_pools > 0;
}

void core_pool_stalled(struct pool *pool, const char *call, uint64_t for_ns) {
    pool->stalled_call = call;
    pool->stalled_for_ns = for_ns;
}

void core_pool_configure(struct pool *pool, const struct pool_sizes *sizes, uint64_t now_ns) {
    pool_set_sizes(pool, sizes);
    pool_refuse(pool, pool_segment_max(pool) + 1, PROTO_E_TOO_LARGE); /* the limit may have been lowered */
    pool_mark_ready(pool);
    if (pool->takes_descriptors) /* so may the reserve */
        pool_mark_descriptors(pool->core);
    core_serve(pool->core, now_ns);
}

static void pool_growth_over(struct pool *pool) {
    assert(pool->growth.bytes > 0 && !pool->growth.is_decided);
    pool->growth.bytes = 0;
    pool->growth.is_ahead = pool->growth.is_trimmed = false;
}

int core_segment_made(struct pool *pool, uint64_t size_bytes, void *backing, uint64_t now_ns) {
    struct core *core = pool->core;

    recorder_set_time(core, now_ns);
    assert(size_bytes == pool->growth.bytes && size_bytes % SEGMENT_GRANULE == 0);
    struct segment *segment = calloc(1, sizeof *segment);
    if (segment != NULL) {
        segment->pool = pool;
        segment->id = core->next_segment_id + 1;
        segment->size_bytes = size_bytes;
        segment->backing = backing;
    }
    if (segment == NULL || segment_reserve_slot(core) < 0 ||
        kept_add(core, KEPT_SEGMENT, segment, &segment->record) < 0 || segment_join(segment) < 0) {
        if (segment != NULL)
            kept_end(core, &segment->record);
        free(segment);
        core_growth_failed(pool, "the daemon has no memory for its bookkeeping", now_ns);
        return -ENOMEM;
    }
    bool trimmed = pool->growth.is_trimmed;
    pool_growth_over(pool);
    histogram_add(&pool->stats.growing, pool->growth.decided_ns, now_ns);
    core->next_segment_id = segment->id;
    kept_number(core);
    segment_take_slot(segment);
    pool->n_segments++;
    pool->stats.n_grows++;
    pool->reserved_bytes += size_bytes;
    record(core, &(struct recorded){
                     .kind = PROTO_RECORD_GROW, .pool = pool, .bytes = size_bytes, .value = segment->id});
    pool_note_peaks(pool);
    pool->unassigned_bytes += size_bytes;
    pool->growth.is_exact = false;
    if (!pool_is_closed(pool))
        pool->last_error[0] = '\0';
    if (trimmed && pool->growth.demand == NULL && list_is_empty(&pool->waiters.queues)) /* it is not wanted */
        core_trim(pool);
    pool_mark_ready(pool);
    if (pool->takes_descriptors)
        pool_mark_descriptors(core);
    core_serve(pool->core, now_ns);
    return 0;
}

void core_label_segment(struct pool *pool, const void *backing, const struct segment_label *label) {
    list_for_each_entry(struct segment, segment, &pool->segments, link) {
        if (segment->backing != backing)
            continue;
        segment->label = *label;
        kept_change(pool->core, segment->record);
        return;
    }
}

void core_growth_failed(struct pool *pool, const char *error, uint64_t now_ns) {
    uint64_t tried = pool->growth.bytes;
    bool ahead = pool->growth.is_ahead;
    const struct request *first = wait_queue_oldest(pool);

    recorder_set_time(pool->core, now_ns);
    record(pool->core, &(struct recorded){.kind = PROTO_RECORD_GROW_FAIL, .pool = pool, .bytes = tried});
    struct proto_hour *hour = recorder_hour(pool);
    if (hour != NULL)
        hour->n_grow_fails++;
    pool_growth_over(pool);
    if (pool->takes_descriptors)
        pool_mark_descriptors(pool->core);
    if (pool_is_closed(pool))
        return;
    snprintf(pool->last_error, sizeof pool->last_error, "%s", error);
    /* A whole step may be too much where what is needed is not; idle segments may be in the way; else the
     * driver is asked again after a while. A failed growth ahead of demand says nothing of requests that came
     * since. */
    if (ahead) {
        pool->growth.ahead_retry_ns = clock_deadline_ns(now_ns, AHEAD_RETRY_NS);
    } else if (!pool->growth.is_exact && first != NULL &&
               request_piece_bytes(first) + SEGMENT_GRANULE <= tried) {
        pool->growth.is_exact = true;
    } else {
        pool->growth.is_exact = false;
        if (first == NULL || pool_retire_idle(pool, tried, 0, first) == 0)
            pool->growth.retry_ns = clock_deadline_ns(now_ns, GROW_RETRY_NS);
    }
    pool_mark_ready(pool);
    core_serve(pool->core, now_ns);
}

void core_segment_retired(struct segment *segment, uint64_t now_ns) {
    struct pool *pool = segment->pool;
    assert(segment->state == SEGMENT_RETIRING);
    pool->retiring_bytes -= segment->size_bytes;
    segment_forget(segment);
    pool->growth.retry_ns = 0; /* the driver has something to give again */
    pool_mark_ready(pool);
    if (pool->takes_descriptors)
        pool_mark_descriptors(pool->core);
    core_serve(pool->core, now_ns);
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
    pool->growth.is_trimmed = pool->growth.is_ahead;
    uint64_t bytes = pool_retire_idle(pool, UINT64_MAX, pool->reserve_bytes, NULL);
    record(pool->core, &(struct recorded){.kind = PROTO_RECORD_TRIM, .pool = pool, .bytes = bytes});
    return bytes;
}

void core_tick(struct core *core, uint64_t now_ns) {
    recorder_set_time(core, now_ns);
    parcels_expire(core, now_ns);
    name_waits_expire(core, now_ns);
    core_serve(core, now_ns);
    for (unsigned i = 0; i < core->n_pools; i++)
        if (pool_next_tick_ns(core->pools[i]) <= now_ns)
            pool_tick(core->pools[i], now_ns);
}

uint64_t core_next_tick_ns(const struct core *core) {
    uint64_t next = parcels_next_ns(core), wait = name_waits_next_ns(core);
    if (wait < next)
        next = wait;
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
    ret_answer->n_leases = request->lease != NULL ? request_n_leases(request) : 0;
    ret_answer->is_of_segments = request->n_segments > 0;
    ret_answer->last = request->lease;
    for (unsigned n = 1; n < ret_answer->n_leases; n++)
        ret_answer->last = session_next_lease(ret_answer->last);
    ret_answer->pool = request->pool;
    ret_answer->asked_ns = request->asked_ns;
    ret_answer->waited = request->waited;
    ret_answer->probe = request_is_probe(request);
    if (request->state == REQUEST_REFUSED)
        request_explain(request, &ret_answer->failure);
    request_free(request);
    return true;
}

struct lease *core_answer_next(const struct answer *answer, const struct lease *lease) {
    return lease == answer->last ? NULL : session_next_lease(lease);
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
    if (session->ask_recorded_ns == 0 || core->recorder.now_ns - session->ask_recorded_ns >= ASK_RECORD_NS) {
        session->ask_recorded_ns = core->recorder.now_ns; /* while one request waits there are ten a second */
        record(core, &(struct recorded){.kind = PROTO_RECORD_ASK, .session = session});
    }
    *ret_session = session;
    return true;
}

bool core_next_long_wait(struct core *core, uint64_t now_ns, struct long_wait *ret_wait) {
    struct request *request = list_first(&core->long_waits, struct request, long_link);
    if (request == NULL)
        return false;
    list_remove(&request->long_link);
    ret_wait->session = request->session;
    ret_wait->waited_ns = now_ns - request->asked_ns;
    request_explain_wait(request, ret_wait->text, sizeof ret_wait->text);
    return true;
}
