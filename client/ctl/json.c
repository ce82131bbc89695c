/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

/* Up to here a double has every integer: 2^53. */
#define INTEGER_MAX 9007199254740992.0

/* What is being read. The first thing that fails is kept in r and reason; after it nothing more is read. */
/* How messages call the whole reply. */
#define ROOT "reply"

struct reader {
    int r;
    char *reason;
    char where[96]; /* "pools[3]" */
};

static void cjson_deletep(cJSON **json) {
    cJSON_Delete(*json);
}

__attribute__((format(printf, 2, 3))) static void reader_fail(struct reader *reader, const char *format,
                                                              ...) {
    va_list arguments;

    if (reader->r < 0)
        return;
    va_start(arguments, format);
    reader->r = vasprintf(&reader->reason, format, arguments) < 0 ? -ENOMEM : -EBADMSG;
    va_end(arguments);
    if (reader->r == -ENOMEM)
        reader->reason = NULL; /* what vasprintf leaves there is undefined */
}

/* What JSON forbids and cJSON lets through: control characters and bytes that are not UTF-8. */
static void check_characters(struct reader *reader, const char *line, size_t length) {
    for (size_t i = 0, bytes; i < length; i += bytes) {
        uint32_t character;
        bytes = utf8_decode(line + i, length - i, &character);
        if (bytes == 0 || character < 0x20) {
            reader_fail(reader, "byte %zu (0x%02x) is %s", i, (unsigned char)line[i],
                        bytes == 0 ? "not UTF-8" : "a control character");
            return;
        }
    }
}

static const cJSON *read_member(struct reader *reader, const cJSON *object, const char *key) {
    if (reader->r < 0)
        return NULL;
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(object, key);
    if (member == NULL)
        reader_fail(reader, "%s.%s is missing", reader->where, key);
    return member;
}

static uint64_t read_integer(struct reader *reader, const cJSON *object, const char *key, bool nullable) {
    const cJSON *member = read_member(reader, object, key);
    if (member == NULL)
        return 0;
    if (nullable && cJSON_IsNull(member))
        return REPLY_NULL;
    double value = member->valuedouble;
    if (!cJSON_IsNumber(member) || !(value >= 0 && value <= INTEGER_MAX) ||
        value != (double)(uint64_t)value) {
        reader_fail(reader, "%s.%s is not an integer from 0 to 2^53", reader->where, key);
        return 0;
    }
    return (uint64_t)value;
}

static uint64_t read_count(struct reader *reader, const cJSON *object, const char *key) {
    return read_integer(reader, object, key, false);
}

static bool read_boolean(struct reader *reader, const cJSON *object, const char *key) {
    const cJSON *member = read_member(reader, object, key);
    if (member != NULL && !cJSON_IsBool(member))
        reader_fail(reader, "%s.%s is neither true nor false", reader->where, key);
    return member != NULL && cJSON_IsTrue(member);
}

static double read_ratio(struct reader *reader, const cJSON *object, const char *key) {
    const cJSON *member = read_member(reader, object, key);
    if (member == NULL || cJSON_IsNull(member))
        return REPLY_NULL_RATIO;
    if (!cJSON_IsNumber(member) || !(member->valuedouble >= 0 && member->valuedouble <= 1))
        reader_fail(reader, "%s.%s is not a number from 0 to 1", reader->where, key);
    return member->valuedouble;
}

static char *read_string(struct reader *reader, const cJSON *object, const char *key, bool nullable) {
    const cJSON *member = read_member(reader, object, key);
    if (member == NULL || (nullable && cJSON_IsNull(member)))
        return NULL;
    if (!cJSON_IsString(member)) {
        reader_fail(reader, "%s.%s is not a string", reader->where, key);
        return NULL;
    }
    char *copy = strdup(member->valuestring);
    if (copy == NULL)
        reader->r = -ENOMEM;
    return copy;
}

static char *read_text(struct reader *reader, const cJSON *object, const char *key) {
    return read_string(reader, object, key, false);
}

