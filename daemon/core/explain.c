/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/explain.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/units.h"
#include "daemon/core/account.h"
#include "daemon/core/pool.h"
#include "daemon/core/question.h"
#include "daemon/core/reach.h"
#include "daemon/core/request.h"
#include "daemon/core/scope.h"
#include "daemon/core/segment.h"
#include "daemon/core/tenant.h"
#include "daemon/core/undelivered.h"
#include "daemon/core/use.h"

/* A text that is written piece by piece. It is cut off at its buffer's end. */
struct text {
    char *to;
    size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...) {
    va_list arguments;

    if (text->used >= text->size)
        return;
    va_start(arguments, format);
    int n = vsnprintf(text->to + text->used, text->size - text->used, format, arguments);
    va_end(arguments);
    text->used += n > 0 ? (size_t)n : 0;
}

/* Room for "4096 segments of 64.0 GiB". */
#define ASKED_SIZE 64u

struct holder {
    const struct session *session;
    uint64_t bytes;
};

/* Of which sessions a text speaks beside the request's own user's. */
enum others {
    OTHERS_NOT_TOLD,
    OTHERS_SUMMED,
    OTHERS_NAMED,
};

static bool is_named(const struct request *request, const struct session *session, enum others others) {
    return session->tenant == request->session->tenant || others == OTHERS_NAMED;
}

/* Idle memory of a session that does not answer. */
static uint64_t unanswered_bytes(const struct session *session, unsigned p) {
    struct use uses[PROTO_POOLS_MAX];

    if (!session->is_mute || session->pools[p].leased_bytes == 0)
        return 0;
    use_of_session(session, uses);
    return uses[p].cached_bytes;
}

/* Whether a session that does not answer has nothing of the pool but segments that it keeps mapped. */
static bool keeps_mapped(const struct session *session, unsigned p) {
    return session->is_mute && session->pools[p].leased_bytes == 0 && session->pools[p].n_mapped > 0;
}

/* Writes "… is idle memory of …, which does not answer; ", or nothing. */
static void explain_unanswered(const struct request *request, enum others others, char *to, size_t size) {
    struct text text = {.to = to, .size = size};
    unsigned p = request->pool->id - 1, n_named = 0;
    uint64_t sum = 0;

    to[0] = '\0';
    if (request->session->core->n_mute == 0) /* mostly so: a refusal does not walk the sessions */
        return;
    list_for_each_entry(const struct session, session, &request->session->core->sessions, link) {
        uint64_t idle = unanswered_bytes(session, p);
        if (idle == 0 && !keeps_mapped(session, p))
            continue;
        if (!is_named(request, session, others) || n_named == HOLDERS_NAMED) {
            sum += idle;
            continue;
        }
        n_named++;
        if (idle > 0)
            add(&text, "%s is idle memory of pid %d (%s), which does not answer (is it stopped?); ",
                BYTES_TEXT(idle), (int)session->peer.pid, session->peer.command);
        else
            add(&text, "pid %d (%s) has %s mapped, and does not answer (is it stopped?); ",
                (int)session->peer.pid, session->peer.command,
                COUNT_TEXT(session->pools[p].n_mapped, "segment"));
    }
    if (sum > 0)
        add(&text, "%s is idle memory of other processes that do not answer; ", BYTES_TEXT(sum));
}

/* Writes ", of which … idle in its program, which …", or nothing. */
static void add_kept(struct text *text, const struct session *session, const struct pool *pool) {
    static const char *const why[] = {
        [PROTO_RECLAIM_CAPTURING] = "captures a stream",
        [PROTO_RECLAIM_BUSY] = "holds a lock that is needed to let it go",
        [PROTO_RECLAIM_WAITS] = "waits for memory itself",
        [PROTO_RECLAIM_PENDING] = "has not answered",
    };
    enum proto_reclaim outcome = session->answers[pool->id - 1].outcome;
    uint64_t kept_bytes = question_kept_bytes(session, pool);
    const char *reason = outcome < sizeof why / sizeof *why ? why[outcome] : NULL;

    if (kept_bytes > 0)
        add(text, " (of which %s idle in its program%s%s)", BYTES_TEXT(kept_bytes),
            reason != NULL ? ", which " : "", reason != NULL ? reason : "");
}

