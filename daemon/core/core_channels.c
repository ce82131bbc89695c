/* SPDX-License-Identifier: Apache-2.0 */
/* The core's entry points for channels: how they are made, joined and left. */
#include "daemon/core/core.h"

#include <assert.h>
#include <string.h>

#include "daemon/core/channel.h"
#include "daemon/core/collect.h"
#include "daemon/core/lease.h"
#include "daemon/core/name.h"
#include "daemon/core/name_wait.h"
#include "daemon/core/recorder.h"
#include "daemon/core/tenant.h"
#include "daemon/core/waiting.h"

int core_make_channel(struct session *session, const struct proto_make_channel *make,
                      const struct proto_token tokens[static 2], uint64_t now_ns,
                      struct channel **ret_channel) {
    struct tenant *tenant = session->tenant;
    struct lease *lease = lease_find(session->core, session, make->lease, make->generation);
    struct name *name;

    recorder_set_time(session->core, now_ns);
    if (lease == NULL)
        return PROTO_E_STALE;
    const struct block *block = lease->block;
    if (block->held_bytes != block->capacity_bytes || lease->withheld_bytes > 0 ||
        block->capacity_bytes / make->n_slots < make->slot_bytes)
        return PROTO_E_INVALID;
    if (tenant->n_parcels >= PARCELS_MAX || !tenant_may_have(tenant, 1, 0) ||
        !channel_pages_are_left(tenant, make->n_consumers) ||
        ((make->flags & PROTO_MAKE_CHANNEL_KEEP) != 0 &&
         block->held_bytes > quota_left(&tenant->quota, QUOTA_KEPT))) {
        tenant_note_refusal(tenant);
        return PROTO_E_LIMIT;
    }
    int r = name_get(tenant, make->name, &name);
    if (r != 0)
        return r;
    if (name->edition != NULL || name->channel != NULL)
        return PROTO_E_INVALID;
    r = channel_make(session, name, make, lease, tokens, now_ns, ret_channel);
    if (r != 0)
        name_drop_if_unused(name);
    return r;
}

void core_channel_made(struct channel *channel, struct list *shell_link) {
    channel->shell_link = shell_link;
    name_serve(channel->name);
}

void core_unmake_channel(struct channel *channel, uint64_t now_ns) {
    struct core *core = channel->core;

    recorder_set_time(core, now_ns);
    name_withdraw(channel->name);
    core_serve(core, now_ns);
}

void core_lose_channel(struct channel *channel, uint64_t now_ns) {
    struct core *core = channel->core;
    struct name *name = channel->name;

    recorder_set_time(core, now_ns);
    channel_free(channel);
    if (name != NULL)
        name_serve(name);
    core_serve(core, now_ns);
}

int core_join_channel(struct session *session, uint64_t request, const struct proto_join_channel *join,
                      uint64_t now_ns) {
    struct proto_open_name open = {.timeout_ns = join->timeout_ns, .flags = NAME_WAIT_JOIN};

    recorder_set_time(session->core, now_ns);
    memcpy(open.name, join->name, sizeof open.name);
    return name_ask(session, request, &open, join->place, now_ns);
}

int core_leave_channel(struct session *session, const struct proto_channel_page_name *left, uint64_t now_ns) {
    struct core *core = session->core;
    struct channel *channel = channel_find(core, session->tenant, left->channel);

    if (channel == NULL || channel->places[left->page].session != session)
        return PROTO_E_STALE;
    recorder_set_time(core, now_ns);
    channel_leave(&channel->places[left->page]);
    name_serve_channel(channel);
    core_serve(core, now_ns);
    return 0;
}

int core_find_channel_page(const struct session *session, const struct proto_channel_page_name *wanted,
                           struct channel **ret_channel, bool *ret_is_own) {
    struct channel *channel = channel_find(session->core, session->tenant, wanted->channel);

    if (channel == NULL || !channel_has_member(channel, session))
        return PROTO_E_STALE;
    if (wanted->page > channel->capacities.n_consumers + 1)
        return PROTO_E_INVALID;
    *ret_channel = channel;
    *ret_is_own = wanted->page > 0 && channel->places[wanted->page - 1].session == session;
    return 0;
}

bool core_next_channel(struct core *core, struct channel **ret_channel) {
    struct channel *channel = list_first(&core->channels_changed, struct channel, change_link);

    if (channel == NULL)
        return false;
    list_remove(&channel->change_link);
    *ret_channel = channel;
    return true;
}

struct list *core_next_channel_gone(struct core *core) {
    struct list *link = core->channels_gone.next;

    if (list_is_empty(&core->channels_gone))
        return NULL;
    list_remove(link);
    return link;
}
