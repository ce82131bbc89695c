/* SPDX-License-Identifier: Apache-2.0 */
/* The core's entry points for names: what a client publishes and opens. */
#include "daemon/core/core.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/core/channel.h"
#include "daemon/core/collect.h"
#include "daemon/core/edition.h"
#include "daemon/core/explain.h"
#include "daemon/core/kept.h"
#include "daemon/core/lease.h"
#include "daemon/core/name.h"
#include "daemon/core/name_wait.h"
#include "daemon/core/parcel.h"
#include "daemon/core/recorder.h"
#include "daemon/core/tenant.h"
#include "daemon/core/waiting.h"

int core_write_directory(struct session *session, const struct proto_directory_part *part) {
    int r = draft_write(session, part);

    if (r == PROTO_E_LIMIT)
        tenant_note_refusal(session->tenant);
    return r;
}

/* Finds the leases that are to be published, and checks them. *ret_bytes: of their blocks. */
static int find_leases(struct session *session, const struct proto_publish *publish, struct lease **leases,
                       uint64_t *ret_bytes) {
    *ret_bytes = 0;
    for (uint32_t i = 0; i < publish->count; i++) {
        const struct proto_publish_buffer *buffer = &publish->buffers[i];
        leases[i] = lease_find(session->core, session, buffer->lease, buffer->generation);
        if (leases[i] == NULL)
            return PROTO_E_STALE;
        const struct block *block = leases[i]->block;
        if (buffer->size_bytes > block->capacity_bytes || block->held_bytes != block->capacity_bytes ||
            leases[i]->withheld_bytes > 0 ||
            (buffer->has_fence != 0 && buffer->fence.slot + 1 != session->board_slot))
            return PROTO_E_INVALID;
        *ret_bytes += block->held_bytes;
    }
    return 0;
}

/* Whether the limits of the tenant leave room for an edition of so many bytes. */
static bool has_room(struct tenant *tenant, const struct proto_publish *publish, uint64_t bytes) {
    return tenant->n_parcels + publish->count <= PARCELS_MAX && tenant_may_have(tenant, publish->count, 0) &&
           ((publish->flags & PROTO_PUBLISH_KEEP) == 0 || bytes <= quota_left(&tenant->quota, QUOTA_KEPT));
}

static bool has_layout(const struct tenant *tenant, const struct proto_publish *publish) {
    const struct name *name = name_find(tenant, publish->name);
    return name != NULL && name->edition != NULL && name->edition->layout == publish->layout;
}

static int publish_under(struct session *session, const struct proto_publish *publish,
                         const struct proto_token *tokens, uint64_t now_ns, uint64_t *ret_generation) {
    struct tenant *tenant = session->tenant;
    struct lease *leases[PROTO_NAME_BUFFERS_MAX];
    struct edition *edition;
    struct name *name;
    uint64_t bytes;

    int r = find_leases(session, publish, leases, &bytes);
    if (r != 0)
        return r;
    if (publish->directory_bytes != session->draft.n_bytes)
        return PROTO_E_STALE;
    if ((publish->flags & PROTO_PUBLISH_SAME_LAYOUT) != 0 && !has_layout(tenant, publish))
        return PROTO_E_INVALID;
    if (!has_room(tenant, publish, bytes)) {
        tenant_note_refusal(tenant);
        return PROTO_E_LIMIT;
    }
    r = name_get(tenant, publish->name, &name);
    if (r != 0)
        return r;
    if (name->channel != NULL)
        return PROTO_E_INVALID;
    r = edition_make(session, publish, leases, tokens, now_ns, &edition);
    if (r < 0) {
        name_drop_if_unused(name);
        return r;
    }
    *ret_generation = edition->generation;
    name_set_edition(name, edition);
    if (name->builder == session)
        name_set_builder(name, NULL);
    name_serve(name);
    return 0;
}

int core_publish(struct session *session, const struct proto_publish *publish,
                 const struct proto_token *tokens, uint64_t now_ns, uint64_t *ret_generation) {
    recorder_set_time(session->core, now_ns);
    int r = publish_under(session, publish, tokens, now_ns, ret_generation);
    core_serve(session->core, now_ns);
    return r;
}

static void unpublish(struct name *name, uint64_t now_ns) {
    struct core *core = name->tenant->core;

    recorder_set_time(core, now_ns);
    name_set_edition(name, NULL);
    if (name->channel != NULL) {
        channel_end(name->channel);
        (void)channel_drop_if_unused(name->channel);
        name->channel = NULL;
    }
    name_serve(name);
    core_serve(core, now_ns);
}

/* What the name stands for, as a number; 0: nothing. */
static uint64_t standing_for(const struct name *name) {
    return name == NULL ? 0 : name->edition != NULL ? name->edition->generation : name->channel != NULL ? name->channel->id : 0;
}

int core_unpublish(struct session *session, const struct proto_unpublish *wanted, uint64_t now_ns) {
    struct name *name = name_find(session->tenant, wanted->name);

    if (name != NULL && (wanted->flags & PROTO_UNPUBLISH_BUILD) != 0) {
        if (name->builder != session)
            return PROTO_E_NO_NAME;
        name_set_builder(name, NULL);
        name_serve(name);
        return 0;
    }
    uint64_t present = standing_for(name);
    if (present == 0 || (wanted->generation != 0 && present != wanted->generation))
        return PROTO_E_NO_NAME;
    unpublish(name, now_ns);
    return 0;
}