/* Puts a session among the largest holders of a pool, if it is one. */
static void holders_add(struct holder largest[HOLDERS_NAMED], const struct session *session, unsigned p) {
    struct holder holder = {session, session->pools[p].leased_bytes + session->pools[p].closing_bytes};

    for (unsigned i = 0; i < HOLDERS_NAMED && holder.bytes > 0; i++)
        if (holder.bytes > largest[i].bytes) {
            struct holder displaced = largest[i];
            largest[i] = holder;
            holder = displaced;
        }
}

/* Writes "; held by …" with the largest holders that may be named and, if wanted, the sum of the others'. Of
 * the request's own user the first HOLDERS_WALK_MAX sessions are looked at. */
static void explain_holders(const struct request *request, enum others with, char *to, size_t size) {
    unsigned p = request->pool->id - 1;
    struct holder largest[HOLDERS_NAMED] = {0};
    struct text text = {.to = to, .size = size};
    const struct tenant *tenant = request->session->tenant;
    uint64_t others = request->pool->sessions_bytes - tenant->sessions_bytes[p];
    unsigned left = HOLDERS_WALK_MAX;

    to[0] = '\0';
    if (with == OTHERS_NAMED)
        list_for_each_entry(const struct session, session, &tenant->core->sessions, link) {
            holders_add(largest, session, p);
        }
    else
        list_for_each_entry(const struct session, session, &tenant->members, tenant_link) {
            if (left-- == 0)
                break;
            holders_add(largest, session, p);
        }
    for (unsigned i = 0; i < HOLDERS_NAMED && largest[i].bytes > 0; i++) {
        add(&text, "%s pid %d (%s%s%s) %s%s%s", i == 0 ? "; held by" : ",", (int)largest[i].session->peer.pid,
            largest[i].session->peer.command,
            reach_is_own(request->session, largest[i].session) ? ", this process" : "",
            largest[i].session->is_mute && unanswered_bytes(largest[i].session, p) == 0 ? ", does not answer"
                                                                                        : "",
            BYTES_TEXT(largest[i].bytes),
            largest[i].session->pools[p].closing_bytes > 0
                ? ", some of which it was told to close and has not"
                : "",
            largest[i].session->state == SESSION_QUARANTINED ? " in quarantine" : "");
        add_kept(&text, largest[i].session, request->pool);
    }
    if (with == OTHERS_SUMMED && others > 0)
        add(&text, "%s other users %s", text.used == 0 ? "; held by" : ",", BYTES_TEXT(others));
}

/* Writes what the request asks for: a size, or how many segments of which size. */
static void explain_size(const struct request *request, char *to, size_t size) {
    if (request->n_segments > 0)
        snprintf(to, size, "%s of %s", COUNT_TEXT(request->n_segments, "segment"),
                 BYTES_TEXT(request->segment_bytes));
    else
        snprintf(to, size, "%s", BYTES_TEXT(request->least_bytes));
}

/* The largest block in one segment that the tenant could take now. */
static uint64_t largest_free_for(const struct pool *pool, const struct tenant_heap *heap) {
    uint64_t own = heap != NULL ? heap_largest_free(&heap->heap) : 0;
    uint64_t unassigned = pool_largest_unassigned_bytes(pool);
    return own > unassigned ? own : unassigned;
}

/* Writes what the pool has. Free memory in segments of other tenants is told apart: it does not serve this
 * one. */
