/* SPDX-License-Identifier: Apache-2.0 */
/* The core's entry points for sessions and for the policy. */
#include "daemon/core/core.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/account.h"
#include "daemon/core/channel.h"
#include "daemon/core/closing.h"
#include "daemon/core/edition.h"
#include "daemon/core/explain.h"
#include "daemon/core/fence.h"
#include "daemon/core/kept.h"
#include "daemon/core/lease.h"
#include "daemon/core/name.h"
#include "daemon/core/name_wait.h"
#include "daemon/core/parcel.h"
#include "daemon/core/pool.h"
#include "daemon/core/question.h"
#include "daemon/core/recorder.h"
#include "daemon/core/request.h"
#include "daemon/core/scope.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/wait_queue.h"
#include "daemon/core/waiting.h"

static void mark_all_ready(struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++)
        pool_mark_ready(core->pools[i]);
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
        (void)account_join(tenant); /* without memory it stays in the account that it was in */
    }
    list_for_each_entry(struct tenant, tenant, &core->tenants, link) {
        tenant_apply_policy(tenant, NULL);
    }
    list_for_each_entry(struct session, session, &core->sessions, link) {
        session->pools_allowed = policy_pools(policy, &session->peer);
        session_refuse_forbidden(session);
    }
    mark_all_ready(core);
    core_serve(core, now_ns);
}

bool core_is_shut_out(const struct core *core, const struct peer *peer) {
    const struct scope *scope = scope_find(core, peer->scope);
    return peer->scope != SCOPE_ORDINARY &&
           (scope == NULL || scope->is_dropped || !scope_admits(scope, peer->uid));
}

/* Writes why. */
static void explain_shut_out(const struct core *core, const struct peer *peer,
                             struct proto_failure *ret_failure) {
    const struct scope *scope = scope_find(core, peer->scope);

    if (scope == NULL || scope->is_dropped)
        proto_failure_set(ret_failure, PROTO_E_LIMIT,
                          "the scope of this socket was dropped: no process comes in here any more");
    else
        proto_failure_set(
            ret_failure, PROTO_E_LIMIT,
            "user %u may not come in through scope '%s': run the program as one of its users, or "
            "have the administrator add the scope with --uid=%u",
            (unsigned)peer->uid, scope->terms.name, (unsigned)peer->uid);
}

static int session_open(struct core *core, const struct peer *peer, uint64_t now_ns,
                        struct session **ret_session) {
    struct tenant *tenant;

    if (core->n_sessions >= core->sessions_limit || core_is_shut_out(core, peer))
        return PROTO_E_LIMIT;
    if (core_is_draining(core))
        return PROTO_E_SHUTDOWN;
    struct session *session =
        calloc(1, sizeof *session + core->n_pools * sizeof session->answers[0]); /* no pool comes later */
    if (session == NULL || kept_add(core, KEPT_SESSION, session, &session->record) < 0) {
        free(session);
        return -ENOMEM;
    }
    int r = tenant_get(core, peer_tenant(peer), &tenant);
    if (r < 0) {
        kept_end(core, &session->record);
        free(session);
        return r;
    }
    tenant_apply_policy(tenant, peer);
    r = undelivered_is_too_much(tenant) ? PROTO_E_LIMIT
                                        : charge_make(&session->charge, &tenant->quota, QUOTA_SESSIONS, 1);
    if (r != 0) {
        tenant_note_refusal(tenant);
        tenant_apply_policy(tenant, NULL);
        tenant_drop_if_unused(tenant);
        kept_end(core, &session->record);
        free(session);
        return r;
    }
    session->core = core;
    session->pools_allowed = policy_pools(core->policy, peer);
    session->id = ++core->next_session_id;
    kept_number(core);
    session->peer = *peer;
    session->connected_ns = now_ns;
    session_enter(session, tenant);
    record(core, &(struct recorded){.kind = PROTO_RECORD_OPEN, .session = session});
    tenant_mark_ready(tenant); /* its groups may have raised the quota */
    *ret_session = session;
    return 0;
}

