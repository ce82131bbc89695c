/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/backing.h"
#include "daemon/connection.h"
#include "daemon/daemon.h"
#include "daemon/pool/core.h"
#include "daemon/pool/histogram.h"
#include "daemon/pool/tenant.h"
#include "daemon/pool/use.h"
#include "daemon/quarantine.h"

#define REQUEST_DEPTH_MAX 4 /* requests are flat */

/* --- what comes in --- */

/* The length of the UTF-8 character at text, or 0: overlong forms, surrogates and what lies beyond U+10FFFF
 * are none. */
static size_t utf8_length(const unsigned char *text, size_t size) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80       ? 1
                    : text[0] >> 5 == 6  ? 2
                    : text[0] >> 4 == 14 ? 3
                    : text[0] >> 3 == 30 ? 4
                                         : 0;
    if (length == 0 || length > size)
        return 0;
    uint32_t character = length == 1 ? text[0] : text[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (text[i] >> 6 != 2)
            return 0;
        character = character << 6 | (text[i] & 0x3f);
    }
    if (character < least[length] || character > 0x10ffff || (character >= 0xd800 && character <= 0xdfff))
        return 0;
    return length;
}

static size_t count_digits(const unsigned char *text, size_t size) {
    size_t digits = 0;
    while (digits < size && text[digits] >= '0' && text[digits] <= '9')
        digits++;
    return digits;
}

/* The length of the number that begins at text, or 0 where JSON knows none like it: cJSON takes what strtod
 * takes, so also 01 and 1. */
static size_t number_length(const unsigned char *text, size_t size) {
    size_t i = text[0] == '-' ? 1 : 0, digits = count_digits(text + i, size - i);

    if (digits == 0 || (digits > 1 && text[i] == '0'))
        return 0;
    i += digits;
    if (i < size && text[i] == '.') {
        digits = count_digits(text + i + 1, size - i - 1);
        if (digits == 0)
            return 0;
        i += 1 + digits;
    }
    if (i < size && (text[i] == 'e' || text[i] == 'E')) {
        i++;
        if (i < size && (text[i] == '+' || text[i] == '-'))
            i++;
        digits = count_digits(text + i, size - i);
        if (digits == 0)
            return 0;
        i += digits;
    }
    return i;
}

/* Returns NULL, or what is wrong with the line before JSON is even looked at. */
static const char *scan(const char *line, size_t size) {
    const unsigned char *text = (const unsigned char *)line;
    unsigned depth = 0;
    bool in_string = false;

    for (size_t i = 0; i < size;) {
        size_t length = utf8_length(text + i, size - i);
        if (length == 0)
            return "the request is not valid UTF-8";
        if (text[i] < ' ' && text[i] != '\t' && text[i] != '\r')
            return "the request has a control character in it";
        if (!in_string && (text[i] == '-' || count_digits(text + i, 1) > 0)) {
            length = number_length(text + i, size - i);
            if (length == 0)
                return "the request has a number that is none in JSON";
            i += length;
            continue;
        }
        if (in_string && text[i] == '\\') {
            if (size - i >= 6 && memcmp(text + i + 1, "u0000", 5) == 0)
                return "the request has a NUL in it"; /* where cJSON's strings would end */
            i += 2; /* whatever is escaped, a multi-byte character cannot be */
            continue;
        }
        if (text[i] == '"')
            in_string = !in_string;
        else if (!in_string && (text[i] == '{' || text[i] == '[') && ++depth > REQUEST_DEPTH_MAX)
            return "the request is nested too deeply: a request is one flat object";
        else if (!in_string && (text[i] == '}' || text[i] == ']') && depth > 0)
            depth--;
        i += length;
    }
    return NULL;
}

/* The one function that reads integers: cJSON keeps numbers as doubles, which are exact up to 2^53. */
static bool read_integer(const cJSON *item, uint64_t maximum, uint64_t *ret_integer) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble > (double)maximum)
        return false;
    uint64_t integer = (uint64_t)item->valuedouble;
    if ((double)integer != item->valuedouble)
        return false;
    *ret_integer = integer;
    return true;
}

#define COMMANDS "ping, stats, pools, sessions, quota, quarantine, trim, quarantine-release"

struct request_keys {
    const char *command;
    bool has_pool, has_session;
    uint64_t pool, session;
};