/* An array's first member and room for as many elements as it has; NULL with nothing to read. */
static void *read_array(struct reader *reader, const cJSON *object, const char *key, bool nullable,
                        size_t element_size, size_t *ret_count, const cJSON **ret_first) {
    const cJSON *array = read_member(reader, object, key);
    if (array == NULL || (nullable && cJSON_IsNull(array)))
        return NULL;
    if (!cJSON_IsArray(array)) {
        reader_fail(reader, "%s.%s is not an array", reader->where, key);
        return NULL;
    }
    size_t count = (size_t)cJSON_GetArraySize(array);
    if (count == 0)
        return NULL;
    void *elements = calloc(count, element_size);
    if (elements == NULL) {
        reader->r = -ENOMEM;
        return NULL;
    }
    *ret_count = count;
    *ret_first = array->child;
    return elements;
}

/* Enters the object at an array's index, or the one with a name. */
static bool read_enter(struct reader *reader, const cJSON *object, const char *name, size_t index) {
    if (reader->r < 0)
        return false;
    if (index == SIZE_MAX)
        snprintf(reader->where, sizeof reader->where, "%s", name);
    else
        snprintf(reader->where, sizeof reader->where, "%s[%zu]", name, index);
    if (!cJSON_IsObject(object))
        reader_fail(reader, "%s is not an object", reader->where);
    return reader->r == 0;
}

/* Reads each object of an array by read_one(). Returns the elements; NULL with nothing to read. */
static void *read_each(struct reader *reader, const cJSON *object, const char *key, bool nullable,
                       size_t element_size,
                       void (*read_one)(struct reader *reader, const cJSON *object, void *element),
                       size_t *ret_count) {
    char where[sizeof reader->where], name[64];
    const cJSON *member = NULL;

    char *elements = read_array(reader, object, key, nullable, element_size, ret_count, &member);
    if (elements == NULL)
        return NULL;
    memcpy(where, reader->where, sizeof where);
    if (strcmp(where, ROOT) == 0)
        snprintf(name, sizeof name, "%s", key);
    else
        snprintf(name, sizeof name, "%.48s.%s", where, key);
    for (size_t i = 0; i < *ret_count && read_enter(reader, member, name, i); i++, member = member->next)
        read_one(reader, member, elements + i * element_size);
    memcpy(reader->where, where, sizeof where);
    return elements;
}

static void read_daemon(struct reader *reader, const cJSON *root, bool stats, struct reply_daemon *daemon) {
    const cJSON *object = read_member(reader, root, "daemon"), *notice = NULL;

    if (!read_enter(reader, object, "daemon", SIZE_MAX))
        return;
    daemon->version = read_text(reader, object, "version");
    daemon->gpu = read_text(reader, object, "gpu");
    daemon->pid = read_count(reader, object, "pid");
    daemon->uptime_ns = read_count(reader, object, "uptime_ns");
    if (!stats)
        return;
    daemon->socket = read_text(reader, object, "socket");
    daemon->cuda_toolkit = read_string(reader, object, "cuda_toolkit", true);
    daemon->sessions = read_count(reader, object, "sessions");
    daemon->sessions_limit = read_count(reader, object, "sessions_limit");
    daemon->sessions_refused = read_count(reader, object, "sessions_refused");
    daemon->lingering_sockets = read_count(reader, object, "lingering_sockets");
    daemon->notices =
        read_array(reader, object, "notices", false, sizeof *daemon->notices, &daemon->n_notices, &notice);
    for (size_t i = 0; i < daemon->n_notices && reader->r == 0; i++, notice = notice->next) {
        if (!cJSON_IsString(notice))
            reader_fail(reader, "daemon.notices[%zu] is not a string", i);
        else if ((daemon->notices[i] = strdup(notice->valuestring)) == NULL)
            reader->r = -ENOMEM;
    }
}

/* Reads one of a pool's histograms. The buckets are for programs. */
static struct reply_times read_times(struct reader *reader, const cJSON *histograms, const char *key) {
    struct reply_times times = {0};
    char where[sizeof reader->where];
    const cJSON *object = read_member(reader, histograms, key);

    memcpy(where, reader->where, sizeof where);
    if (!read_enter(reader, object, key, SIZE_MAX))
        return times;
    times.count = read_count(reader, object, "count");
    times.p50_ns = read_integer(reader, object, "p50", true);
    times.p90_ns = read_integer(reader, object, "p90", true);
    times.p99_ns = read_integer(reader, object, "p99", true);
    memcpy(reader->where, where, sizeof where);
    return times;
}