static void pool_explain(const struct request *request, char *to, size_t size) {
    const struct pool *pool = request->pool;
    const struct tenant_heap *heap = tenant_heap_find(request->session->tenant, request->pool);
    uint64_t own = pool->unassigned_bytes + (heap != NULL ? heap->heap.free_bytes : 0);
    uint64_t others = pool_free_bytes(pool) - own;
    struct text text = {.to = to, .size = size};

    add(&text, "%s free for %s ", BYTES_TEXT(own), TENANT_TEXT(pool->core, request->session->tenant->id));
    if (request->n_segments > 0)
        add(&text, "(in whole segments of %s: %s)", BYTES_TEXT(request->segment_bytes),
            BYTES_TEXT(request->size_bytes - pool_lacking_bytes(request)));
    else
        add(&text, "(largest block%s %s)", pool_is_of_vmm(pool) ? " in one segment" : "",
            BYTES_TEXT(largest_free_for(pool, heap)));
    if (others > 0)
        add(&text, ", %s free in segments of other users", BYTES_TEXT(others));
    add(&text, ", %s reserved of at most %s", BYTES_TEXT(pool->reserved_bytes),
        BYTES_TEXT(pool->limit_bytes));
    if (pool->growth.bytes > 0)
        add(&text, ", %s being made", BYTES_TEXT(pool->growth.bytes));
    else if (!pool_has_descriptor(pool))
        add(&text,
            ", no descriptor left for another segment (%s of at most %u in all pools: raise "
            "LimitNOFILE, or the pool's step)",
            COUNT_TEXT(pools_descriptors(pool->core), "segment"), pool->core->segments_limit);
    if (pool->fenced_bytes > 0)
        add(&text, ", %s released and still in use by a GPU", BYTES_TEXT(pool->fenced_bytes));
    if (pool->parcel_bytes > pool->named_bytes)
        add(&text, ", %s sent and not taken yet", BYTES_TEXT(pool->parcel_bytes - pool->named_bytes));
    if (pool->named_bytes > 0)
        add(&text, ", %s that names hold, and no process (gpupoolctl names)", BYTES_TEXT(pool->named_bytes));
    if (pool->quarantined_bytes > 0)
        add(&text, ", %s in quarantine", BYTES_TEXT(pool->quarantined_bytes));
    if (pool->closing_bytes > 0)
        add(&text, ", %s that processes were told to close", BYTES_TEXT(pool->closing_bytes));
    if (pool->n_orphans > 0)
        add(&text,
            ", %s of a daemon before (export = ipc), which nothing is lent of until processes close it",
            BYTES_TEXT(pool->orphan_bytes));
    if (pool->stalled_call != NULL)
        add(&text, ", %s has not come back for %s", pool->stalled_call, NS_TEXT(pool->stalled_for_ns));
}

/* The names of an item in a sentence, and in the configuration. */
static const struct {
    const char *noun, *what, *key;
} quota_items[] = {
    [QUOTA_SESSIONS] = {"session", " (those in quarantine included)", "sessions"},
    [QUOTA_LEASES] = {"lease", " (those behind fences and in quarantine included)", "leases"},
    [QUOTA_RANGES] = {"range",
                      " (pieces that leases are in; a lease has one, and more after parts of it came back)",
                      "ranges"},
    [QUOTA_SEGMENTS] = {"segment", " with a descriptor (those that its processes have mapped included)",
                        "segments"},
    [QUOTA_WAITING] = {"waiting request", "", "waiting"},
    [QUOTA_REPLIES] = {"byte", "of replies that its processes have not read", "replies"},
};

/* The name of a pool's bytes in the configuration. */
static const char *pool_key(const struct pool *pool) {
    return pool->kind == PROTO_POOL_HOST ? "host" : "device";
}

/* The quota of the tenant or of its account: the one that leaves less. */
static const struct quota *quota_that_limits(const struct tenant *tenant, unsigned item) {
    const struct quota *own = &tenant->quota, *above = own->above;
    uint64_t own_left = own->limits[item] > own->used[item] ? own->limits[item] - own->used[item] : 0;
    bool is_above = above != NULL && (quota_left(above, item) < own_left ||
                                      (tenant->scope != NULL && above->limits[item] <= own->limits[item] &&
                                       quota_left(above, item) == own_left));
    return is_above ? above : own;
}

