/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/admin_report.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/admin/admin_channels.h"
#include "daemon/admin/admin_estate.h"
#include "daemon/admin/admin_json.h"
#include "daemon/admin/admin_terms.h"
#include "daemon/core/core.h"
#include "daemon/core/explain.h"
#include "daemon/core/histogram.h"
#include "daemon/core/limits.h"
#include "daemon/core/parcel.h"
#include "daemon/core/pool.h"
#include "daemon/core/question.h"
#include "daemon/core/tenant.h"
#include "daemon/core/use.h"
#include "daemon/core/wait_queue.h"
#include "daemon/data/client.h"
#include "daemon/data/lingering.h"
#include "daemon/loop/identity.h"
#include "daemon/loop/listener.h"
#include "daemon/loop/notices.h"
#include "daemon/supply/backing.h"
#include "daemon/supply/pools.h"
#include "daemon/supply/supplier.h"

/* Requests that a session's description has: a session may have some thousand. */
#define REQUESTS_TOLD_MAX 16u

void report_integer(cJSON *object, const char *key, uint64_t integer) {
    const uint64_t exact = UINT64_C(1) << 53; /* beyond it a double would show another number */
    cJSON_AddNumberToObject(object, key, (double)(integer < exact ? integer : exact));
}

void report_scope_name(cJSON *object, const struct scope *scope) {
    report_string(object, "scope", scope == NULL ? NULL : scope->terms.name);
}

void report_optional(cJSON *object, const char *key, bool is_there, uint64_t integer) {
    if (is_there)
        report_integer(object, key, integer);
    else
        cJSON_AddNullToObject(object, key);
}

void report_string(cJSON *object, const char *key, const char *string) {
    if (string == NULL)
        cJSON_AddNullToObject(object, key);
    else
        cJSON_AddStringToObject(object, key, string);
}

/* The share of buffers that caches had; null where none were counted. */
static void put_hit_ratio(cJSON *object, const struct use *use) {
    double hits = (double)use->hits, misses = (double)use->misses;
    if (use->hits == 0 && use->misses == 0)
        cJSON_AddNullToObject(object, "hit_ratio");
    else
        cJSON_AddNumberToObject(object, "hit_ratio", hits / (hits + misses));
}

static const char *gpu_name(enum proto_gpu_kind gpu) {
    return gpu == PROTO_GPU_CUDA ? "cuda" : gpu == PROTO_GPU_SIM ? "sim" : "none";
}

void report_daemon(cJSON *reply, const struct admin_terms *terms, bool brief) {
    cJSON *object = cJSON_AddObjectToObject(reply, "daemon");

    cJSON_AddStringToObject(object, "version", GPUPOOL_VERSION);
    report_integer(object, "pid", (uint64_t)getpid());
    report_integer(object, "uptime_ns", clock_now_ns() - terms->identity->started_ns);
    cJSON_AddStringToObject(object, "gpu", gpu_name(terms->machine->gpu_kind));
    cJSON_AddStringToObject(object, "identity", terms->identity->text);
    if (brief)
        return;
    cJSON_AddStringToObject(object, "socket", terms->data_listener->path);
    cJSON_AddStringToObject(object, "admin_socket", terms->identity->admin_path);
    report_string(object, "cuda_toolkit", gpu_cuda_built() ? gpu_cuda_toolkit() : NULL);
    report_integer(object, "sessions", terms->core->n_sessions);
    report_integer(object, "sessions_limit", terms->core->sessions_limit);
    report_integer(object, "sessions_refused", terms->core->n_sessions_refused);
    bool any_lingers = terms->lingering->n_sockets > 0;
    report_integer(object, "lingering_sockets", terms->lingering->n_sockets);
    report_optional(object, "lingering_oldest_ns", any_lingers,
                    any_lingers ? clock_now_ns() - lingering_oldest_ns(terms->lingering) : 0);
    report_integer(object, "descriptors_limit", terms->n_descriptors);
    report_integer(object, "described_segments", pools_descriptors(terms->core));
    report_integer(object, "described_segments_limit", terms->core->segments_limit);
    report_integer(object, "stored_descriptors", terms->store->count);
    report_integer(object, "stored_descriptors_limit", terms->store->limit);
    cJSON *notices = cJSON_AddArrayToObject(object, "notices");
    for (unsigned i = 0; i < terms->notices->count; i++)
        cJSON_AddItemToArray(notices, cJSON_CreateString(terms->notices->texts[i]));
}

