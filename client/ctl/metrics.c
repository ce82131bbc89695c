/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/metrics.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "client/ctl/json.h"

/* A scope has up to eight labels of 31 and 127 bytes, and each of the latter can be escaped. */
#define LABELS_SIZE 4096u

/* A metric of an object of the reply: a gauge, or a counter if its name ends in _total. A key that ends in
 * _ns is of a time, which the metric has in seconds. */
struct metric {
    const char *name, *key, *help;
};

static const struct metric of_daemon[] = {
    {"gpupool_uptime_seconds", "uptime_ns", "Time since the daemon started."},
    {"gpupool_sessions", "sessions", "Connected processes, and those whose memory is in quarantine."},
    {"gpupool_sessions_limit", "sessions_limit", "Sessions that there may be."},
    {"gpupool_sessions_refused_total", "sessions_refused", "Sessions that were refused."},
    {"gpupool_lingering_sockets", "lingering_sockets",
     "Ended connections with answers that nobody has read."},
    {"gpupool_descriptors_limit", "descriptors_limit", "Descriptors that the daemon may have."},
    {"gpupool_described_segments", "described_segments", "Segments that take a descriptor of the daemon."},
    {"gpupool_described_segments_limit", "described_segments_limit", "Such segments that there may be."},
    {"gpupool_stored_descriptors", "stored_descriptors",
     "Descriptors that the service manager holds, for the next daemon."},
    {"gpupool_stored_descriptors_limit", "stored_descriptors_limit",
     "Such descriptors that there may be; 0: no service manager holds any."},
};

static const struct metric of_pool[] = {
    {"gpupool_pool_limit_bytes", "limit_bytes", "What the pool may grow to."},
    {"gpupool_pool_reserved_bytes", "reserved_bytes", "What the pool has from the driver or the kernel."},
    {"gpupool_pool_leased_bytes", "leased_bytes", "In use, or idle in clients' caches."},
    {"gpupool_pool_in_use_bytes", "in_use_bytes", "In use, as far as clients say."},
    {"gpupool_pool_cached_bytes", "cached_bytes", "Idle in clients' caches."},
    {"gpupool_pool_free_bytes", "free_bytes", "Free in the daemon."},
    {"gpupool_pool_largest_free_bytes", "largest_free_bytes", "The longest free range in one segment."},
    {"gpupool_pool_fenced_bytes", "fenced_bytes", "Given back, and free when the streams are done with it."},
    {"gpupool_pool_quarantined_bytes", "quarantined_bytes",
     "Of processes that ended without a farewell and may still have work on a GPU."},
    {"gpupool_pool_parcel_bytes", "parcel_bytes", "Held by buffers that were sent and not taken yet."},
    {"gpupool_pool_named_bytes", "named_bytes", "Of buffers that names hold, and no process."},
    {"gpupool_pool_growing_bytes", "growing_bytes", "Asked of the driver or the kernel and not there yet."},
    {"gpupool_pool_leased_peak_bytes", "leased_peak_bytes", "The most that was leased since the start."},
    {"gpupool_pool_reserved_peak_bytes", "reserved_peak_bytes",
     "The most that was reserved since the start."},
    {"gpupool_pool_segments", "segments", "Segments of the pool."},
    {"gpupool_pool_leases", "leases", "Leases of sessions."},
    {"gpupool_pool_parcels", "parcels", "Buffers that were sent and not taken yet."},
    {"gpupool_pool_named_buffers", "named", "Buffers that are published under names."},
    {"gpupool_pool_channels", "channels", "Channels whose slots lie in the pool."},
    {"gpupool_pool_channel_bytes", "channel_bytes", "Memory of the slots of channels."},
    {"gpupool_pool_vacant_consumers", "vacant_consumers",
     "Consumer places of channels whose process died: their frames hold slots."},
    {"gpupool_pool_waiters", "waiters", "Requests that wait for room."},
    {"gpupool_pool_waiting_oldest_seconds", "waiting_oldest_ns",
     "How long the oldest request for room has waited; 0: none waits."},
    {"gpupool_pool_quarantine_oldest_seconds", "quarantine_oldest_ns",
     "How long the oldest session in quarantine has had memory there; 0: there is none."},
    {"gpupool_pool_worker_call_seconds", "worker_call_ns",
     "How long the worker has been in its driver call; 0: it is in none."},
    {"gpupool_pool_acquires_total", "acquires", "Leases given."},
    {"gpupool_pool_releases_total", "releases", "Leases ended, whole."},
    {"gpupool_pool_grows_total", "grows", "Segments made."},
    {"gpupool_pool_retires_total", "retires", "Segments given back to the driver or the kernel."},
    {"gpupool_pool_failures_total", "failures", "Requests that ended in an error for their caller."},
    {"gpupool_pool_timeouts_total", "timeouts", "Failures of requests that waited until their deadline."},
    {"gpupool_pool_quota_refusals_total", "quota_refusals", "Failures for a quota."},
    {"gpupool_pool_closes_total", "closes", "Mappings that clients closed because the daemon asked."},
    {"gpupool_pool_close_seconds_total", "close_ns", "Time that closing them took the clients."},
};