void tenant_explain_quota(const struct tenant *tenant, unsigned item, char *text, size_t size) {
    static const char advice[] = "or have the administrator raise";
    const struct quota *quota = quota_that_limits(tenant, item);
    const char *others = quota == &tenant->quota ? ""
                         : tenant->scope == NULL ? " (all uids of the user that it is subordinate to)"
                                                 : " (all users of the scope)";
    const char *place = quota != &tenant->quota && tenant->scope != NULL
                            ? "the scope's quota"
                            : "[quota] in the daemon's configuration";
    uint64_t used = quota->used[item], limit = quota->limits[item];

    if (item == QUOTA_KEPT) {
        snprintf(
            text, size,
            "QUOTA: %s%s has %s of the %s that names may keep: unpublish some (gpupoolctl names), %s 'kept' "
            "of %s",
            TENANT_TEXT(tenant->core, tenant->id), others, BYTES_TEXT(used), BYTES_TEXT(limit), advice,
            place);
    } else if (item >= QUOTA_POOLS) {
        const struct pool *pool = tenant->core->pools[item - QUOTA_POOLS];
        snprintf(text, size,
                 "QUOTA: %s%s has %s of the %s that it may have there (what is behind fences or in "
                 "quarantine "
                 "included): release buffers, %s '%s' of %s",
                 TENANT_TEXT(tenant->core, tenant->id), others, BYTES_TEXT(used), BYTES_TEXT(limit), advice,
                 pool_key(pool), place);
    } else if (item == QUOTA_REPLIES) {
        snprintf(text, size, "QUOTA: %s%s has %s %s and may have %s: read them, %s 'replies' of %s",
                 TENANT_TEXT(tenant->core, tenant->id), others, BYTES_TEXT(used), quota_items[item].what,
                 BYTES_TEXT(limit), advice, place);
    } else {
        snprintf(text, size,
                 "QUOTA: %s%s has %s%s of at most %" PRIu64 ": end or release some, %s '%s' of %s",
                 TENANT_TEXT(tenant->core, tenant->id), others, COUNT_TEXT(used, quota_items[item].noun),
                 quota_items[item].what, limit, advice, quota_items[item].key, place);
    }
}

/* Writes the refusal because of a quota. It says nothing of other users: their memory has nothing to do with
 * it. */
static void request_explain_quota(const struct request *request, struct proto_failure *ret_failure) {
    bool is_alone = request->is_alone || reach_is_surely_alone(request);
    char holders[PROTO_TEXT_MAX / 2] = "", quota[PROTO_TEXT_MAX / 2], asked[ASKED_SIZE];
    const struct tenant *tenant = request->session->tenant;
    unsigned item = (unsigned)request->quota_item;

    if (item >= QUOTA_POOLS && request->error == PROTO_E_LIMIT) {
        snprintf(quota, sizeof quota,
                 "QUOTA: %s may have %s there in all: ask for less, or have the administrator raise "
                 "'%s' of %s",
                 TENANT_TEXT(tenant->core, tenant->id), BYTES_TEXT(quota_limit(&tenant->quota, item)),
                 pool_key(request->pool),
                 tenant->scope != NULL && tenant->quota.limits[item] >= tenant->quota.above->limits[item]
                     ? "the scope's quota"
                     : "[quota] in the daemon's configuration");
    } else {
        tenant_explain_quota(tenant, item, quota, sizeof quota);
        if (item >= QUOTA_POOLS)
            explain_holders(request, OTHERS_NOT_TOLD, holders, sizeof holders);
    }
    explain_size(request, asked, sizeof asked);
    proto_failure_set(ret_failure, request->error, "%s asked of %s: %s%s%s", asked, request->pool->name,
                      quota,
                      request->error == PROTO_E_EXHAUSTED && item >= QUOTA_POOLS && is_alone
                          ? "; no other process of the user has enough to give back"
                          : "",
                      holders);
}

/* Whether enough is free for the request's tenant, and not in one piece. */
static bool has_pieces(const struct request *request) {
    const struct pool *pool = request->pool;
    const struct tenant_heap *heap = tenant_heap_find(request->session->tenant, request->pool);
    uint64_t free_bytes = pool->unassigned_bytes + (heap != NULL ? heap->heap.free_bytes : 0);
    return free_bytes >= request->least_bytes && largest_free_for(pool, heap) < request_piece_bytes(request);
}

/* Writes why the request is not served, as far as that is known, and "; ". explain_holders() tells the rest.
 */