static void put_histogram(cJSON *object, const char *key, const struct histogram *histogram) {
    static const struct {
        const char *key;
        unsigned permille;
    } quantiles[] = {{"p50", 500}, {"p90", 900}, {"p99", 990}};
    cJSON *times = cJSON_AddObjectToObject(object, key);

    report_integer(times, "count", histogram->count);
    report_integer(times, "sum", histogram->sum_ns);
    for (unsigned i = 0; i < sizeof quantiles / sizeof *quantiles; i++)
        report_optional(times, quantiles[i].key, histogram->count > 0,
                        histogram_quantile_ns(histogram, quantiles[i].permille));
    cJSON *buckets = cJSON_AddArrayToObject(times, "buckets");
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        uint64_t upper_ns = histogram_upper_ns(i);
        if (histogram->buckets[i] == 0)
            continue;
        cJSON *bucket = cJSON_CreateArray();
        cJSON_AddItemToArray(bucket, upper_ns == UINT64_MAX ? cJSON_CreateNull()
                                                            : cJSON_CreateNumber((double)upper_ns));
        cJSON_AddItemToArray(bucket, cJSON_CreateNumber((double)histogram->buckets[i]));
        cJSON_AddItemToArray(buckets, bucket);
    }
}

/* For how long the session that is in quarantine for longest has had memory of the pool there. */
static void put_quarantine_age(cJSON *object, const struct pool *pool, uint64_t now_ns) {
    const struct session *oldest = NULL;

    list_for_each_entry(const struct session, session, &pool->core->sessions, link) {
        if (session->state == SESSION_QUARANTINED && session->pools[pool->id - 1].leased_bytes > 0 &&
            (oldest == NULL || session->lost_ns < oldest->lost_ns))
            oldest = session;
    }
    report_optional(object, "quarantine_oldest_ns", oldest != NULL,
                    oldest != NULL ? now_ns - oldest->lost_ns : 0);
}

static void put_counters(cJSON *object, const struct pool *pool) {
    report_integer(object, "acquires", pool->stats.n_acquires);
    report_integer(object, "releases", pool->stats.n_releases);
    report_integer(object, "grows", pool->stats.n_grows);
    report_integer(object, "retires", pool->stats.n_retires);
    report_integer(object, "failures", pool->stats.n_failures);
    report_integer(object, "timeouts", pool->stats.n_timeouts);
    report_integer(object, "quota_refusals", pool->stats.n_quota_refusals);
    report_integer(object, "probes", pool->stats.n_probes);
    report_integer(object, "closes", pool->stats.n_closes);
    report_integer(object, "close_ns", pool->stats.close_ns);
    report_integer(object, "leased_peak_bytes", pool->stats.leased_peak_bytes);
    report_integer(object, "reserved_peak_bytes", pool->stats.reserved_peak_bytes);
    report_integer(object, "quarantined_peak_bytes", pool->stats.quarantined_peak_bytes);
}