int core_unpublish_of(struct core *core, struct tenant_id owner, const char *text, uint64_t now_ns) {
    const struct tenant *tenant = tenant_find(core, owner);
    struct name *name = tenant != NULL ? name_find(tenant, text) : NULL;

    if (standing_for(name) == 0)
        return PROTO_E_NO_NAME;
    unpublish(name, now_ns);
    return 0;
}

/* place: with NAME_WAIT_JOIN. */
static int ask_for_name(struct session *session, uint64_t request, const struct proto_open_name *open,
                        uint32_t place, uint64_t now_ns) {
    struct name_wait *wait;
    struct name *name;

    recorder_set_time(session->core, now_ns);
    int r = name_get(session->tenant, open->name, &name);
    if (r != 0)
        return r;
    r = name_wait_new(session, name, request, open, place, now_ns, &wait);
    if (r != 0) {
        name_drop_if_unused(name);
        return r;
    }
    name_serve(name);
    name_waits_expire(session->core, now_ns); /* its timeout may be 0 */
    return 0;
}

int core_open_name(struct session *session, uint64_t request, const struct proto_open_name *open,
                   uint64_t now_ns) {
    return ask_for_name(session, request, open, 0, now_ns);
}

/* --- channels --- */

int core_make_channel(struct session *session, const struct proto_make_channel *make,
                      const struct proto_token tokens[static 2], uint64_t now_ns, struct channel **ret_channel) {
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
    if (tenant->n_parcels >= PARCELS_MAX || !tenant_may_have(tenant, 1, 0)) {
        tenant_note_refusal(tenant);
        return PROTO_E_LIMIT;
    }
    int r = name_get(tenant, make->name, &name);
    if (r != 0)
        return r;
    if (name->edition != NULL || name->channel != NULL)
        return PROTO_E_INVALID;
    r = channel_make(session, name, make, lease, tokens, now_ns, ret_channel);
    if (r == 0)
        name->channel = *ret_channel;
    name_drop_if_unused(name);
    return r;
}

void core_channel_made(struct channel *channel, struct list *shell_link) {
    channel->shell_link = shell_link;
    name_serve(channel->name); /* sessions may wait for it */
}

void core_unmake_channel(struct channel *channel, uint64_t now_ns) {
    unpublish(channel->name, now_ns);
}

void core_lose_channel(struct channel *channel, uint64_t now_ns) {
    struct core *core = channel->core;
    struct name *name = channel->name;

    recorder_set_time(core, now_ns);
    channel_free(channel);
    if (name != NULL) {
        name->channel = NULL;
        name_serve(name);
    }
    core_serve(core, now_ns);
}

int core_join_channel(struct session *session, uint64_t request, const struct proto_join_channel *join,
                      uint64_t now_ns) {
    struct proto_open_name open = {.timeout_ns = join->timeout_ns, .flags = NAME_WAIT_JOIN};

    memcpy(open.name, join->name, sizeof open.name);
    return ask_for_name(session, request, &open, join->place, now_ns);
}

/* The channel's places have changed: sessions may wait for one. */
static void serve_channel(struct channel *channel, uint64_t now_ns) {
    struct core *core = channel->core;
    struct name *name = channel->name;

    if (name != NULL)
        name_serve(name);
    name = channel_drop_if_unused(channel);
    if (name != NULL)
        name_serve(name);
    core_serve(core, now_ns);
}

