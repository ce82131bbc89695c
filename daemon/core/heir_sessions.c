/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/heir.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/closing.h"
#include "daemon/core/lease.h"
#include "daemon/core/policy.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"

static struct session *make_session(struct core *core, struct tenant *tenant,
                                    const struct kept_session *kept) {
    struct session *session = calloc(1, sizeof *session + core->n_pools * sizeof session->answers[0]);

    if (session == NULL)
        return NULL;
    session->core = core;
    session->id = kept->id;
    session->peer = (struct peer){.pid = kept->pid, .uid = kept->uid, .scope = kept->scope, .gid = kept->gid};
    memcpy(session->peer.command, kept->command, sizeof session->peer.command - 1);
    session->wants_reclaim = kept->wants_reclaim;
    session->has_said_name = kept->has_said_name;
    session->connected_ns = kept->connected_ns;
    session->lost_ns = kept->lost_ns;
    session->n_questions = kept->n_questions;
    session->board_slot = kept->board_slot;
    session_enter(session, tenant);
    return session;
}

int heir_add_session(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_session *kept = payload;
    struct tenant *tenant;

    if (kept->n_groups > KEPT_GROUPS || kept->pid < 0 || kept->n_questions > HEIR_NUMBER_MAX ||
        kept->board_slot > PROTO_BOARD_SLOTS)
        return heir_refuse(heir, "a session has what none can have");
    if (kept->state != SESSION_ACTIVE && kept->state != SESSION_QUARANTINED)
        return heir_refuse(heir, "a session is in no state");
    if (kept->id == 0 || kept->id > heir->core->next_session_id || heir_session(heir, kept->id) != NULL)
        return heir_refuse(heir, "a session has no name of its own");
    int r = heir_tenant(heir, &(struct kept_tenant){.uid = kept->uid, .scope = kept->scope}, &tenant);
    if (r < 0)
        return r;
    struct session *session = make_session(heir->core, tenant, kept);
    if (session == NULL)
        return -ENOMEM;
    charge_force(&session->charge, &tenant->quota, QUOTA_SESSIONS, 1);
    heir_bind(heir, record, session, &session->record);
    r = heir->shell->take_session(heir->shell->argument, session, kept);
    if (r < 0)
        return r;
    if (session->page != NULL) /* the predecessor's shortages are over; this core finds its own */
        atomic_store_explicit(&session->page->shortage.pools, 0, memory_order_release);
    session->pools_allowed = policy_pools(heir->core->policy, &session->peer);
    tenant_apply_policy(tenant, NULL);
    return 0;
}

/* The session is lost, once its leases are there. */
int heir_lose_session(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_session *kept = payload;
    struct session *session = heir_object(heir, record, KEPT_SESSION);

    if (kept->state == SESSION_ACTIVE)
        return 0;
    if (!list_is_empty(&session->held) || !list_is_empty(&session->fenced))
        return heir_refuse(heir, "a session is lost, and has what ends with that");
    list_for_each_entry(struct lease, lease, &session->leases, session_link) {
        lease_quarantine(lease);
    }
    session_fall_silent(session);
    session->state = SESSION_QUARANTINED;
    session->quarantine_reason = "";
    return 0;
}

int heir_map_segments(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_mapped *kept = payload;
    struct session *session = heir_object(heir, kept->session, KEPT_SESSION);
    struct core *core = heir->core;

    if (session == NULL)
        return heir_refuse(heir, "segments are mapped by a session that is not there");
    if (kept->word >= heir->slots_max / 64)
        return heir_refuse(heir, "a session has a segment mapped that is not there");
    int r = session_reserve_word(session, kept->word);
    if (r < 0)
        return r;
    if (session->segments[kept->word].record != 0)
        return heir_refuse(heir, "two records are of one thing");
    for (size_t word = 0; word < session->n_segment_words; word++) /* they may have moved */
        if (session->segments[word].record != 0)
            estate_bind(heir->estate, session->segments[word].record, &session->segments[word]);
    for (uint64_t bits = kept->mapped; bits != 0; bits &= bits - 1) {
        size_t slot = (size_t)kept->word * 64 + (unsigned)__builtin_ctzll(bits);
        const struct segment *segment = slot < core->segment_slots ? core->segments[slot] : NULL;
        if (segment == NULL || segment->owner == NULL || segment->owner->tenant != session->tenant)
            return heir_refuse(heir, "a session has a segment mapped that is not its user's");
        session_map_segment(session, core->segments[slot]);
    }
    heir_bind(heir, record, &session->segments[kept->word], &session->segments[kept->word].record);
    return 0;
}

/* Each word of a session has a record, or a change of it would be lost. */
int heir_check_words(struct heir *heir, uint32_t record, const void *payload) {
    const struct session *session = heir_object(heir, record, KEPT_SESSION);

    (void)payload;
    for (size_t word = 0; word < session->n_segment_words; word++)
        if (session->segments[word].record == 0)
            return heir_refuse(heir, "it is not known what a session has mapped");
    return 0;
}

int heir_tell_session(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_mapped *kept = payload;
    struct session *session = heir_object(heir, kept->session, KEPT_SESSION);

    (void)record;
    if ((kept->told & ~kept->mapped) != 0)
        return heir_refuse(heir, "a session was told to close a segment that it has not mapped");
    for (uint64_t bits = kept->told; bits != 0; bits &= bits - 1) {
        struct segment *segment = heir->core->segments[kept->word * 64 + (unsigned)__builtin_ctzll(bits)];
        if (segment->state != SEGMENT_CLOSING)
            return heir_refuse(heir, "a session was told to close a segment that is in use");
        closing_restore_told(session, segment);
    }
    return 0;
}