static cJSON *describe_pool(const struct pool *pool, const struct use *use) {
    static const char *const states[] = {"starting", "ready", "failed", "lost"};
    struct supplier *supplier = pool->owner;
    uint64_t call_since_ns = 0;
    const char *call = supplier->worker.started ? worker_call(&supplier->worker, &call_since_ns) : NULL;
    bool is_host = pool->kind == PROTO_POOL_HOST;
    cJSON *object = cJSON_CreateObject();
    char uuid[GPU_UUID_TEXT_SIZE];
    struct gpu_uuid binary;

    memcpy(binary.bytes, pool->uuid, sizeof binary.bytes);
    gpu_uuid_format(&binary, uuid);
    report_integer(object, "id", pool->id);
    cJSON_AddStringToObject(object, "kind", is_host ? "host" : "device");
    cJSON_AddStringToObject(object, "name", pool->name);
    report_string(object, "uuid", is_host ? NULL : uuid);
    report_optional(object, "device", !is_host, (uint64_t)pool->device);
    report_optional(object, "numa_node", pool->numa_node >= 0, (uint64_t)pool->numa_node);
    report_string(object, "export", backing_kind(supplier->segment_kind)->export_name);
    report_string(object, "pages", pool->reserved_bytes > 0 ? backing_pages_name(supplier->pages) : NULL);
    cJSON_AddStringToObject(object, "zeroed_by", supplier_zeroed_by(supplier));
    cJSON_AddBoolToObject(object, "context", supplier_has_context(supplier));
    cJSON_AddStringToObject(object, "state", states[pool->state]);
    cJSON_AddBoolToObject(object, "draining", pool->is_draining);
    report_integer(object, "limit_bytes", pool->limit_bytes);
    report_integer(object, "step_bytes", pool_step_bytes(pool));
    report_integer(object, "reserve_bytes", pool->reserve_bytes);
    report_integer(object, "low_water_bytes", pool->low_water_bytes);
    report_integer(object, "reserved_bytes", pool->reserved_bytes);
    report_integer(object, "leased_bytes", pool->leased_bytes);
    report_integer(object, "in_use_bytes", use->in_use_bytes);
    report_integer(object, "cached_bytes", use->cached_bytes);
    put_hit_ratio(object, use);
    report_integer(object, "moves", use->moves);
    report_integer(object, "free_bytes", pool_free_bytes(pool));
    report_integer(object, "fenced_bytes", pool->fenced_bytes);
    report_integer(object, "quarantined_bytes", pool->quarantined_bytes);
    report_integer(object, "orphan_bytes", pool->orphan_bytes);
    report_integer(object, "largest_free_bytes", pool_largest_free_bytes(pool));
    report_integer(object, "growing_bytes", pool->growth.bytes);
    report_integer(object, "segments", pool->n_segments);
    report_integer(object, "leases", pool->n_leases);
    report_integer(object, "parcels", pool->n_parcels - pool->n_named);
    report_integer(object, "parcel_bytes", pool->parcel_bytes - pool->named_bytes);
    report_integer(object, "named", pool->n_named);
    report_integer(object, "named_bytes", pool->named_bytes);
    report_channels_of_pool(object, pool);
    report_integer(object, "waiters", pool->waiters.count);
    const struct request *oldest = wait_queue_oldest(pool);
    report_optional(object, "waiting_oldest_ns", oldest != NULL,
                    oldest != NULL ? clock_now_ns() - oldest->asked_ns : 0);
    put_counters(object, pool);
    put_quarantine_age(object, pool, clock_now_ns());
    cJSON *histograms = cJSON_AddObjectToObject(object, "histograms");
    put_histogram(histograms, "acquire_ns", &pool->stats.serving);
    put_histogram(histograms, "waiting_ns", &pool->stats.waiting);
    put_histogram(histograms, "growth_ns", &pool->stats.growing);
    report_string(object, "worker_call", call);
    report_optional(object, "worker_call_ns", call != NULL, clock_now_ns() - call_since_ns);
    report_string(object, "last_error", pool->last_error[0] != '\0' ? pool->last_error : NULL);
    return object;
}

/* The rule by which the process's end is judged, whether MPS bears on it, and its memory beside the pools. */
static void put_end(cJSON *object, const struct client *client) {
    const struct death_facts *facts = client != NULL ? &client->watched.facts : NULL;
    report_string(object, "end_rule", facts != NULL ? death_rule_name(death_rule(facts)) : NULL);
    cJSON_AddBoolToObject(object, "under_mps", facts != NULL && facts->under_mps);
    uint64_t own_bytes = client != NULL ? client->watched.own_bytes : GPU_USED_UNKNOWN;
    report_optional(object, "own_bytes", own_bytes != GPU_USED_UNKNOWN, own_bytes);
}