static void read_histograms(struct reader *reader, const cJSON *pool_object, struct reply_pool *pool) {
    const cJSON *object = read_member(reader, pool_object, "histograms");
    char where[sizeof reader->where];

    memcpy(where, reader->where, sizeof where);
    if (!read_enter(reader, object, "histograms", SIZE_MAX))
        return;
    pool->acquire = read_times(reader, object, "acquire_ns");
    pool->waiting = read_times(reader, object, "waiting_ns");
    pool->growth = read_times(reader, object, "growth_ns");
    memcpy(reader->where, where, sizeof where);
}

static void read_pool(struct reader *reader, const cJSON *object, void *element) {
    struct reply_pool *pool = element;
    pool->id = read_count(reader, object, "id");
    pool->kind = read_text(reader, object, "kind");
    pool->name = read_text(reader, object, "name");
    pool->state = read_text(reader, object, "state");
    pool->uuid = read_string(reader, object, "uuid", true);
    pool->pages = read_string(reader, object, "pages", true);
    pool->last_error = read_string(reader, object, "last_error", true);
    pool->worker_call = read_string(reader, object, "worker_call", true);
    pool->worker_call_ns = read_integer(reader, object, "worker_call_ns", true);
    pool->device = read_integer(reader, object, "device", true);
    pool->numa_node = read_integer(reader, object, "numa_node", true);
    pool->limit_bytes = read_count(reader, object, "limit_bytes");
    pool->step_bytes = read_count(reader, object, "step_bytes");
    pool->reserve_bytes = read_count(reader, object, "reserve_bytes");
    pool->low_water_bytes = read_count(reader, object, "low_water_bytes");
    pool->reserved_bytes = read_count(reader, object, "reserved_bytes");
    pool->leased_bytes = read_count(reader, object, "leased_bytes");
    pool->in_use_bytes = read_count(reader, object, "in_use_bytes");
    pool->cached_bytes = read_count(reader, object, "cached_bytes");
    pool->hit_ratio = read_ratio(reader, object, "hit_ratio");
    pool->free_bytes = read_count(reader, object, "free_bytes");
    pool->fenced_bytes = read_count(reader, object, "fenced_bytes");
    pool->quarantined_bytes = read_count(reader, object, "quarantined_bytes");
    pool->largest_free_bytes = read_count(reader, object, "largest_free_bytes");
    pool->growing_bytes = read_count(reader, object, "growing_bytes");
    pool->segments = read_count(reader, object, "segments");
    pool->leases = read_count(reader, object, "leases");
    pool->waiters = read_count(reader, object, "waiters");
    pool->acquires = read_count(reader, object, "acquires");
    pool->releases = read_count(reader, object, "releases");
    pool->grows = read_count(reader, object, "grows");
    pool->retires = read_count(reader, object, "retires");
    pool->failures = read_count(reader, object, "failures");
    pool->timeouts = read_count(reader, object, "timeouts");
    pool->quota_refusals = read_count(reader, object, "quota_refusals");
    pool->probes = read_count(reader, object, "probes");
    pool->leased_peak_bytes = read_count(reader, object, "leased_peak_bytes");
    pool->reserved_peak_bytes = read_count(reader, object, "reserved_peak_bytes");
    pool->quarantined_peak_bytes = read_count(reader, object, "quarantined_peak_bytes");
    pool->quarantine_oldest_ns = read_integer(reader, object, "quarantine_oldest_ns", true);
    pool->closes = read_count(reader, object, "closes");
    pool->close_ns = read_count(reader, object, "close_ns");
    read_histograms(reader, object, pool);
}

static void read_holding(struct reader *reader, const cJSON *object, void *element) {
    struct reply_holding *pool = element;
    pool->id = read_count(reader, object, "id");
    pool->leased_bytes = read_count(reader, object, "leased_bytes");
    pool->in_use_bytes = read_count(reader, object, "in_use_bytes");
    pool->cached_bytes = read_count(reader, object, "cached_bytes");
    pool->fenced_bytes = read_count(reader, object, "fenced_bytes");
    pool->closing_bytes = read_count(reader, object, "closing_bytes");
    pool->segments = read_count(reader, object, "segments");
}