/* Takes a parsed request apart. Returns NULL or what is wrong. */
static const char *read_keys(const cJSON *request, struct request_keys *ret_keys) {
    struct request_keys keys = {0};
    const cJSON *item;

    if (!cJSON_IsObject(request))
        return "a request is an object, such as {\"command\":\"stats\"}";
    cJSON_ArrayForEach(item, request) {
        if (strcmp(item->string, "command") == 0) {
            if (keys.command != NULL)
                return "'command' is given twice";
            if (!cJSON_IsString(item))
                return "'command' is a string: " COMMANDS;
            keys.command = item->valuestring;
        } else if (strcmp(item->string, "pool") == 0) {
            if (keys.has_pool)
                return "'pool' is given twice";
            if (!read_integer(item, UINT32_MAX, &keys.pool))
                return "'pool' is a pool's id, a whole number";
            keys.has_pool = true;
        } else if (strcmp(item->string, "session") == 0) {
            if (keys.has_session)
                return "'session' is given twice";
            if (!read_integer(item, UINT64_C(1) << 53, &keys.session))
                return "'session' is a session's id, a whole number";
            keys.has_session = true;
        } else {
            return "the request has an unknown key: there are 'command', 'pool' (for trim) and 'session' "
                   "(for "
                   "quarantine-release)";
        }
    }
    if (keys.command == NULL)
        return "the request has no 'command': one of " COMMANDS;
    *ret_keys = keys;
    return NULL;
}

/* --- what goes out --- */

static void put_integer(cJSON *object, const char *key, uint64_t integer) {
    const uint64_t exact = UINT64_C(1) << 53; /* beyond it a double would show another number */
    cJSON_AddNumberToObject(object, key, (double)(integer < exact ? integer : exact));
}

static void put_string(cJSON *object, const char *key, const char *string) {
    if (string == NULL)
        cJSON_AddNullToObject(object, key);
    else
        cJSON_AddStringToObject(object, key, string);
}

/* How many buffers a cache had; null where nobody counted. */
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

static cJSON *describe_daemon(const struct daemon *daemon, bool brief) {
    cJSON *object = cJSON_CreateObject();

    cJSON_AddStringToObject(object, "version", GPUPOOL_VERSION);
    put_integer(object, "pid", (uint64_t)getpid());
    put_integer(object, "uptime_ns", clock_now_ns() - daemon->started_ns);
    cJSON_AddStringToObject(object, "gpu", gpu_name(daemon->gpu_kind));
    if (brief)
        return object;
    cJSON_AddStringToObject(object, "socket", daemon->data_listener.path);
    put_string(object, "cuda_toolkit", gpu_cuda_built() ? gpu_cuda_toolkit() : NULL);
    put_integer(object, "sessions", daemon->core->n_sessions);
    put_integer(object, "sessions_limit", daemon->core->sessions_limit);
    put_integer(object, "lingering_sockets", daemon->lingering.n_sockets);
    cJSON *notices = cJSON_AddArrayToObject(object, "notices");
    for (unsigned i = 0; i < daemon->n_notices; i++)
        cJSON_AddItemToArray(notices, cJSON_CreateString(daemon->notices[i]));
    return object;
}

