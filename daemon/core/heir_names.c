/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/heir.h"

#include <string.h>

#include "daemon/core/channel.h"
#include "daemon/core/edition.h"
#include "daemon/core/name.h"
#include "daemon/core/name_wait.h"
#include "daemon/core/parcel.h"
#include "daemon/core/tenant.h"
#include "proto/text.h"

int heir_add_name(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_name *kept = payload;
    struct session *builder = heir_object(heir, kept->builder, KEPT_SESSION);
    struct tenant *tenant;
    struct name *name;

    int r = heir_tenant(heir, &kept->tenant, &tenant);
    if (r < 0)
        return r;
    if (!text_is_filled_up(kept->text, sizeof kept->text) ||
        !text_is_printable(kept->text, strlen(kept->text)) || kept->id == 0 ||
        kept->id > heir->core->leases.next_generation)
        return heir_refuse(heir, "a name has no text, or a number that was never given");
    if ((kept->builder != 0 && builder == NULL) || (builder != NULL && builder->tenant != tenant))
        return heir_refuse(heir, "a name is built by a session that is not there");
    r = name_restore(tenant, kept->text, kept->id, &name);
    if (r == -EBADMSG)
        return heir_refuse(heir, "two names are one");
    if (r < 0)
        return r;
    heir_bind(heir, record, name, &name->record);
    if (builder != NULL)
        name_set_builder(name, builder);
    return 0;
}

int heir_add_edition(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_edition *kept = payload;
    struct name *name = heir_object(heir, kept->name, KEPT_NAME);
    struct session *session = heir_object(heir, kept->session, KEPT_SESSION);
    struct edition *edition;

    if (name == NULL || name->edition != NULL)
        return heir_refuse(heir, "what is published has no name, or another one's");
    if ((kept->session != 0 && session == NULL) ||
        (session != NULL && (session->tenant != name->tenant || session->id != kept->publisher)))
        return heir_refuse(heir, "what is published is of a session that is not there");
    if (kept->generation == 0 || kept->generation > heir->core->leases.next_generation ||
        kept->n_parcels == 0 || kept->n_parcels > PROTO_NAME_BUFFERS_MAX ||
        kept->directory_bytes > PROTO_DIRECTORY_BYTES_MAX || (kept->flags & ~PROTO_NAMED_FLAGS) != 0)
        return heir_refuse(heir, "what is published has impossible numbers");
    const struct edition wanted = {
        .core = heir->core,
        .name = name,
        .generation = kept->generation,
        .flags = kept->flags,
        .layout = kept->layout,
        .publisher = kept->publisher,
        .pid = kept->pid,
        .published_ns = kept->published_ns,
        .session = session,
        .directory_bytes = kept->directory_bytes,
    };
    int r = edition_restore(&wanted, &edition);
    if (r < 0)
        return r;
    name->edition = edition;
    heir_bind(heir, record, edition, &edition->record);
    return 0;
}

int heir_add_directory(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_directory *kept = payload;
    struct edition *edition = heir_object(heir, kept->edition, KEPT_EDITION);
    unsigned number = kept->offset_bytes / KEPT_DIRECTORY_BYTES;

    if (edition == NULL || kept->offset_bytes % KEPT_DIRECTORY_BYTES != 0 || number >= edition->n_parts ||
        edition->parts[number].record != 0)
        return heir_refuse(heir, "a part of a directory has no place");
    uint32_t left = edition->directory_bytes - kept->offset_bytes;
    memcpy(edition->directory + kept->offset_bytes, kept->bytes,
           left < KEPT_DIRECTORY_BYTES ? left : KEPT_DIRECTORY_BYTES);
    heir_bind(heir, record, &edition->parts[number], &edition->parts[number].record);
    return 0;
}

/* --- the parts of editions, in their order */

static uint64_t number_of_part(const void *payload) {
    const struct kept_named *kept = payload;
    return (uint64_t)kept->edition << 32 | kept->number;
}

/* Whether the part has no fence, or one in its publisher's slot. */
static bool has_sane_fence(const struct kept_named *kept, const struct edition *edition) {
    if (kept->has_fence == 0)
        return kept->fence.slot == 0 && kept->fence.word == 0 && kept->fence.value == 0;
    return kept->has_fence == 1 && edition->session != NULL && kept->fence.slot < PROTO_BOARD_SLOTS &&
           kept->fence.slot + 1 == edition->session->board_slot && kept->fence.word < PROTO_BOARD_WORDS;
}