static void explain_lack(const struct request *request, enum others others, char *to, size_t size) {
    struct text text = {.to = to, .size = size};
    char unanswered[PROTO_TEXT_MAX / 4];
    bool has_any;

    to[0] = '\0';
    if (request_is_probe(request)) /* no person reads it */
        return;
    if (request->is_answered)
        add(&text, "every process with memory of the pool was asked for what it keeps idle, and gave nothing "
                   "more; ");
    bool is_alone = request->is_alone || reach_is_surely_alone(request), is_in_pieces = has_pieces(request);
    (void)reach_least_held(request->session, request->pool, &has_any);
    if (is_alone && is_in_pieces)
        add(&text, "enough is free, but in pieces that no release of another process can join; ");
    else if (is_alone && has_any)
        add(&text, "no other process has enough to give back: this process holds the rest; ");
    else if (is_alone)
        add(&text, "no process holds what is lacking, to give it back; ");
    else if (is_in_pieces)
        add(&text, "enough is free, but in pieces; ");
    explain_unanswered(request, others, unanswered, sizeof unanswered);
    add(&text, "%s", unanswered);
}

void request_explain_wait(const struct request *request, char *to, size_t size) {
    char holders[PROTO_TEXT_MAX / 2], has[PROTO_TEXT_MAX / 2], lack[PROTO_TEXT_MAX / 2], asked[ASKED_SIZE];

    explain_size(request, asked, sizeof asked);
    explain_lack(request, OTHERS_NAMED, lack, sizeof lack);
    pool_explain(request, has, sizeof has);
    explain_holders(request, OTHERS_NAMED, holders, sizeof holders);
    snprintf(to, size, "%s of %s (%s): %s%s%s", asked, request->pool->name,
             waiter_reason_name(waiter_reason(request)), lack, has, holders);
}

void request_explain(const struct request *request, struct proto_failure *ret_failure) {
    const struct pool *pool = request->pool;
    char holders[PROTO_TEXT_MAX / 2], has[PROTO_TEXT_MAX / 2], lack[PROTO_TEXT_MAX / 2], asked[ASKED_SIZE];

    assert(request->state == REQUEST_REFUSED);
    if (request->quota_item >= 0) {
        request_explain_quota(request, ret_failure);
        return;
    }
    explain_size(request, asked, sizeof asked);
    switch (request->error) {
    case PROTO_E_INVALID:
        proto_failure_set(ret_failure, request->error,
                          "%s asked of %s, where only single blocks can be asked for: its segments cannot be "
                          "mapped side by side",
                          asked, pool->name);
        return;
    case PROTO_E_NO_POOL:
        proto_failure_set(ret_failure, request->error,
                          "no pool has this id: list the pools for those there are");
        return;
    case PROTO_E_SHUTDOWN:
        proto_failure_set(
            ret_failure, request->error,
            "%s asked of %s, which an operator drains: no more is lent from it until 'gpupoolctl "
            "drain --off', or a restart of the daemon",
            asked, pool->name);
        return;
    case PROTO_E_LIMIT:
        proto_failure_set(
            ret_failure, request->error,
            "%s asked for: this session has %s (those behind fences included) and %s, and may have "
            "%u and %u: release buffers, or raise session_leases_limit in the "
            "daemon's configuration",
            asked, COUNT_TEXT(request->session->n_leases, "lease"),
            COUNT_TEXT(request->session->n_requests, "waiting request"),
            request->session->core->session_leases_limit, SESSION_WAITING_MAX);
        return;
    case PROTO_E_TOO_LARGE:
        if (request->least_bytes <= pool->limit_bytes) {
            proto_failure_set(
                ret_failure, request->error,
                "%s asked of %s, where one buffer has %s at most, so that each can be registered "
                "with CUDA at once: ask for several buffers",
                asked, pool->name, BYTES_TEXT(pool_segment_max(pool)));
            return;
        }
        if (pool->limit_of != NULL) {
            proto_failure_set(
                ret_failure, request->error,
                "%s asked of %s, which may grow to %s, although its limit is above the memory that "
                "%s: ask for less",
                asked, pool->name, BYTES_TEXT(pool->limit_bytes), pool->limit_of);
            return;
        }
        proto_failure_set(
            ret_failure, request->error,
            "%s asked of %s, which may grow to %s: raise its limit in the daemon's configuration, or ask "
            "for less",
            asked, pool->name, BYTES_TEXT(pool->limit_bytes));
        return;
    case PROTO_E_CANCELLED:
        proto_failure_set(ret_failure, request->error, "%s asked of %s: the client cancelled the request",
                          asked, pool->name);
        return;
    case PROTO_E_NO_MEMORY:
        proto_failure_set(ret_failure, request->error,
                          "the daemon has no memory for its bookkeeping: try again later");
        return;
    default:
        break;
    }
    pool_explain(request, has, sizeof has);
    explain_holders(request, OTHERS_SUMMED, holders, sizeof holders);
    if (request->error == PROTO_E_DRIVER)
        proto_failure_set(ret_failure, request->error, "%s asked of %s: %s; %s", asked, pool->name,
                          pool->last_error, has);
    else {
        explain_lack(request, OTHERS_SUMMED, lack, sizeof lack);
        proto_failure_set(ret_failure, request->error, "%s asked of %s, %s %s: %s%s%s%s%s", asked, pool->name,
                          request->no_reclaim ? "not free, and no growth" : "not free",
                          request->waited && request->deadline_ns == NS_FOREVER ? "after a long wait"
                                                                                : "within the time given",
                          lack, has, holders, pool->last_error[0] != '\0' ? "; the last growth failed: " : "",
                          pool->last_error);
    }
}