/* The questions for idle memory, and what the session has answered. */
static void put_answers(cJSON *object, const struct session *session, const struct pool *pool,
                        uint64_t now_ns) {
    const struct session_answers *answers = &session->answers[pool->id - 1];

    report_integer(object, "asked", answers->n_asked);
    report_integer(object, "answered", answers->n_answered);
    report_string(object, "outcome", question_outcome_name(answers->outcome));
    report_optional(object, "owed_ns", answers->owes, now_ns - answers->owed_ns);
    report_integer(object, "came_bytes", answers->came_bytes);
    report_integer(object, "kept_bytes", question_kept_bytes(session, pool));
}

static cJSON *describe_holding(const struct session *session, const struct pool *pool, const struct use *use,
                               uint64_t now_ns) {
    cJSON *object = cJSON_CreateObject();
    unsigned p = pool->id - 1;

    report_integer(object, "id", pool->id);
    report_integer(object, "leased_bytes", session->pools[p].leased_bytes);
    report_integer(object, "in_use_bytes", use->in_use_bytes);
    report_integer(object, "cached_bytes", use->cached_bytes);
    report_integer(object, "fenced_bytes", session->pools[p].fenced_bytes);
    report_integer(object, "closing_bytes", session->pools[p].closing_bytes);
    report_integer(object, "segments", session->pools[p].n_mapped);
    put_answers(object, session, pool, now_ns);
    return object;
}

static cJSON *describe_request(const struct request *request, uint64_t now_ns) {
    cJSON *object = cJSON_CreateObject();

    report_integer(object, "pool", request->pool->id);
    report_integer(object, "bytes", request->least_bytes);
    report_integer(object, "wanted_bytes", request->size_bytes);
    report_integer(object, "waiting_ns", now_ns - request->asked_ns);
    report_optional(object, "left_ns", request->deadline_ns != NS_FOREVER,
                    request->deadline_ns > now_ns ? request->deadline_ns - now_ns : 0);
    report_string(object, "reason", waiter_reason_name(waiter_reason(request)));
    return object;
}

/* The session's memory by pool, and the requests that wait. Other users are not told. */
static void put_details(cJSON *object, const struct session *session, const struct use *uses, bool is_told,
                        uint64_t now_ns) {
    const struct core *core = session->core;
    unsigned n_told = 0;

    if (!is_told) {
        cJSON_AddNullToObject(object, "pools");
        cJSON_AddNullToObject(object, "requests");
        return;
    }
    cJSON *pools = cJSON_AddArrayToObject(object, "pools");
    for (unsigned i = 0; i < core->n_pools; i++)
        if (session->pools[i].leased_bytes > 0 || session->pools[i].fenced_bytes > 0 ||
            session->pools[i].n_mapped > 0)
            cJSON_AddItemToArray(pools, describe_holding(session, core->pools[i], &uses[i], now_ns));
    cJSON *requests = cJSON_AddArrayToObject(object, "requests");
    list_for_each_entry(const struct request, request, &session->requests, session_link) {
        if (request->state != REQUEST_WAITING)
            continue;
        if (n_told++ == REQUESTS_TOLD_MAX)
            return;
        cJSON_AddItemToArray(requests, describe_request(request, now_ns));
    }
}

static cJSON *describe_session(const struct session *session, bool is_told, uint64_t now_ns) {
    bool quarantined = session->state == SESSION_QUARANTINED;
    cJSON *object = cJSON_CreateObject();
    struct use uses[PROTO_POOLS_MAX], use = {0};

    use_of_session(session, uses);
    for (unsigned i = 0; i < session->core->n_pools; i++)
        use_add(&use, &uses[i]);
    report_integer(object, "id", session->id);
    report_integer(object, "pid", report_pid(session->peer.pid));
    report_integer(object, "uid", session->peer.uid);
    report_scope_name(object, session->tenant->scope);
    report_integer(object, "gid", session->peer.gid);
    cJSON_AddStringToObject(object, "command", session->peer.command);
    cJSON_AddStringToObject(object, "state", quarantined ? "quarantined" : "active");
    report_string(object, "quarantine_reason", session->quarantine_reason);
    report_optional(object, "quarantined_ns", quarantined, now_ns - session->lost_ns);
    report_optional(object, "unanswered_ns", session->is_mute, now_ns - session->asked_ns);
    put_end(object, session->owner);
    report_integer(object, "leases", session->n_leases);
    report_integer(object, "leased_bytes", session->leased_bytes);
    report_integer(object, "in_use_bytes", use.in_use_bytes);
    report_integer(object, "cached_bytes", use.cached_bytes);
    put_hit_ratio(object, &use);
    report_integer(object, "moves", use.moves);
    report_integer(object, "fenced_bytes", session->fenced_bytes);
    report_integer(object, "waiting", session->n_requests);
    report_integer(object, "segments", session->n_segments);
    report_integer(object, "connected_ns", now_ns - session->connected_ns);
    cJSON_AddBoolToObject(object, "outlives_daemon", estate_keeps(session));
    put_details(object, session, uses, is_told, now_ns);
    return object;
}