static int add_part(struct heir *heir, const struct found_record *found) {
    const struct kept_named *kept = found->payload;
    struct edition *edition = heir_object(heir, kept->edition, KEPT_EDITION);
    struct block *block = heir_object(heir, kept->block, KEPT_BLOCK);
    struct parcel *parcel;

    if (edition == NULL || block == NULL || !block->shared || kept->number != edition->n_parcels ||
        kept->number >= PROTO_NAME_BUFFERS_MAX || block->segment->owner->tenant != edition->name->tenant)
        return heir_refuse(heir, "a block is published that is not there");
    if (!has_sane_fence(kept, edition))
        return heir_refuse(heir, "what is published is behind a fence that is not there");
    struct parcel wanted = {
        .edition = edition,
        .block = block,
        .takers = UINT32_MAX,
        .sent_ns = edition->published_ns,
        .deadline_ns = UINT64_MAX,
        .sender = edition->publisher,
        .pid = edition->pid,
        .fence = kept->fence,
        .has_fence = kept->has_fence != 0,
    };
    memcpy(wanted.token.bytes, kept->token, sizeof wanted.token.bytes);
    int r = parcel_restore(heir->core, &wanted, NULL, &parcel);
    if (r == -EBADMSG)
        return heir_refuse(heir, "two parcels have one token");
    if (r == 0)
        heir_bind(heir, found->record, parcel, &parcel->record);
    return r;
}

/* Whether all that an edition has was found. */
static int end_edition(struct heir *heir, uint32_t record, const struct kept_edition *kept) {
    struct edition *edition = heir_object(heir, record, KEPT_EDITION);

    if (edition->n_parcels != kept->n_parcels)
        return heir_refuse(heir, "a block that is published is missing");
    for (unsigned i = 0; i < edition->n_parts; i++)
        if (edition->parts[i].record == 0)
            return heir_refuse(heir, "a part of a directory is missing");
    edition_restored(edition, edition->name->tenant);
    return 0;
}

int heir_add_parts(struct heir *heir) {
    struct estate_found found = {0};

    int r = heir_add_in_order(heir, KEPT_NAMED, number_of_part, "two blocks have one place", add_part);
    while (r == 0 && estate_next(heir->estate, KEPT_EDITION, found.record, &found))
        r = end_edition(heir, found.record, found.payload);
    return r;
}

/* --- channels */

/* Whether another channel has the number. */
static bool has_number(const struct core *core, uint64_t id) {
    list_for_each_entry(const struct channel, channel, &core->channels, link) {
        if (channel->id == id)
            return true;
    }
    return false;
}

/* The sessions in the places of a channel that was made anew. */
static int occupy(struct heir *heir, const struct kept_channel *kept, struct channel *channel) {
    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES; i++) {
        struct channel_place *place = &channel->places[i];
        const struct kept_place *wanted = &kept->places[i];
        struct session *session = heir_object(heir, wanted->session, KEPT_SESSION);
        if ((wanted->session != 0 && session == NULL) || wanted->state > PROTO_CHANNEL_LEFT)
            return heir_refuse(heir, "a place of a channel is taken by a session that is not there");
        place->state = (enum proto_channel_state)wanted->state;
        place->queue = wanted->queue;
        place->processes = wanted->processes;
        place->last_session = wanted->last_session;
        place->session = session;
        if (session != NULL)
            list_append(&session->places, &place->session_link);
    }
    return 0;
}

int heir_add_channel(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_channel *kept = payload;
    struct block *block = heir_object(heir, kept->block, KEPT_BLOCK);
    struct name *name = heir_object(heir, kept->name, KEPT_NAME);
    struct session *session = heir_object(heir, kept->session, KEPT_SESSION);
    struct channel *channel;
    struct tenant *tenant;
    struct proto_token token;

    int r = heir_tenant(heir, &kept->tenant, &tenant);
    if (r < 0)
        return r;
    if (block == NULL || !block->shared || block->segment->owner->tenant != tenant)
        return heir_refuse(heir, "a channel has slots that are not there");
    if ((kept->name != 0 && name == NULL) ||
        (name != NULL && (name->tenant != tenant || name->edition != NULL || name->channel != NULL)))
        return heir_refuse(heir, "a channel has another one's name");
    if ((kept->session != 0 && session == NULL) ||
        (session != NULL && (session->tenant != tenant || session->id != kept->maker)))
        return heir_refuse(heir, "a channel was made by a session that is not there");
    struct channel wanted = {
        .core = heir->core,
        .tenant = tenant,
        .name = name,
        .id = kept->id,
        .capacities = {kept->slot_bytes, kept->n_slots, kept->metadata_bytes, kept->n_consumers,
                       kept->policy},
        .flags = kept->flags,
        .maker = kept->maker,
        .session = session,
    };
    if (!proto_channel_are_valid(&wanted.capacities) || kept->id == 0 ||
        kept->id > heir->core->leases.next_generation || has_number(heir->core, kept->id) ||
        (kept->flags & ~PROTO_MAKE_CHANNEL_KEEP) != 0)
        return heir_refuse(heir, "a channel has impossible numbers");
    memcpy(token.bytes, kept->token, sizeof token.bytes);
    r = channel_restore(&wanted, block, &token, &channel);
    if (r == -EBADMSG)
        return heir_refuse(heir, "two parcels have one token");
    if (r < 0)
        return r;
    heir_bind(heir, record, channel, &channel->record);
    return occupy(heir, kept, channel);
}