void undelivered_explain(const struct tenant *tenant, char *text, size_t size) {
    if (account_undelivered(tenant) >= tenant->core->undelivered_limit)
        snprintf(text, size,
                 "processes of %s keep %s open with replies of ended sessions that they have "
                 "not read: close these sockets, or raise LimitNOFILE of the daemon, which allows %u",
                 TENANT_TEXT(tenant->core, tenant->id), COUNT_TEXT(account_undelivered(tenant), "socket"),
                 tenant->core->undelivered_limit);
    else
        tenant_explain_quota(tenant, QUOTA_REPLIES, text, size);
}

static bool may_grow_by(const struct pool *pool, uint64_t bytes) {
    uint64_t stays = pool->reserved_bytes - pool->retiring_bytes;
    return pool->state == POOL_STARTING ||
           (pool->limit_bytes > stays && pool->limit_bytes - stays >= bytes && pool_has_descriptor(pool));
}

/* Whether another user's segments have a free range of the size. */
static bool others_have(const struct pool *pool, const struct tenant *tenant, uint64_t bytes) {
    list_for_each_entry(struct tenant_heap, heap, &pool->heaps, pool_link) {
        if (heap->tenant != tenant && heap_has(&heap->heap, bytes))
            return true;
    }
    return false;
}

/* Whether a session keeps memory of the pool idle, or segments mapped, and does not answer. */
static bool has_unanswered(const struct request *request) {
    unsigned p = request->pool->id - 1;

    list_for_each_entry(const struct session, session, &request->session->core->sessions, link) {
        if (keeps_mapped(session, p) || unanswered_bytes(session, p) > 0)
            return true;
    }
    return false;
}

enum waiter_reason waiter_reason(const struct request *request) {
    assert(request->state == REQUEST_WAITING);
    if (request->queue == WAIT_QUEUE_QUOTA)
        return WAITER_QUOTA;
    if (request->no_reclaim || may_grow_by(request->pool, pool_lacking_bytes(request)))
        return WAITER_GROWTH;
    if (request->is_alone || reach_is_surely_alone(request))
        return WAITER_OWN;
    if (has_unanswered(request))
        return WAITER_NO_ANSWER;
    if (others_have(request->pool, request->session->tenant, request_piece_bytes(request)))
        return WAITER_OTHER_USERS;
    return has_pieces(request) ? WAITER_PIECES : WAITER_ROOM;
}

const char *waiter_reason_name(enum waiter_reason reason) {
    static const char *const names[] = {"quota",       "growth", "own-process", "no-answer",
                                        "other-users", "pieces", "room"};
    return names[reason];
}