void report_pools(cJSON *reply, const struct core *core) {
    cJSON *pools = cJSON_AddArrayToObject(reply, "pools");
    struct use uses[PROTO_POOLS_MAX];

    use_of_pools(core, uses);
    for (unsigned i = 0; i < core->n_pools; i++)
        cJSON_AddItemToArray(pools, describe_pool(core->pools[i], &uses[i]));
}

bool report_may_tell(uid_t uid, struct tenant_id owner) {
    return admin_is_operator(uid) || tenant_id_is((struct tenant_id){.uid = uid}, owner);
}

void report_sessions(cJSON *reply, const struct core *core, uid_t uid, bool quarantined_only) {
    cJSON *sessions = cJSON_AddArrayToObject(reply, "sessions");
    uint64_t now_ns = clock_now_ns();
    list_for_each_entry(const struct session, session, &core->sessions, link) {
        bool is_told = report_may_tell(uid, session->tenant->id);
        if (!quarantined_only || session->state == SESSION_QUARANTINED)
            cJSON_AddItemToArray(sessions, describe_session(session, is_told, now_ns));
    }
}

/* Parcels that one reply names: some 50 KiB. */
#define PARCELS_TOLD 256u
/* That one reply looks at: some 100 us. */
#define PARCELS_LOOKED_AT 4096u

static cJSON *describe_parcel(const struct parcel *parcel, uint64_t now_ns) {
    cJSON *object = cJSON_CreateObject();

    report_integer(object, "session", parcel->sender);
    report_integer(object, "pid", parcel->pid > 0 ? (uint64_t)parcel->pid : 0);
    report_integer(object, "uid", parcel->block->segment->owner->tenant->id.uid);
    report_scope_name(object, parcel->block->segment->owner->tenant->scope);
    report_integer(object, "pool", parcel->block->segment->pool->id);
    report_integer(object, "bytes", parcel->block->held_bytes);
    report_integer(object, "takers", parcel->takers);
    report_integer(object, "sent_ns", now_ns - parcel->sent_ns);
    report_integer(object, "left_ns",
                   parcel->deadline_ns == NS_FOREVER ? parcel->lifetime_ns
                   : parcel->deadline_ns > now_ns    ? parcel->deadline_ns - now_ns
                                                     : 0);
    return object;
}

void report_parcels(cJSON *reply, const struct core *core, uid_t uid) {
    cJSON *parcels = cJSON_AddArrayToObject(reply, "parcels");
    uint64_t now_ns = clock_now_ns();
    unsigned n_told = 0;

    for (size_t i = 0; i < core->parcels.count && i < PARCELS_LOOKED_AT && n_told < PARCELS_TOLD; i++) {
        const struct parcel *parcel = core->parcels.entries[i];
        if (parcel_is_held(parcel) || !report_may_tell(uid, parcel->block->segment->owner->tenant->id))
            continue;
        cJSON_AddItemToArray(parcels, describe_parcel(parcel, now_ns));
        n_told++;
    }
    report_integer(reply, "total", core->parcels.count - core->parcels.n_named);
}

/* Leases that one reply names: some 150 KiB. And that one looks at for shared ones: some 300 us. */
#define LEASES_TOLD      512u
#define LEASES_LOOKED_AT 16384u
/* Shared blocks that one reply names, and the holders of each. */
#define BLOCKS_TOLD  256u
#define HOLDERS_TOLD 32u