static void read_request(struct reader *reader, const cJSON *object, void *element) {
    struct reply_request *request = element;
    request->pool = read_count(reader, object, "pool");
    request->bytes = read_count(reader, object, "bytes");
    request->wanted_bytes = read_count(reader, object, "wanted_bytes");
    request->waiting_ns = read_count(reader, object, "waiting_ns");
    request->left_ns = read_integer(reader, object, "left_ns", true);
    request->reason = read_text(reader, object, "reason");
}

static void read_session(struct reader *reader, const cJSON *object, void *element) {
    struct reply_session *session = element;
    session->id = read_count(reader, object, "id");
    session->pid = read_count(reader, object, "pid");
    session->uid = read_count(reader, object, "uid");
    session->gid = read_count(reader, object, "gid");
    session->command = read_text(reader, object, "command");
    session->state = read_text(reader, object, "state");
    session->quarantine_reason = read_string(reader, object, "quarantine_reason", true);
    session->quarantined_ns = read_integer(reader, object, "quarantined_ns", true);
    session->end_rule = read_string(reader, object, "end_rule", true);
    session->under_mps = read_boolean(reader, object, "under_mps");
    session->leases = read_count(reader, object, "leases");
    session->leased_bytes = read_count(reader, object, "leased_bytes");
    session->fenced_bytes = read_count(reader, object, "fenced_bytes");
    session->in_use_bytes = read_count(reader, object, "in_use_bytes");
    session->cached_bytes = read_count(reader, object, "cached_bytes");
    session->hit_ratio = read_ratio(reader, object, "hit_ratio");
    session->waiting = read_count(reader, object, "waiting");
    session->segments = read_count(reader, object, "segments");
    session->connected_ns = read_count(reader, object, "connected_ns");
    session->pools =
        read_each(reader, object, "pools", true, sizeof *session->pools, read_holding, &session->n_pools);
    session->requests = read_each(reader, object, "requests", true, sizeof *session->requests, read_request,
                                  &session->n_requests);
}

static void read_quota_pool(struct reader *reader, const cJSON *object, void *element) {
    struct reply_quota_pool *pool = element;
    pool->id = read_count(reader, object, "id");
    pool->kind = read_text(reader, object, "kind");
    pool->bytes = read_count(reader, object, "bytes");
    pool->bytes_limit = read_integer(reader, object, "bytes_limit", true);
}

static void read_quota(struct reader *reader, const cJSON *object, void *element) {
    struct reply_quota *quota = element;
    quota->uid = read_count(reader, object, "uid");
    quota->refusals = read_count(reader, object, "refusals");
    quota->sessions = read_count(reader, object, "sessions");
    quota->sessions_limit = read_integer(reader, object, "sessions_limit", true);
    quota->leases = read_count(reader, object, "leases");
    quota->leases_limit = read_integer(reader, object, "leases_limit", true);
    quota->waiting = read_count(reader, object, "waiting");
    quota->waiting_limit = read_integer(reader, object, "waiting_limit", true);
    quota->reply_bytes = read_count(reader, object, "reply_bytes");
    quota->reply_bytes_limit = read_integer(reader, object, "reply_bytes_limit", true);
    quota->pools =
        read_each(reader, object, "pools", false, sizeof *quota->pools, read_quota_pool, &quota->n_pools);
}

static void read_trimmed(struct reader *reader, const cJSON *object, void *element) {
    struct reply_trimmed *pool = element;
    pool->id = read_count(reader, object, "id");
    pool->trimmed_bytes = read_count(reader, object, "trimmed_bytes");
}

