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
            (buffer->has_fence != 0 &&
             (session->board_slot == 0 || buffer->fence.slot != session->board_slot - 1)))
            return PROTO_E_INVALID;
        *ret_bytes += block->held_bytes;
    }
    return 0;
}

/* The edition that is published under a name. NULL: there is none. */
static const struct edition *find_published(const struct tenant *tenant, const char *text) {
    const struct name *name = name_find(tenant, text);
    return name != NULL ? name->edition : NULL;
}

/* Whether the limits of the tenant leave room for an edition of so many bytes. before: the edition that it replaces, whose
 * parcels and bytes come back; NULL: none. */
static bool has_room(struct tenant *tenant, const struct proto_publish *publish, uint64_t bytes,
                     const struct edition *before) {
    unsigned n_before = before != NULL ? before->n_parcels : 0;
    unsigned n_more = publish->count > n_before ? publish->count - n_before : 0;
    uint64_t kept_before = before != NULL ? before->kept.amount : 0;

    return tenant->n_parcels + n_more <= PARCELS_MAX && tenant_may_have(tenant, n_more, 0) &&
           ((publish->flags & PROTO_PUBLISH_KEEP) == 0 || bytes <= kept_before ||
            bytes - kept_before <= quota_left(&tenant->quota, QUOTA_KEPT));
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
    const struct edition *before = find_published(tenant, publish->name);
    if ((publish->flags & PROTO_PUBLISH_SAME_LAYOUT) != 0 &&
        (before == NULL || before->layout != publish->layout))
        return PROTO_E_INVALID;
    if (!has_room(tenant, publish, bytes, before)) {
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
    record(session->core, &(struct recorded){.kind = PROTO_RECORD_PUBLISH,
                                             .session = session,
                                             .bytes = edition->bytes,
                                             .value = edition->generation});
    record(session->core,
           &(struct recorded){.kind = PROTO_RECORD_NAMED,
                              .flags = strlen(name->text) < PROTO_RECORD_NAME_SIZE ? 0 : PROTO_RECORD_CUT,
                              .session = session,
                              .text = name->text});
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
    name_withdraw(name);
    core_serve(core, now_ns);
}

/* The thing that the name stands for, as a number; 0: none. */
static uint64_t standing_for(const struct name *name) {
    return name == NULL            ? 0
           : name->edition != NULL ? name->edition->generation
           : name->channel != NULL ? name->channel->id
                                   : 0;
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

void core_unpublish_all(struct core *core, uint64_t now_ns) {
    recorder_set_time(core, now_ns);
    list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
        struct name *name = name_after(tenant, 0), *next;
        for (; name != NULL; name = next) {
            next = name_after(tenant, name->id);
            name_withdraw(name);
        }
    }
    core_serve(core, now_ns);
}

int core_open_name(struct session *session, uint64_t request, const struct proto_open_name *open,
                   uint64_t now_ns) {
    recorder_set_time(session->core, now_ns);
    return name_ask(session, request, open, 0, now_ns);
}

/* Writes why a request for a place of a channel is refused. */
static void explain_no_place(const struct name_wait *wait, struct proto_failure *ret_failure) {
    const struct name *name = wait->name;
    const struct channel *channel = name->channel;

    if (channel == NULL && wait->error == PROTO_E_INVALID)
        proto_failure_set(ret_failure, wait->error, "'%s' stands for buffers, and is no channel", name->text);
    else if (channel == NULL)
        proto_failure_set(ret_failure, wait->error, "no channel '%s' was made in the time with this user",
                          name->text);
    else if (wait->error == PROTO_E_INVALID)
        proto_failure_set(ret_failure, wait->error,
                          "'%s' has no place %u: its consumers have places from 1 to %" PRIu64, name->text,
                          (unsigned)wait->place, channel->capacities.n_consumers);
    else
        proto_failure_set(
            ret_failure, wait->error,
            "the place of '%s' was not free in the time: a process is in it, or one that died may "
            "still have work on the GPU",
            name->text);
}

/* Writes why a request is refused. */
static void explain_refusal(const struct name_wait *wait, struct proto_failure *ret_failure) {
    const struct name *name = wait->name;
    bool is_change = (wait->flags & PROTO_OPEN_NAME_CHANGE) != 0;

    if (wait->error == PROTO_E_CANCELLED)
        proto_failure_set(ret_failure, wait->error, "the client cancelled the request");
    else if ((wait->flags & NAME_WAIT_JOIN) != 0)
        explain_no_place(wait, ret_failure);
    else if (wait->error == PROTO_E_INVALID)
        proto_failure_set(ret_failure, wait->error, "'%s' is a channel: join it", name->text);
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

bool core_next_name_answer(struct core *core, struct name_answer *ret_answer) {
    struct name_wait *wait = name_waits_next_answer(core);

    if (wait == NULL)
        return false;
    struct name *name = wait->name;
    *ret_answer = (struct name_answer){.session = wait->session, .request = wait->id, .error = wait->error};
    if (wait->state == NAME_WAIT_THERE) {
        edition_describe(name->edition, &ret_answer->named);
        name->edition->n_opens++;
    } else if (wait->state == NAME_WAIT_REFUSED) {
        explain_refusal(wait, &ret_answer->failure);
    } else if (wait->state == NAME_WAIT_JOINED) {
        ret_answer->is_of_channel = true;
        channel_describe(name->channel, wait->got, &ret_answer->channel);
    } else {
        ret_answer->named.state = wait->state == NAME_WAIT_BUILDS ? PROTO_NAME_BUILD : PROTO_NAME_GONE;
    }
    name_wait_free(wait);
    name_drop_if_unused(name);
    return true;
}

int core_read_directory(struct session *session, const struct proto_read_directory *read,
                        struct proto_directory_part *ret_part) {
    const struct edition *edition = find_published(session->tenant, read->name);

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
        channel_list(name->channel, ret_listed);
    } else if (name->builder != NULL) {
        ret_listed->session = name->builder->id;
    }
}

void core_list_names(const struct session *session, uint64_t after, struct proto_names *ret_names) {
    const struct name *name = name_after(session->tenant, after);

    *ret_names = (struct proto_names){0};
    for (; name != NULL && ret_names->count < PROTO_NAMES_PER_MESSAGE;
         name = name_after(name->tenant, name->id))
        list_one(name, &ret_names->names[ret_names->count++]);
    for (; name != NULL; name = name_after(name->tenant, name->id))
        ret_names->n_left++;
}