uint64_t report_pid(pid_t pid) {
    return pid > 0 ? (uint64_t)pid : 0;
}

const char *report_state_word(const struct session *session) {
    return session == NULL ? "gone" : session->state == SESSION_QUARANTINED ? "quarantined" : "active";
}

void report_process(cJSON *object, const struct session *session) {
    report_integer(object, "session", session->id);
    report_integer(object, "pid", report_pid(session->peer.pid));
    report_integer(object, "uid", session->peer.uid);
    report_scope_name(object, session->tenant->scope);
    cJSON_AddStringToObject(object, "command", session->peer.command);
}

static const char *lease_state(const struct lease *lease) {
    return lease->session->state == SESSION_QUARANTINED ? "quarantined"
           : lease->fence != NULL                       ? "fenced"
                                                        : "held";
}

/* A name of which the block is a part; NULL: there is none, or it has ended. */
static const char *name_of_block(const struct block *block) {
    const struct parcel *first = list_first(&block->named, struct parcel, named_link);
    const struct name *name = first == NULL            ? NULL
                              : first->edition != NULL ? first->edition->name
                                                       : first->channel->name;
    return name == NULL ? NULL : name->text;
}

static cJSON *describe_lease(const struct lease *lease, uint64_t now_ns) {
    const struct block *block = lease->block;
    cJSON *object = cJSON_CreateObject();

    report_integer(object, "id", lease->id);
    report_process(object, lease->session);
    report_integer(object, "pool", block->segment->pool->id);
    report_integer(object, "segment", block->segment->id);
    report_integer(object, "offset_bytes", block->offset_bytes);
    report_integer(object, "bytes", block->held_bytes);
    report_integer(object, "ranges", block->n_ranges);
    cJSON_AddStringToObject(object, "state", lease_state(lease));
    report_integer(object, "holders", block->live + block->fenced + block->quarantined + block->n_parcels);
    report_string(object, "name", name_of_block(block));
    report_integer(object, "age_ns", now_ns > lease->taken_ns ? now_ns - lease->taken_ns : 0);
    return object;
}

void report_leases(cJSON *reply, const struct core *core, uid_t uid, uint64_t session_id) {
    cJSON *leases = cJSON_AddArrayToObject(reply, "leases");
    uint64_t now_ns = clock_now_ns(), total = 0;
    unsigned n_told = 0;

    list_for_each_entry(const struct session, session, &core->sessions, link) {
        if (!report_may_tell(uid, session->tenant->id) || (session_id != 0 && session->id != session_id))
            continue;
        total += session->n_leases;
        list_for_each_entry(const struct lease, lease, &session->leases, session_link) {
            if (n_told == LEASES_TOLD)
                break;
            n_told++;
            cJSON_AddItemToArray(leases, describe_lease(lease, now_ns));
        }
    }
    report_integer(reply, "total", total);
}

static cJSON *describe_block(const struct block *block) {
    cJSON *object = cJSON_CreateObject();
    unsigned n_told = 0;

    report_integer(object, "pool", block->segment->pool->id);
    report_integer(object, "segment", block->segment->id);
    report_integer(object, "offset_bytes", block->offset_bytes);
    report_integer(object, "bytes", block->held_bytes);
    report_integer(object, "parcels", block->n_parcels - block->n_named);
    report_integer(object, "names", block->n_named);
    report_string(object, "name", name_of_block(block));
    report_integer(object, "holders_total", block->live + block->fenced + block->quarantined);
    cJSON *holders = cJSON_AddArrayToObject(object, "holders");
    list_for_each_entry(const struct lease, lease, &block->leases, block_link) {
        if (n_told++ == HOLDERS_TOLD)
            break;
        cJSON *holder = cJSON_CreateObject();
        report_process(holder, lease->session);
        report_integer(holder, "lease", lease->id);
        cJSON_AddStringToObject(holder, "state", lease_state(lease));
        cJSON_AddItemToArray(holders, holder);
    }
    return object;
}