int core_leave_channel(struct session *session, const struct proto_channel_page_name *left, uint64_t now_ns) {
    struct channel *channel = channel_find(session->core, session->tenant, left->channel);

    if (channel == NULL || channel->places[left->page].session != session)
        return PROTO_E_STALE;
    recorder_set_time(session->core, now_ns);
    channel_leave(&channel->places[left->page]);
    serve_channel(channel, now_ns);
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

/* Writes why a request is refused. */
static void explain_refusal(const struct name_wait *wait, struct proto_failure *ret_failure) {
    const struct name *name = wait->name;
    bool is_change = (wait->flags & PROTO_OPEN_NAME_CHANGE) != 0;

    if (wait->error == PROTO_E_INVALID && name->channel != NULL)
        proto_failure_set(ret_failure, wait->error, "'%s' is a channel: join it", name->text);
    else if (wait->error == PROTO_E_INVALID)
        proto_failure_set(ret_failure, wait->error, "'%s' stands for buffers, and is no channel", name->text);
    else if ((wait->flags & NAME_WAIT_JOIN) != 0 && name->channel != NULL)
        proto_failure_set(ret_failure, wait->error,
                          "the place of '%s' was not free in the time: a process is in it, or one that died may "
                          "still have work on the GPU",
                          name->text);
    else if ((wait->flags & NAME_WAIT_JOIN) != 0)
        proto_failure_set(ret_failure, wait->error, "no channel '%s' was made in the time with this user",
                          name->text);
    else if (wait->error == PROTO_E_CANCELLED)
        proto_failure_set(ret_failure, wait->error, "the client cancelled the request");
    else if (is_change)
        proto_failure_set(ret_failure, wait->error, "nothing else was published under '%s' in the time",
                          name->text);
    else if (name->edition != NULL)
        proto_failure_set(ret_failure, wait->error,
                          "'%s' has generation %" PRIu64 ", and %" PRIu64 " was not published in the time",
                          name->text, name->edition->generation, wait->generation);
    else if (name->builder != NULL)
        proto_failure_set(ret_failure, wait->error,
                          "nothing is published under '%s' yet: session %" PRIu64
                          " (pid %d) is to build it, and did not in the time",
                          name->text, name->builder->id, (int)name->builder->peer.pid);
    else
        proto_failure_set(ret_failure, wait->error,
                          "nothing is published under '%s' with this user: see 'gpupoolctl names'",
                          name->text);
}

/* The session may have left meanwhile, by a request behind this one. */
static void describe_joined(struct name_wait *wait, struct name_answer *ret_answer) {
    const struct channel *channel = wait->name->channel;

    if (channel == NULL || channel->places[wait->place].session != wait->session) {
        wait->error = PROTO_E_NO_NAME;
        return;
    }
    ret_answer->is_of_channel = true;
    channel_describe(channel, wait->place, &ret_answer->channel);
}

bool core_next_name_answer(struct core *core, struct name_answer *ret_answer) {
    struct name_wait *wait = list_first(&core->names_answered, struct name_wait, link);

    if (wait == NULL)
        return false;
    struct name *name = wait->name;
    *ret_answer = (struct name_answer){.session = wait->session, .request = wait->id};
    if (wait->state == NAME_WAIT_THERE && name->edition != NULL) {
        edition_describe(name->edition, &ret_answer->named);
        name->edition->n_opens++;
    } else if (wait->state == NAME_WAIT_THERE) { /* it was, and is gone meanwhile */
        wait->error = PROTO_E_NO_NAME;
    } else if (wait->state == NAME_WAIT_BUILDS) {
        ret_answer->named.state = PROTO_NAME_BUILD;
    } else if (wait->state == NAME_WAIT_GONE) {
        ret_answer->named.state = PROTO_NAME_GONE;
    } else if (wait->state == NAME_WAIT_JOINED) {
        describe_joined(wait, ret_answer);
    }
    if (wait->error != 0)
        explain_refusal(wait, &ret_answer->failure);
    ret_answer->error = wait->error;
    name_wait_free(wait);
    name_drop_if_unused(name);
    return true;
}

int core_read_directory(struct session *session, const struct proto_read_directory *read,
                        struct proto_directory_part *ret_part) {
    const struct name *name = name_find(session->tenant, read->name);
    const struct edition *edition = name != NULL ? name->edition : NULL;

    if (edition == NULL)
        return PROTO_E_NO_NAME;
    if (edition->generation != read->generation)
        return PROTO_E_STALE;
    if (read->offset_bytes >= edition->directory_bytes)
        return PROTO_E_INVALID;
    uint32_t left = edition->directory_bytes - read->offset_bytes;
    ret_part->offset_bytes = read->offset_bytes;
    ret_part->n_bytes = left < PROTO_DIRECTORY_PART_MAX ? left : PROTO_DIRECTORY_PART_MAX;
    memcpy(ret_part->bytes, edition->directory + read->offset_bytes, ret_part->n_bytes);
    return 0;
}

static void list_one(const struct name *name, struct proto_listed_name *ret_listed) {
    const struct edition *edition = name->edition;

    *ret_listed = (struct proto_listed_name){.id = name->id};
    memcpy(ret_listed->name, name->text, sizeof ret_listed->name);
    if (edition != NULL) {
        ret_listed->generation = edition->generation;
        ret_listed->bytes = edition->bytes;
        ret_listed->layout = edition->layout;
        ret_listed->session = edition->publisher;
        ret_listed->flags = edition->flags;
        ret_listed->count = edition->n_parcels;
    } else if (name->channel != NULL) {
        const struct channel *channel = name->channel;
        ret_listed->generation = channel->id;
        ret_listed->bytes = channel->parcel->block->held_bytes;
        ret_listed->session = channel->maker;
        ret_listed->flags =
            PROTO_NAME_CHANNEL | ((channel->flags & PROTO_MAKE_CHANNEL_KEEP) != 0 ? PROTO_PUBLISH_KEEP : 0);
        ret_listed->count = 1;
    } else if (name->builder != NULL) {
        ret_listed->session = name->builder->id;
    }
}

void core_list_names(const struct session *session, uint64_t after, struct proto_names *ret_names) {
    const struct name *name = name_after(session->tenant, after);

    *ret_names = (struct proto_names){0};
    for (; name != NULL && ret_names->count < PROTO_NAMES_PER_MESSAGE; name = name_after(name->tenant, name->id))
        list_one(name, &ret_names->names[ret_names->count++]);
    for (; name != NULL; name = name_after(name->tenant, name->id))
        ret_names->n_left++;
}