static void read_parts(struct reader *reader, const cJSON *root, unsigned parts, struct reply *reply) {
    if (!read_enter(reader, root, ROOT, SIZE_MAX))
        return;
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(root, "error");
    if (error != NULL) {
        if (read_enter(reader, error, "error", SIZE_MAX)) {
            reply->error_code = read_text(reader, error, "code");
            reply->error_message = read_text(reader, error, "message");
        }
        return;
    }
    if (parts & (REPLY_DAEMON | REPLY_DAEMON_STATS))
        read_daemon(reader, root, parts & REPLY_DAEMON_STATS, &reply->daemon);
    if (parts & REPLY_POOLS && read_enter(reader, root, ROOT, SIZE_MAX))
        reply->pools =
            read_each(reader, root, "pools", false, sizeof *reply->pools, read_pool, &reply->n_pools);
    if (parts & REPLY_SESSIONS && read_enter(reader, root, ROOT, SIZE_MAX))
        reply->sessions = read_each(reader, root, "sessions", false, sizeof *reply->sessions, read_session,
                                    &reply->n_sessions);
    if (parts & REPLY_QUOTAS && read_enter(reader, root, ROOT, SIZE_MAX))
        reply->quotas =
            read_each(reader, root, "quotas", false, sizeof *reply->quotas, read_quota, &reply->n_quotas);
    if (parts & REPLY_RELEASED && read_enter(reader, root, ROOT, SIZE_MAX)) {
        reply->released_session = read_count(reader, root, "session");
        reply->released_pid = read_count(reader, root, "pid");
        reply->released_bytes = read_count(reader, root, "released_bytes");
    }
    if (parts & REPLY_TRIMMED && read_enter(reader, root, ROOT, SIZE_MAX)) {
        reply->trimmed_bytes = read_count(reader, root, "trimmed_bytes");
        reply->trimmed =
            read_each(reader, root, "pools", false, sizeof *reply->trimmed, read_trimmed, &reply->n_trimmed);
    }
}

int reply_read(const char *line, size_t length, unsigned parts, struct reply **ret_reply, char **ret_reason) {
    _cleanup_(reply_freep) struct reply *reply = calloc(1, sizeof *reply);
    struct reader reader = {0};

    if (reply == NULL)
        return -ENOMEM;
    check_characters(&reader, line, length);
    if (reader.r == 0) {
        /* The NUL counts: with it cJSON refuses what follows the value. */
        _cleanup_(cjson_deletep) cJSON *root = cJSON_ParseWithLengthOpts(line, length + 1, NULL, true);
        if (root == NULL)
            reader_fail(&reader, "it is not JSON");
        else
            read_parts(&reader, root, parts, reply);
    }
    if (reader.r < 0) {
        if (reader.r == -EBADMSG)
            *ret_reason = reader.reason;
        else
            free(reader.reason);
        return reader.r;
    }
    *ret_reply = take_ptr(&reply);
    return 0;
}

struct reply *reply_free(struct reply *reply) {
    if (reply == NULL)
        return NULL;
    free(reply->error_code);
    free(reply->error_message);
    free(reply->daemon.version);
    free(reply->daemon.gpu);
    free(reply->daemon.socket);
    free(reply->daemon.cuda_toolkit);
    for (size_t i = 0; i < reply->daemon.n_notices; i++)
        free(reply->daemon.notices[i]);
    free(reply->daemon.notices);
    for (size_t i = 0; i < reply->n_pools; i++) {
        free(reply->pools[i].kind);
        free(reply->pools[i].name);
        free(reply->pools[i].state);
        free(reply->pools[i].uuid);
        free(reply->pools[i].pages);
        free(reply->pools[i].last_error);
        free(reply->pools[i].worker_call);
    }
    free(reply->pools);
    for (size_t i = 0; i < reply->n_sessions; i++) {
        free(reply->sessions[i].command);
        free(reply->sessions[i].state);
        free(reply->sessions[i].quarantine_reason);
        free(reply->sessions[i].end_rule);
        free(reply->sessions[i].pools);
        for (size_t j = 0; j < reply->sessions[i].n_requests; j++)
            free(reply->sessions[i].requests[j].reason);
        free(reply->sessions[i].requests);
    }
    free(reply->sessions);
    for (size_t i = 0; i < reply->n_quotas; i++) {
        for (size_t j = 0; j < reply->quotas[i].n_pools; j++)
            free(reply->quotas[i].pools[j].kind);
        free(reply->quotas[i].pools);
    }
    free(reply->quotas);
    free(reply->trimmed);
    free(reply);
    return NULL;
}
