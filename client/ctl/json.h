/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_JSON_H
#define CLIENT_CTL_JSON_H
/*
 * The daemon's replies, from JSON into structs. A reply that was read is whole: every member that its schema
 * (docs/schema) requires is there and of its type, every integer exact. Members that this version does not
 * know are passed over, so that the tool can ask a newer daemon.
 *
 * json.c is the only file that includes cJSON.h: that parser lets through what is not JSON (control
 * characters, bad UTF-8), has numbers as doubles, and finds keys without regard to case unless told. What
 * makes up for it is here.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the schema says null. */
#define REPLY_NULL UINT64_MAX
/* …and for a share of something, which is from 0 to 1 else. */
#define REPLY_NULL_RATIO (-1.0)

struct reply_daemon {
    char *version, *gpu;
    uint64_t pid, uptime_ns;
    /* below: stats only */
    char *socket, *cuda_toolkit; /* cuda_toolkit may be NULL */
    uint64_t sessions, sessions_limit, sessions_refused, lingering_sockets;
    char **notices;
    size_t n_notices;
};

/* How long something took: how often it happened, and how long the median and 99 of 100 took at most. */
struct reply_times {
    uint64_t count, p50_ns, p90_ns, p99_ns; /* the latter REPLY_NULL when count is 0 */
};

struct reply_pool {
    uint64_t id;
    char *kind, *name, *state;
    char *uuid, *pages, *last_error; /* may be NULL */
    char *worker_call;               /* may be NULL */
    uint64_t worker_call_ns;         /* may be REPLY_NULL */
    uint64_t device, numa_node;      /* may be REPLY_NULL */
    uint64_t limit_bytes, step_bytes, reserve_bytes, low_water_bytes;
    uint64_t reserved_bytes, leased_bytes, free_bytes, fenced_bytes, quarantined_bytes;
    uint64_t largest_free_bytes, growing_bytes;
    uint64_t in_use_bytes, cached_bytes;
    double hit_ratio; /* may be REPLY_NULL_RATIO */
    uint64_t segments, leases, waiters, acquires, releases, grows, retires;
    uint64_t failures, timeouts, quota_refusals, probes, closes, close_ns;
    uint64_t leased_peak_bytes, reserved_peak_bytes, quarantined_peak_bytes;
    uint64_t quarantine_oldest_ns; /* may be REPLY_NULL */
    struct reply_times acquire, waiting, growth;
};

/* What a session has of a pool. */
struct reply_holding {
    uint64_t id, leased_bytes, in_use_bytes, cached_bytes, fenced_bytes, closing_bytes, segments;
};

/* A request of a session that waits. */
struct reply_request {
    uint64_t pool, bytes, wanted_bytes, waiting_ns;
    uint64_t left_ns; /* may be REPLY_NULL */
    char *reason;
};

struct reply_session {
    uint64_t id, pid, uid, gid;
    char *command, *state;
    char *quarantine_reason; /* may be NULL */
    char *end_rule;          /* may be NULL */
    bool under_mps;
    uint64_t quarantined_ns; /* may be REPLY_NULL */
    uint64_t leases, leased_bytes, fenced_bytes, in_use_bytes, cached_bytes, waiting, segments, connected_ns;
    double hit_ratio; /* may be REPLY_NULL_RATIO */
    /* None where the daemon does not tell this user. */
    struct reply_holding *pools;
    size_t n_pools;
    struct reply_request *requests;
    size_t n_requests;
};

/* What a user has in a pool and may have. */
struct reply_quota_pool {
    uint64_t id;
    char *kind;
    uint64_t bytes, bytes_limit; /* the latter may be REPLY_NULL: unlimited */
};

/* What a user has of what is counted; the limits may be REPLY_NULL: unlimited. */
struct reply_quota {
    uint64_t uid, refusals;
    uint64_t sessions, leases, waiting, reply_bytes;
    uint64_t sessions_limit, leases_limit, waiting_limit, reply_bytes_limit;
    struct reply_quota_pool *pools;
    size_t n_pools;
};

struct reply_trimmed {
    uint64_t id, trimmed_bytes;
};

/* What a reply consists of, as bits. */
enum reply_part {
    REPLY_DAEMON = 1,       /* "daemon" with what ping tells */
    REPLY_DAEMON_STATS = 2, /* "daemon" with all that stats tells */
    REPLY_POOLS = 4,
    REPLY_SESSIONS = 8,
    REPLY_TRIMMED = 16,
    REPLY_QUOTAS = 64,   /* "quotas" */
    REPLY_RELEASED = 32, /* what quarantine-release tells */
};

/* One reply. Owns everything it points to. error_code is set when the daemon refused: then nothing else is.
 */
struct reply {
    char *error_code, *error_message;
    struct reply_daemon daemon;
    struct reply_pool *pools;
    size_t n_pools;
    struct reply_session *sessions;
    size_t n_sessions;
    uint64_t trimmed_bytes;
    struct reply_trimmed *trimmed;
    size_t n_trimmed;
    struct reply_quota *quotas;
    size_t n_quotas;
    uint64_t released_session, released_pid, released_bytes;
};

/* Reads a line of length bytes, which is NUL-terminated, as a reply with the given parts (enum reply_part) or
 * as an error reply. Returns 0 and a reply that reply_free() gives back; -ENOMEM; -EBADMSG, and then
 * ret_reason says what is wrong with the line, owned by the caller. Outputs that are not named are untouched.
 */
int reply_read(const char *line, size_t length, unsigned parts, struct reply **ret_reply, char **ret_reason);

/* Accepts NULL. Returns NULL. */
struct reply *reply_free(struct reply *reply);

static inline void reply_freep(struct reply **reply) {
    reply_free(*reply);
}

#endif