int core_session_open(struct core *core, const struct peer *peer, uint64_t now_ns,
                      struct session **ret_session) {
    recorder_set_time(core, now_ns);
    int r = session_open(core, peer, now_ns, ret_session);
    if (r != 0)
        core_session_refused(core);
    core_serve(core, now_ns);
    return r;
}

void core_session_refused(struct core *core) {
    core->n_sessions_refused++;
}

void core_explain_sessions(struct core *core, const struct peer *peer, struct proto_failure *ret_failure) {
    char text[PROTO_TEXT_MAX / 2];
    struct tenant *tenant;

    if (core->n_sessions >= core->sessions_limit) {
        proto_failure_set(
            ret_failure, PROTO_E_LIMIT,
            "the daemon has as many sessions as it may (%" PRIu32 "): raise sessions_limit in its "
            "configuration, and LimitNOFILE where its log says that descriptors are few, or end "
            "some",
            core->sessions_limit);
        return;
    }
    if (core_is_shut_out(core, peer)) {
        explain_shut_out(core, peer, ret_failure);
        return;
    }
    if (core_is_draining(core)) {
        proto_failure_set(
            ret_failure, PROTO_E_SHUTDOWN,
            "an operator drains the daemon: no program connects until 'gpupoolctl drain --off', or "
            "a restart of the daemon");
        return;
    }
    if (tenant_get(core, peer_tenant(peer), &tenant) < 0) {
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
    if (r != 0)
        tenant_note_refusal(session->tenant);
    return r;
}

void core_session_drop_reply(struct session *session, uint64_t bytes) {
    charge_reduce(&session->replies, bytes);
}

void core_session_name(struct session *session, const char *name, uint64_t now_ns) {
    snprintf(session->peer.command, sizeof session->peer.command, "%s", name);
    kept_change(session->core, session->record);
    if (session->has_said_name) /* the records have one name of a session: otherwise it could fill them */
        return;
    session->has_said_name = true;
    recorder_set_time(session->core, now_ns);
    record(session->core, &(struct recorded){.kind = PROTO_RECORD_NAME, .session = session});
}

void core_session_want_reclaim(struct session *session) {
    assert(session->n_leases == 0);
    session->wants_reclaim = true;
    kept_change(session->core, session->record);
}

void core_session_set_page(struct session *session, struct proto_page *page) {
    session->page = page;
    atomic_store_explicit(&page->shortage.asked, session->n_questions, memory_order_release);
}

bool core_has_tenant(struct core *core, struct tenant_id id) {
    const struct tenant *tenant = tenant_find(core, id);
    return tenant != NULL && (tenant->sessions > 0 || tenant->n_parcels > 0);
}

void core_session_set_board(struct session *session, uint32_t slot, const struct proto_board_slot *words) {
    session->board_slot = slot + 1;
    session->board_words = words;
    kept_change(session->core, session->record);
}

/* Whether the session has memory of the pool, or a segment of it mapped. */
static bool has_of(const struct session *session, const struct pool *pool) {
    const struct session_pool *has = &session->pools[pool->id - 1];
    return has->leased_bytes > 0 || has->fenced_bytes > 0 || has->n_mapped > 0;
}

/* The session ends, or is lost. Other sessions build the names that it was to build. Its editions with KEEP stay. */
static void leave_names(struct session *session) {
    while (!list_is_empty(&session->name_waits)) {
        struct name_wait *wait = list_first(&session->name_waits, struct name_wait, session_link);
        struct name *name = wait->name;
        name_wait_free(wait);
        name_drop_if_unused(name);
    }
    while (!list_is_empty(&session->builds)) {
        struct name *name = list_first(&session->builds, struct name, builder_link);
        name_set_builder(name, NULL);
        name_serve(name);
    }
    list_for_each_entry_safe(struct edition, edition, &session->editions, session_link) {
        if ((edition->flags & PROTO_PUBLISH_KEEP) == 0)
            name_withdraw(edition->name);
    }
    draft_drop(session);
}

/* The session's end, in each of its places: it leaves, is lost, or is gone. */
static void end_places(struct session *session, void (*end)(struct channel_place *place)) {
    list_for_each_entry_safe(struct channel_place, place, &session->places, session_link) {
        struct channel *channel = place->channel;
        end(place);
        if (end != channel_lose)
            name_serve_channel(channel);
    }
}

/* The session is gone, and with it the maker of channels. */
static void leave_made(struct session *session) {
    while (!list_is_empty(&session->made)) {
        struct channel *channel = list_first(&session->made, struct channel, maker_link);
        channel_lose_maker(channel);
        name_serve_channel(channel);
    }
}

/* The session's GPU work is over. is_done: all of it was done. */
static void settle_editions(struct session *session, bool is_done) {
    list_for_each_entry_safe(struct edition, edition, &session->editions, session_link) {
        if (!edition_settle(edition, is_done))
            name_withdraw(edition->name);
    }
}

static void session_clear(struct session *session, uint64_t now_ns) {
    struct core *core = session->core;

    for (unsigned i = 0; i < core->n_pools; i++)
        if (has_of(session, core->pools[i]))
            question_note_came(session, core->pools[i], 0, now_ns);
    while (!list_is_empty(&session->requests))
        request_free(container_of(session->requests.next, struct request, session_link));
    while (!list_is_empty(&session->leases))
        lease_close(container_of(session->leases.next, struct lease, session_link));
    fences_free(session);
    for (unsigned i = 0; i < core->n_pools; i++)
        if (core->pools[i]->reclaim.spared == session)
            core->pools[i]->reclaim.spared = NULL;
    for (size_t word = 0; word < session->n_segment_words; word++)
        while (session->segments[word].mapped != 0) {
            unsigned bit = (unsigned)__builtin_ctzll(session->segments[word].mapped);
            closing_unmap(session, core->segments[word * 64 + bit]);
        }
}

/* A tenant of a dropped scope has no session any more, and will have none: its memory goes back. */
static void tenant_clear(struct tenant *tenant) {
    struct name *name;
    uint64_t bytes;

    while ((name = name_after(tenant, 0)) != NULL)
        name_withdraw(name);
    parcels_close(tenant->core, 0, tenant, &bytes);
    pool_retire_all_of(tenant);
}

static void session_free(struct session *session, uint64_t now_ns) {
    struct core *core = session->core;
    struct tenant *tenant = session->tenant;

    session_clear(session, now_ns);
    assert(session->n_leases == 0 && session->n_requests == 0 && session->leased_bytes == 0 &&
           session->fenced_bytes == 0 && session->n_segments == 0 && list_is_empty(&session->held) &&
           list_is_empty(&session->editions) && list_is_empty(&session->builds) &&
           list_is_empty(&session->made) && list_is_empty(&session->places) && session->n_name_waits == 0);
    list_remove(&session->reclaim_link);
    list_remove(&session->link);
    list_remove(&session->tenant_link);
    core->n_sessions--;
    charge_free(&session->replies);
    charge_free(&session->charge);
    for (size_t word = 0; word < session->n_segment_words; word++)
        kept_end(core, &session->segments[word].record);
    kept_end(core, &session->record);
    free(session->segments);
    free(session);
    if (core->policy != NULL && core->policy->has_group_rules)
        tenant_apply_policy(tenant, NULL); /* a limit goes with the last of its group */
    if (tenant->sessions == 1 && tenant->scope != NULL && tenant->scope->is_dropped)
        tenant_clear(tenant);
    tenant->sessions--; /* only now: until here it keeps the tenant */
    tenant_drop_if_unused(tenant);
    mark_all_ready(core);
    core_serve(core, now_ns);
}

/* Records the session's end: once for each pool of which it has memory; without any, once with no pool. */
static void record_end(const struct session *session, enum proto_record_kind kind, uint64_t value) {
    struct core *core = session->core;
    struct recorded recorded = {.kind = kind, .session = session, .value = value};
    bool is_recorded = false;

    for (unsigned i = 0; i < core->n_pools; i++) {
        const struct session_pool *has = &session->pools[i];
        if (!has_of(session, core->pools[i]))
            continue;
        recorded.pool = core->pools[i];
        recorded.bytes = has->leased_bytes + has->fenced_bytes;
        record(core, &recorded);
        is_recorded = true;
        struct proto_hour *hour = recorder_hour(core->pools[i]);
        if (hour != NULL && kind == PROTO_RECORD_DEATH)
            hour->n_deaths++;
    }
    if (!is_recorded)
        record(core, &recorded);
}

void core_session_close(struct session *session, uint64_t now_ns) {
    assert(session->state == SESSION_ACTIVE);
    recorder_set_time(session->core, now_ns);
    record_end(session, PROTO_RECORD_FAREWELL, 0);
    parcels_let_go(session, now_ns);
    leave_names(session);
    settle_editions(session, true);
    end_places(session, channel_leave);
    leave_made(session);
    session_free(session, now_ns);
}

void core_session_lose(struct session *session, uint64_t now_ns, const char *reason) {
    assert(session->state == SESSION_ACTIVE);
    recorder_set_time(session->core, now_ns);
    record_end(session, PROTO_RECORD_DEATH, 0);
    while (!list_is_empty(&session->requests))
        request_free(container_of(session->requests.next, struct request, session_link));
    list_for_each_entry(struct lease, lease, &session->leases, session_link) {
        lease_quarantine(lease);
    }
    parcels_let_go(session, now_ns);
    leave_names(session);
    end_places(session, channel_lose);
    list_remove(&session->reclaim_link);
    session_fall_silent(session);
    session->state = SESSION_QUARANTINED;
    session->lost_ns = now_ns;
    kept_change(session->core, session->record);
    for (unsigned i = 0; i < session->core->n_pools; i++)
        if (has_of(session, session->core->pools[i]))
            session->core->pools[i]->reclaim.lost_ns = now_ns;
    session->quarantine_reason = reason;
    mark_all_ready(session->core); /* its requests may have held others up */
    core_serve(session->core, now_ns);
}

void core_session_gone(struct session *session, uint64_t now_ns) {
    assert(session->state == SESSION_QUARANTINED);
    recorder_set_time(session->core, now_ns);
    record_end(session, PROTO_RECORD_RETURN, now_ns - session->lost_ns);
    settle_editions(session, false);
    end_places(session, channel_vacate);
    leave_made(session);
    session_free(session, now_ns);
}

void core_scope_drop(struct scope *scope, uint64_t now_ns) {
    struct core *core = scope->core;

    recorder_set_time(core, now_ns);
    list_for_each_entry_safe(struct tenant, tenant, &core->tenants, link) {
        if (tenant->scope != scope || tenant->sessions > 0)
            continue;
        tenant->sessions++; /* keeps it meanwhile */
        tenant_clear(tenant);
        tenant->sessions--;
        tenant_drop_if_unused(tenant);
    }
    scope_drop(scope);
    mark_all_ready(core);
    core_serve(core, now_ns);
}

void core_scope_changed(struct scope *scope, uint64_t now_ns) {
    recorder_set_time(scope->core, now_ns);
    list_for_each_entry(struct tenant, tenant, &scope->core->tenants, link) {
        if (tenant->scope == scope)
            tenant_apply_policy(tenant, NULL);
    }
    mark_all_ready(scope->core);
    core_serve(scope->core, now_ns);
}

void core_scope_report(const struct scope *scope, struct scope_use *ret_use) {
    *ret_use = (struct scope_use){.quota.n_refusals = scope->n_refusals};
    memcpy(ret_use->quota.limits, scope->terms.limits, sizeof ret_use->quota.limits);
    policy_limits_fill(scope->core->policy, ret_use->quota.limits);
    list_for_each_entry(const struct tenant, tenant, &scope->core->tenants, link) {
        if (tenant->scope != scope)
            continue;
        for (unsigned item = 0; item < QUOTA_ITEMS; item++)
            ret_use->quota.used[item] += tenant->quota.used[item];
        list_for_each_entry(const struct tenant_heap, heap, &tenant->heaps, tenant_link) {
            ret_use->reserved_bytes += heap->heap.free_bytes + heap->heap.taken_bytes;
        }
    }
}