static const struct metric of_user[] = {
    {"gpupool_user_sessions", "sessions", "Sessions of the user."},
    {"gpupool_user_leases", "leases", "Leases of the user."},
    {"gpupool_user_waiting", "waiting", "Requests of the user that wait."},
    {"gpupool_user_names", "names", "Names that processes of the user publish, build or wait for."},
    {"gpupool_user_kept_bytes", "kept_bytes", "What names of the user keep beyond their publishers."},
    {"gpupool_user_kept_limit_bytes", "kept_bytes_limit", "The user's quota of that, if there is one."},
    {"gpupool_user_refusals_total", "refusals", "Refusals for a quota of the user."},
};

static const struct metric of_user_in_pool[] = {
    {"gpupool_user_pool_bytes", "bytes", "The user's bytes in the pool."},
    {"gpupool_user_pool_limit_bytes", "bytes_limit", "The user's quota in the pool, if there is one."},
};

static const struct metric of_scope[] = {
    {"gpupool_scope_sessions", "sessions", "Sessions of the scope."},
    {"gpupool_scope_waiting", "waiting", "Requests of the scope that wait."},
    {"gpupool_scope_kept_bytes", "kept_bytes", "What names of the scope keep beyond their publishers."},
    {"gpupool_scope_kept_limit_bytes", "kept_bytes_limit", "The scope's quota of that, if there is one."},
    {"gpupool_scope_refusals_total", "refusals", "Refusals for a quota of the scope or its users."},
    {"gpupool_scope_reserved_bytes", "reserved_bytes", "The scope's segments, with what is idle."},
};

static const struct metric of_scope_in_pool[] = {
    {"gpupool_scope_pool_bytes", "bytes", "The scope's bytes in the pool."},
    {"gpupool_scope_pool_limit_bytes", "bytes_limit", "The scope's quota in the pool, if there is one."},
};

static const struct metric histograms[] = {
    {"gpupool_pool_acquire_seconds", "histograms.acquire_ns", "Acquires that were answered at once."},
    {"gpupool_pool_waiting_seconds", "histograms.waiting_ns", "Acquires that waited for room."},
    {"gpupool_pool_growth_seconds", "histograms.growth_ns", "Growths of the pool."},
};

/* The upper bounds of the histograms' buckets: powers of four from 1 us to 69 s. */
#define BUCKET_FIRST_NS (UINT64_C(1) << 10)
#define BUCKETS         14u

/* --- labels --- */

/* Adds name="value", with the characters escaped that the format reserves. One for which there is no room is
 * left out. */
static void add_label(char labels[LABELS_SIZE], const char *name, const char *value) {
    size_t begin = strlen(labels), length = begin;

    if (begin + strlen(name) + 2 * strlen(value) + sizeof ",=\"\"" > LABELS_SIZE)
        return;
    length += (size_t)snprintf(labels + length, LABELS_SIZE - length, "%s%s=\"", length > 0 ? "," : "", name);
    for (; *value != '\0'; value++) {
        if (*value == '\\' || *value == '"' || *value == '\n')
            labels[length++] = '\\';
        labels[length++] = *value == '\n' ? 'n' : *value;
    }
    memcpy(labels + length, "\"", 2);
}

static void add_number_label(char labels[LABELS_SIZE], const char *name, uint64_t number) {
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, number);
    add_label(labels, name, text);
}