/* A block is told of at the first of its leases. */
static bool is_first_of_shared(const struct lease *lease) {
    return lease->block->shared && lease->block->leases.next == &lease->block_link;
}

void report_sharing(cJSON *reply, const struct core *core, uid_t uid) {
    cJSON *blocks = cJSON_AddArrayToObject(reply, "blocks");
    unsigned n_told = 0, n_looked_at = 0;
    bool is_whole = true;

    list_for_each_entry(const struct session, session, &core->sessions, link) {
        if (!report_may_tell(uid, session->tenant->id))
            continue;
        list_for_each_entry(const struct lease, lease, &session->leases, session_link) {
            is_whole = n_looked_at++ < LEASES_LOOKED_AT && n_told < BLOCKS_TOLD;
            if (!is_whole)
                break;
            if (!is_first_of_shared(lease))
                continue;
            cJSON_AddItemToArray(blocks, describe_block(lease->block));
            n_told++;
        }
        if (!is_whole)
            break;
    }
    cJSON_AddBoolToObject(reply, "is_whole", is_whole);
}

/* A limit, null where there is none. */
static void put_limit(cJSON *object, const char *key, uint64_t limit) {
    report_optional(object, key, limit != QUOTA_UNLIMITED, limit);
}

void report_use(cJSON *object, const struct core *core, const struct quota *quota) {
    report_integer(object, "sessions", quota->used[QUOTA_SESSIONS]);
    put_limit(object, "sessions_limit", quota->limits[QUOTA_SESSIONS]);
    report_integer(object, "leases", quota->used[QUOTA_LEASES]);
    put_limit(object, "leases_limit", quota->limits[QUOTA_LEASES]);
    report_integer(object, "ranges", quota->used[QUOTA_RANGES]);
    put_limit(object, "ranges_limit", quota->limits[QUOTA_RANGES]);
    report_integer(object, "segments", quota->used[QUOTA_SEGMENTS]);
    put_limit(object, "segments_limit", quota->limits[QUOTA_SEGMENTS]);
    report_integer(object, "waiting", quota->used[QUOTA_WAITING]);
    put_limit(object, "waiting_limit", quota->limits[QUOTA_WAITING]);
    report_integer(object, "reply_bytes", quota->used[QUOTA_REPLIES]);
    put_limit(object, "reply_bytes_limit", quota->limits[QUOTA_REPLIES]);
    report_integer(object, "kept_bytes", quota->used[QUOTA_KEPT]);
    put_limit(object, "kept_bytes_limit", quota->limits[QUOTA_KEPT]);
    report_integer(object, "refusals", quota->n_refusals);
    cJSON *pools = cJSON_AddArrayToObject(object, "pools");
    for (unsigned i = 0; i < core->n_pools; i++) {
        unsigned item = quota_item_of_pool(core->pools[i]->id);
        cJSON *pool = cJSON_CreateObject();
        report_integer(pool, "id", core->pools[i]->id);
        cJSON_AddStringToObject(pool, "kind", core->pools[i]->kind == PROTO_POOL_HOST ? "host" : "device");
        report_integer(pool, "bytes", quota->used[item]);
        put_limit(pool, "bytes_limit", quota->limits[item]);
        cJSON_AddItemToArray(pools, pool);
    }
}

static cJSON *describe_quota(const struct tenant *tenant) {
    bool is_subordinate = tenant->account != NULL && tenant->scope == NULL;
    cJSON *object = cJSON_CreateObject();

    report_integer(object, "uid", tenant->id.uid);
    report_scope_name(object, tenant->scope);
    report_optional(object, "charged_to", is_subordinate, is_subordinate ? tenant->account->owner.uid : 0);
    report_integer(object, "names", tenant->n_names);
    report_integer(object, "names_limit", NAMES_MAX);
    report_use(object, tenant->core, &tenant->quota);
    return object;
}

void report_quotas(cJSON *reply, const struct core *core) {
    cJSON *quotas = cJSON_AddArrayToObject(reply, "quotas");
    list_for_each_entry(struct tenant, tenant, &core->tenants, link) {
        cJSON_AddItemToArray(quotas, describe_quota(tenant));
    }
}