/* --- requests for names, in the order of their arrival */

static uint64_t number_of_wait(const void *payload) {
    return ((const struct kept_name_wait *)payload)->number;
}

/* Whether the numbers of a request are those of one that can be. */
static bool wait_is_sane(const struct kept_name_wait *kept) {
    bool joins = (kept->flags & NAME_WAIT_JOIN) != 0;

    if (kept->error > PROTO_E_MAX || (kept->state == NAME_WAIT_REFUSED) != (kept->error != 0))
        return false;
    if (!joins)
        return kept->state <= NAME_WAIT_REFUSED && (kept->flags & ~PROTO_OPEN_NAME_FLAGS) == 0 && kept->place == 0 &&
               kept->got == 0;
    return (kept->state == NAME_WAIT_WAITING || kept->state == NAME_WAIT_REFUSED ||
            kept->state == NAME_WAIT_JOINED) &&
           kept->flags == NAME_WAIT_JOIN && kept->got < PROTO_CHANNEL_PLACES &&
           (kept->place < PROTO_CHANNEL_PLACES || kept->place == PROTO_CHANNEL_ANY_CONSUMER);
}

static int add_wait(struct heir *heir, const struct found_record *found) {
    const struct kept_name_wait *kept = found->payload;
    struct session *session = heir_object(heir, kept->session, KEPT_SESSION);
    struct name *name = heir_object(heir, kept->name, KEPT_NAME);
    struct name_wait *wait;

    if (session == NULL || session->state != SESSION_ACTIVE || name == NULL ||
        name->tenant != session->tenant)
        return heir_refuse(heir, "a name is waited for by a session that is not there");
    if (!wait_is_sane(kept) || kept->number == 0 || kept->number > heir->core->next_request_number)
        return heir_refuse(heir, "a request for a name is in no state");
    const struct name_wait wanted = {
        .session = session,
        .name = name,
        .id = kept->id,
        .number = kept->number,
        .deadline_ns = kept->deadline_ns,
        .generation = kept->generation,
        .flags = kept->flags,
        .place = kept->place,
        .got = kept->got,
        .state = (enum name_wait_state)kept->state,
        .error = (enum proto_error)kept->error,
    };
    int r = name_wait_restore(&wanted, &wait);
    if (r == 0)
        heir_bind(heir, found->record, wait, &wait->record);
    return r;
}

int heir_add_name_waits(struct heir *heir) {
    return heir_add_in_order(heir, KEPT_NAME_WAIT, number_of_wait, "two requests have one number", add_wait);
}

/* --- names whose memory lies in orphans */

/* Whether the block lies in an orphan, which is described to no further process. */
static bool lies_in_orphan(const struct parcel *parcel) {
    list_for_each_entry(const struct heap_range, range, &parcel->block->ranges, user_link) {
        if (((const struct segment *)range->span->user)->is_orphan)
            return true;
    }
    return false;
}

static bool is_of_orphans(const struct edition *edition) {
    for (unsigned i = 0; i < edition->n_parcels; i++)
        if (lies_in_orphan(edition->parcels[i]))
            return true;
    return false;
}

void heir_drop_names(struct core *core) {
    list_for_each_entry_safe(struct tenant, tenant, &core->tenants, link) {
        struct name *name = name_after(tenant, 0), *next;
        for (; name != NULL; name = next) {
            next = name_after(tenant, name->id);
            if ((name->edition != NULL && is_of_orphans(name->edition)) ||
                (name->channel != NULL && lies_in_orphan(name->channel->parcel)))
                name_withdraw(name);
        }
    }
}