/* A pool's labels; gpu and UUID are spelt as dcgm-exporter's, so that a query can join both. */
static void label_pool(char labels[LABELS_SIZE], const struct cJSON *pool) {
    const char *uuid = reply_text(pool, "uuid");
    uint64_t node = reply_count(pool, "numa_node");

    labels[0] = '\0';
    add_number_label(labels, "pool", reply_count(pool, "id"));
    add_label(labels, "kind", reply_text(pool, "kind"));
    if (uuid != NULL) {
        add_label(labels, "UUID", uuid);
        add_number_label(labels, "gpu", reply_count(pool, "device"));
    }
    if (node != REPLY_NULL)
        add_number_label(labels, "numa_node", node);
}

/* The labels of a user of the ordinary socket, or of a scope. Users of scopes have no metrics: a container
 * can have any number of them. Returns whether there are some. */
static bool label_owner(char labels[LABELS_SIZE], const struct cJSON *owner, bool is_user) {
    const char *scope = reply_text(owner, "scope");

    labels[0] = '\0';
    if (is_user && scope == NULL)
        add_number_label(labels, "uid", reply_count(owner, "uid"));
    else if (!is_user)
        add_label(labels, "scope", scope);
    return labels[0] != '\0';
}

/* --- samples --- */

static bool ends_in(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length > end_length && strcmp(text + length - end_length, end) == 0;
}

static void print_head_as(FILE *stream, const struct metric *metric, const char *type) {
    fprintf(stream, "# HELP %s %s\n# TYPE %s %s\n", metric->name, metric->help, metric->name, type);
}

static void print_head(FILE *stream, const struct metric *metric) {
    print_head_as(stream, metric, ends_in(metric->name, "_total") ? "counter" : "gauge");
}

static void print_seconds(FILE *stream, uint64_t ns) {
    fprintf(stream, "%" PRIu64 ".%09" PRIu64 "\n", ns / NS_PER_S, ns % NS_PER_S);
}

/* A time that is null has not begun: 0. Another number that is null is no number: a limit that is not set. */
static void print_sample(FILE *stream, const struct metric *metric, const char *labels,
                         const struct cJSON *object) {
    uint64_t value = reply_count(object, metric->key);
    bool is_time = ends_in(metric->key, "_ns");

    if (value == REPLY_NULL && !is_time)
        return;
    if (value == REPLY_NULL)
        value = 0;
    fprintf(stream, labels[0] != '\0' ? "%s{%s} " : "%s%s ", metric->name, labels);
    if (is_time)
        print_seconds(stream, value);
    else
        fprintf(stream, "%" PRIu64 "\n", value);
}

static void print_pools(FILE *stream, const struct metric *metric, const struct cJSON *stats) {
    char labels[LABELS_SIZE];

    print_head(stream, metric);
    reply_each(pool, stats, "pools") {
        label_pool(labels, pool);
        print_sample(stream, metric, labels, pool);
    }
}

/* How many durations of a histogram are below a bound: a power of two, as its buckets have. */
static uint64_t count_below(const struct cJSON *times, uint64_t bound_ns) {
    uint64_t count = 0;

    reply_each(bucket, times, "buckets") {
        uint64_t upper_ns = reply_item(bucket, 0);
        if (upper_ns != REPLY_NULL && upper_ns <= bound_ns)
            count += reply_item(bucket, 1);
    }
    return count;
}

static void print_histogram(FILE *stream, const struct metric *metric, const struct cJSON *stats) {
    char labels[LABELS_SIZE];

    print_head_as(stream, metric, "histogram");
    reply_each(pool, stats, "pools") {
        const struct cJSON *times = reply_object(pool, metric->key);
        label_pool(labels, pool);
        for (unsigned i = 0; i < BUCKETS; i++) {
            uint64_t bound_ns = BUCKET_FIRST_NS << (2 * i);
            fprintf(stream, "%s_bucket{%s,le=\"%.9g\"} %" PRIu64 "\n", metric->name, labels,
                    (double)bound_ns / (double)NS_PER_S, count_below(times, bound_ns));
        }
        fprintf(stream, "%s_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n", metric->name, labels,
                reply_count(times, "count"));
        fprintf(stream, "%s_sum{%s} ", metric->name, labels);
        print_seconds(stream, reply_count(times, "sum"));
        fprintf(stream, "%s_count{%s} %" PRIu64 "\n", metric->name, labels, reply_count(times, "count"));
    }
}