static void put_histogram(cJSON *object, const char *key, const struct histogram *histogram) {
    static const struct {
        const char *key;
        unsigned permille;
    } quantiles[] = {{"p50", 500}, {"p90", 900}, {"p99", 990}};
    cJSON *times = cJSON_AddObjectToObject(object, key);

    put_integer(times, "count", histogram->count);
    put_integer(times, "sum", histogram->sum_ns);
    for (unsigned i = 0; i < sizeof quantiles / sizeof *quantiles; i++)
        if (histogram->count == 0)
            cJSON_AddNullToObject(times, quantiles[i].key);
        else
            put_integer(times, quantiles[i].key, histogram_quantile_ns(histogram, quantiles[i].permille));
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

static cJSON *describe_pool(const struct pool *pool, const struct use *use) {
    static const char *const states[] = {"starting", "ready", "failed", "lost"};
    struct supplier *supplier = pool->owner;
    uint64_t call_since_ns;
    const char *call = supplier->started ? worker_call(&supplier->worker, &call_since_ns) : NULL;
    bool is_host = pool->kind == PROTO_POOL_HOST;
    cJSON *object = cJSON_CreateObject();
    char uuid[GPU_UUID_TEXT_SIZE];
    struct gpu_uuid binary;

    memcpy(binary.bytes, pool->uuid, sizeof binary.bytes);
    gpu_uuid_format(&binary, uuid);
    put_integer(object, "id", pool->id);
    cJSON_AddStringToObject(object, "kind", is_host ? "host" : "device");
    cJSON_AddStringToObject(object, "name", pool->name);
    put_string(object, "uuid", is_host ? NULL : uuid);
    if (is_host)
        cJSON_AddNullToObject(object, "device");
    else
        put_integer(object, "device", (uint64_t)pool->device);
    if (pool->numa_node < 0)
        cJSON_AddNullToObject(object, "numa_node");
    else
        put_integer(object, "numa_node", (uint64_t)pool->numa_node);
    put_string(object, "pages", pool->reserved_bytes > 0 ? backing_pages_name(supplier->pages) : NULL);
    cJSON_AddStringToObject(object, "state", states[pool->state]);
    put_integer(object, "limit_bytes", pool->limit_bytes);
    put_integer(object, "step_bytes", pool_step_bytes(pool));
    put_integer(object, "reserve_bytes", pool->reserve_bytes);
    put_integer(object, "low_water_bytes", pool->low_water_bytes);
    put_integer(object, "reserved_bytes", pool->reserved_bytes);
    put_integer(object, "leased_bytes", pool->leased_bytes);
    put_integer(object, "in_use_bytes", use->in_use_bytes);
    put_integer(object, "cached_bytes", use->cached_bytes);
    put_hit_ratio(object, use);
    put_integer(object, "free_bytes", pool_free_bytes(pool));
    put_integer(object, "fenced_bytes", pool->fenced_bytes);
    put_integer(object, "quarantined_bytes", pool->quarantined_bytes);
    put_integer(object, "largest_free_bytes", pool_largest_free_bytes(pool));
    put_integer(object, "growing_bytes", pool->growing_bytes);
    put_integer(object, "segments", pool->n_segments);
    put_integer(object, "leases", pool->n_leases);
    put_integer(object, "waiters", pool->n_waiters);
    put_integer(object, "acquires", pool->n_acquires);
    put_integer(object, "releases", pool->n_releases);
    put_integer(object, "grows", pool->n_grows);
    put_integer(object, "retires", pool->n_retires);
    put_integer(object, "failures", pool->n_failures);
    put_integer(object, "closes", pool->n_closes);
    put_integer(object, "close_ns", pool->close_ns);
    cJSON *histograms = cJSON_AddObjectToObject(object, "histograms");
    put_histogram(histograms, "acquire_ns", &pool->serving);
    put_histogram(histograms, "waiting_ns", &pool->waiting);
    put_histogram(histograms, "growth_ns", &pool->growing);
    put_string(object, "worker_call", call);
    if (call != NULL)
        put_integer(object, "worker_call_ns", clock_now_ns() - call_since_ns);
    else
        cJSON_AddNullToObject(object, "worker_call_ns");
    put_string(object, "last_error", pool->last_error[0] != '\0' ? pool->last_error : NULL);
    return object;
}

/* By which rule it is known to be over, and what bears on that. */
static void put_end(cJSON *object, const struct connection *connection) {
    put_string(object, "end_rule",
               connection != NULL ? death_rule_name(connection_death_rule(connection)) : NULL);
    cJSON_AddBoolToObject(object, "under_mps", connection != NULL && connection_under_mps(connection));
}

static cJSON *describe_session(const struct session *session, uint64_t now_ns) {
    bool quarantined = session->state == SESSION_QUARANTINED;
    cJSON *object = cJSON_CreateObject();
    struct use uses[PROTO_POOLS_MAX], use = {0};

    use_of_session(session, uses);
    for (unsigned i = 0; i < session->core->n_pools; i++)
        use_add(&use, &uses[i]);
    put_integer(object, "id", session->id);
    put_integer(object, "pid", session->peer.pid > 0 ? (uint64_t)session->peer.pid : 0);
    put_integer(object, "uid", session->peer.uid);
    put_integer(object, "gid", session->peer.gid);
    cJSON_AddStringToObject(object, "command", session->peer.command);
    cJSON_AddStringToObject(object, "state", quarantined ? "quarantined" : "active");
    put_string(object, "quarantine_reason", session->quarantine_reason);
    if (quarantined)
        put_integer(object, "quarantined_ns", now_ns - session->lost_ns);
    else
        cJSON_AddNullToObject(object, "quarantined_ns");
    put_end(object, session->owner);
    put_integer(object, "leases", session->n_leases);
    put_integer(object, "leased_bytes", session->leased_bytes);
    put_integer(object, "in_use_bytes", use.in_use_bytes);
    put_integer(object, "cached_bytes", use.cached_bytes);
    put_hit_ratio(object, &use);
    put_integer(object, "fenced_bytes", session->fenced_bytes);
    put_integer(object, "waiting", session->n_requests);
    put_integer(object, "segments", session->n_segments);
    put_integer(object, "connected_ns", now_ns - session->connected_ns);
    return object;
}

static void put_pools(cJSON *reply, const struct core *core) {
    cJSON *pools = cJSON_AddArrayToObject(reply, "pools");
    struct use uses[PROTO_POOLS_MAX];

    use_of_pools(core, uses);
    for (unsigned i = 0; i < core->n_pools; i++)
        cJSON_AddItemToArray(pools, describe_pool(core->pools[i], &uses[i]));
}

static void put_sessions(cJSON *reply, const struct core *core, bool quarantined_only) {
    cJSON *sessions = cJSON_AddArrayToObject(reply, "sessions");
    uint64_t now_ns = clock_now_ns();
    list_for_each(position, &core->sessions) {
        const struct session *session = container_of(position, struct session, link);
        if (!quarantined_only || session->state == SESSION_QUARANTINED)
            cJSON_AddItemToArray(sessions, describe_session(session, now_ns));
    }
}

/* A limit, null where there is none. */
static void put_limit(cJSON *object, const char *key, uint64_t limit) {
    if (limit == QUOTA_UNLIMITED)
        cJSON_AddNullToObject(object, key);
    else
        put_integer(object, key, limit);
}

static cJSON *describe_quota(const struct tenant *tenant) {
    const struct quota *quota = &tenant->quota;
    const struct core *core = tenant->core;
    cJSON *object = cJSON_CreateObject();

    put_integer(object, "uid", tenant->uid);
    put_integer(object, "sessions", quota->used[QUOTA_SESSIONS]);
    put_limit(object, "sessions_limit", quota->limits[QUOTA_SESSIONS]);
    put_integer(object, "leases", quota->used[QUOTA_LEASES]);
    put_limit(object, "leases_limit", quota->limits[QUOTA_LEASES]);
    put_integer(object, "waiting", quota->used[QUOTA_WAITING]);
    put_limit(object, "waiting_limit", quota->limits[QUOTA_WAITING]);
    put_integer(object, "reply_bytes", quota->used[QUOTA_REPLIES]);
    put_limit(object, "reply_bytes_limit", quota->limits[QUOTA_REPLIES]);
    put_integer(object, "refusals", quota->n_refusals);
    cJSON *pools = cJSON_AddArrayToObject(object, "pools");
    for (unsigned i = 0; i < core->n_pools; i++) {
        unsigned item = quota_item_of_pool(core->pools[i]);
        cJSON *pool = cJSON_CreateObject();
        put_integer(pool, "id", core->pools[i]->id);
        cJSON_AddStringToObject(pool, "kind", core->pools[i]->kind == PROTO_POOL_HOST ? "host" : "device");
        put_integer(pool, "bytes", quota->used[item]);
        put_limit(pool, "bytes_limit", quota->limits[item]);
        cJSON_AddItemToArray(pools, pool);
    }
    return object;
}

static void put_quotas(cJSON *reply, const struct core *core) {
    cJSON *quotas = cJSON_AddArrayToObject(reply, "quotas");
    list_for_each(position, &core->tenants)
        cJSON_AddItemToArray(quotas, describe_quota(container_of(position, struct tenant, link)));
}

/* Prints the reply on one line. Takes it. */
static char *finish(cJSON *reply) {
    char *text = cJSON_PrintUnformatted(reply);
    cJSON_Delete(reply);
    if (text == NULL)
        return NULL;
    size_t length = strlen(text);
    char *line = realloc(text, length + 2);
    if (line == NULL) {
        free(text);
        return NULL;
    }
    memcpy(line + length, "\n", 2);
    return line;
}

char *admin_json_error(const char *code, const char *message) {
    cJSON *reply = cJSON_CreateObject();
    cJSON *error = cJSON_AddObjectToObject(reply, "error");
    cJSON_AddStringToObject(error, "code", code);
    cJSON_AddStringToObject(error, "message", message);
    return finish(reply);
}

static char *answer_trim(struct daemon *daemon, uid_t uid, const struct request_keys *keys) {
    const struct core *core = daemon->core;
    uint64_t total = 0;

    if (uid != 0 && uid != geteuid())
        return admin_json_error("permission-denied", "trim is for root and for the daemon's own user");
    if (keys->has_pool && core_find_pool(core, (uint32_t)keys->pool) == NULL)
        return admin_json_error("no-such-pool", "no pool has this id; 'pools' lists them");
    cJSON *reply = cJSON_CreateObject();
    cJSON *pools = cJSON_CreateArray();
    for (unsigned i = 0; i < core->n_pools; i++) {
        struct pool *pool = core->pools[i];
        if (keys->has_pool && pool->id != keys->pool)
            continue;
        uint64_t bytes = core_trim(pool);
        cJSON *entry = cJSON_CreateObject();
        put_integer(entry, "id", pool->id);
        put_integer(entry, "trimmed_bytes", bytes);
        cJSON_AddItemToArray(pools, entry);
        total += bytes;
    }
    put_integer(reply, "trimmed_bytes", total);
    cJSON_AddItemToObject(reply, "pools", pools);
    return finish(reply);
}

static char *answer_quarantine_release(struct daemon *daemon, uid_t uid, const struct request_keys *keys) {
    struct quarantine_released released;

    if (!keys->has_session)
        return admin_json_error("invalid-request", "quarantine-release needs a 'session'");
    if (uid != 0)
        return admin_json_error("permission-denied", "what is in quarantine is for root alone to release");
    int r = quarantine_release(daemon, keys->session, &released);
    if (r == -ENOENT)
        return admin_json_error("no-such-session",
                                "no session in quarantine has this id; 'quarantine' lists them");
    cJSON *reply = cJSON_CreateObject();
    put_integer(reply, "session", keys->session);
    put_integer(reply, "pid", released.pid > 0 ? (uint64_t)released.pid : 0);
    put_integer(reply, "released_bytes", released.bytes);
    put_string(reply, "quarantine_reason", released.reason);
    return finish(reply);
}

static char *answer(struct daemon *daemon, uid_t uid, const struct request_keys *keys) {
    const struct core *core = daemon->core;

    if (strcmp(keys->command, "trim") == 0 && !keys->has_session)
        return answer_trim(daemon, uid, keys);
    if (keys->has_pool)
        return admin_json_error("invalid-request", "'pool' goes with trim only");
    if (strcmp(keys->command, "quarantine-release") == 0)
        return answer_quarantine_release(daemon, uid, keys);
    if (keys->has_session)
        return admin_json_error("invalid-request", "'session' goes with quarantine-release only");
    bool stats = strcmp(keys->command, "stats") == 0;
    bool ping = strcmp(keys->command, "ping") == 0;
    bool pools = strcmp(keys->command, "pools") == 0;
    bool sessions = strcmp(keys->command, "sessions") == 0;
    bool quota = strcmp(keys->command, "quota") == 0;
    bool quarantine = strcmp(keys->command, "quarantine") == 0;
    if (!stats && !ping && !pools && !sessions && !quota && !quarantine)
        return admin_json_error("unknown-command", "the commands are " COMMANDS);
    core_look(daemon->core);
    cJSON *reply = cJSON_CreateObject();
    if (stats || ping)
        cJSON_AddItemToObject(reply, "daemon", describe_daemon(daemon, ping));
    if (stats || pools)
        put_pools(reply, core);
    if (stats || sessions || quarantine)
        put_sessions(reply, core, quarantine);
    if (quota)
        put_quotas(reply, core);
    return finish(reply);
}

char *admin_json_answer(struct daemon *daemon, uid_t uid, const char *line, size_t size) {
    struct request_keys keys;
    const char *end, *wrong = scan(line, size);

    if (wrong != NULL)
        return admin_json_error("invalid-request", wrong);
    cJSON *request = cJSON_ParseWithLengthOpts(line, size, &end, 0);
    while (request != NULL && end < line + size && strchr(" \t\r", *end) != NULL)
        end++;
    if (request == NULL || end != line + size) {
        cJSON_Delete(request);
        return admin_json_error("invalid-request", "the line is not one JSON object");
    }
    wrong = read_keys(request, &keys);
    char *reply = wrong != NULL ? admin_json_error("invalid-request", wrong) : answer(daemon, uid, &keys);
    cJSON_Delete(request);
    return reply;
}