static void print_states(FILE *stream, const struct cJSON *stats) {
    static const char *const states[] = {"starting", "ready", "failed", "lost"};
    static const struct metric state = {"gpupool_pool_state", NULL, "1 for the state that the pool is in."};
    static const struct metric failing = {"gpupool_pool_growth_failing", NULL,
                                          "1 if the last growth failed, or the pool's device."};
    static const struct metric draining = {"gpupool_pool_draining", NULL,
                                           "1 while an operator drains the pool: it lends no more."};
    char labels[LABELS_SIZE];

    print_head(stream, &state);
    reply_each(pool, stats, "pools") {
        label_pool(labels, pool);
        for (size_t i = 0; i < ARRAY_LENGTH(states); i++)
            fprintf(stream, "%s{%s,state=\"%s\"} %d\n", state.name, labels, states[i],
                    strcmp(reply_text(pool, "state"), states[i]) == 0);
    }
    print_head(stream, &failing);
    reply_each(pool, stats, "pools") {
        label_pool(labels, pool);
        fprintf(stream, "%s{%s} %d\n", failing.name, labels, reply_text(pool, "last_error") != NULL);
    }
    print_head(stream, &draining);
    reply_each(pool, stats, "pools") {
        label_pool(labels, pool);
        fprintf(stream, "%s{%s} %d\n", draining.name, labels, reply_flag(pool, "draining"));
    }
}

/* Prints the metrics of each user, or else of each scope, and of each in each pool. */
static void print_quotas(FILE *stream, const struct cJSON *reply, bool of_users) {
    const struct metric *metrics = of_users ? of_user : of_scope,
                        *in_pool = of_users ? of_user_in_pool : of_scope_in_pool;
    size_t n_metrics = of_users ? ARRAY_LENGTH(of_user) : ARRAY_LENGTH(of_scope),
           n_in_pool = of_users ? ARRAY_LENGTH(of_user_in_pool) : ARRAY_LENGTH(of_scope_in_pool);
    char labels[LABELS_SIZE];

    for (size_t i = 0; i < n_metrics + n_in_pool; i++) {
        const struct metric *metric = i < n_metrics ? &metrics[i] : &in_pool[i - n_metrics];
        print_head(stream, metric);
        reply_each(owner, reply, of_users ? "quotas" : "scopes") {
            if (!label_owner(labels, owner, of_users))
                continue;
            if (i < n_metrics) {
                print_sample(stream, metric, labels, owner);
                continue;
            }
            size_t length = strlen(labels);
            reply_each(pool, owner, "pools") {
                labels[length] = '\0';
                add_number_label(labels, "pool", reply_count(pool, "id"));
                add_label(labels, "kind", reply_text(pool, "kind"));
                print_sample(stream, metric, labels, pool);
            }
        }
    }
}

/* The labels that a scope was given, to be joined with its other metrics. */
static void print_scope_labels(FILE *stream, const struct cJSON *scopes) {
    static const struct metric info = {"gpupool_scope_info", NULL,
                                       "1, with the labels that the scope was given."};
    char labels[LABELS_SIZE];

    print_head(stream, &info);
    reply_each(scope, scopes, "scopes") {
        label_owner(labels, scope, false);
        reply_each(label, scope, "labels") add_label(labels, reply_key(label), reply_string(label));
        fprintf(stream, "%s{%s} 1\n", info.name, labels);
    }
}

void metrics_print(FILE *stream, const struct cJSON *stats, const struct cJSON *quotas,
                   const struct cJSON *scopes) {
    const struct cJSON *daemon = reply_object(stats, "daemon");
    char labels[LABELS_SIZE] = "";

    add_label(labels, "version", reply_text(daemon, "version"));
    add_label(labels, "gpu", reply_text(daemon, "gpu"));
    fprintf(stream,
            "# HELP gpupool_build_info The daemon's version, and what its device pools are made of.\n"
            "# TYPE gpupool_build_info gauge\ngpupool_build_info{%s} 1\n",
            labels);
    for (size_t i = 0; i < ARRAY_LENGTH(of_daemon); i++) {
        print_head(stream, &of_daemon[i]);
        print_sample(stream, &of_daemon[i], "", daemon);
    }
    print_states(stream, stats);
    for (size_t i = 0; i < ARRAY_LENGTH(of_pool); i++)
        print_pools(stream, &of_pool[i], stats);
    for (size_t i = 0; i < ARRAY_LENGTH(histograms); i++)
        print_histogram(stream, &histograms[i], stats);
    print_quotas(stream, quotas, true);
    if (scopes != NULL) {
        print_scope_labels(stream, scopes);
        print_quotas(stream, scopes, false);
    }
    fputs("# EOF\n", stream);
}
