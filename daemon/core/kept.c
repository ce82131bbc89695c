/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/kept.h"

#include <string.h>

static struct kept_tenant kept_tenant(const struct tenant *tenant) {
    return (struct kept_tenant){.uid = tenant->id.uid, .scope = tenant->id.scope};
}

static void write_segment(const void *object, void *payload) {
    const struct segment *segment = object;
    struct kept_segment *kept = payload;

    *kept = (struct kept_segment){
        .id = segment->id,
        .size_bytes = segment->size_bytes,
        .pool = segment->pool->id,
        .slot = segment->slot,
        .state = segment->state,
        .has_keeper = segment->keeper != NULL,
        .label = segment->label,
    };
    if (segment->owner != NULL)
        kept->owner = kept_tenant(segment->owner->tenant);
    if (segment->state == SEGMENT_CLOSING) /* charged to the tenant of its mappers */
        kept->owner = kept_tenant(container_of(segment->charge.quota, struct tenant, quota));
    if (segment->keeper != NULL)
        kept->keeper = kept_tenant(segment->keeper);
}

static void write_session(const void *object, void *payload) {
    const struct session *session = object;
    const struct peer *peer = &session->peer;
    struct kept_session *kept = payload;

    *kept = (struct kept_session){
        .id = session->id,
        .connected_ns = session->connected_ns,
        .lost_ns = session->lost_ns,
        .n_questions = session->n_questions,
        .uid = peer->uid,
        .gid = peer->gid,
        .scope = peer->scope,
        .pid = peer->pid,
        .board_slot = session->board_slot,
        .state = (uint8_t)session->state,
        .wants_reclaim = session->wants_reclaim,
        .has_said_name = session->has_said_name,
        .n_groups = (uint8_t)(peer->n_groups < KEPT_GROUPS ? peer->n_groups : KEPT_GROUPS),
    };
    memcpy(kept->command, peer->command, strnlen(peer->command, sizeof peer->command));
    for (unsigned i = 0; i < kept->n_groups; i++)
        kept->groups[i] = peer->groups[i];
}

static void write_mapped(const void *object, void *payload) {
    const struct segment_bits *bits = object;

    *(struct kept_mapped *)payload = (struct kept_mapped){
        .session = bits->session->record, .word = bits->word, .mapped = bits->mapped, .told = bits->told};
}

static void write_block(const void *object, void *payload) {
    const struct block *block = object;
    struct kept_block *kept = payload;

    *kept = (struct kept_block){
        .offset_bytes = block->offset_bytes,
        .size_bytes = block->size_bytes,
        .capacity_bytes = block->capacity_bytes,
        .segment = block->segment->record,
        .is_row = block->is_row,
        .is_shared = block->shared,
    };
    if (block->shared)
        memcpy(kept->token, block->token.bytes, sizeof kept->token);
}

static void write_range(const void *object, void *payload) {
    const struct heap_range *range = object;
    const struct block *block = range->user;
    const struct segment *segment = range->span->user;
    const struct list *previous = range->user_link.previous;
    bool has_previous = block->is_row && previous != &block->ranges;

    *(struct kept_range *)payload = (struct kept_range){
        .block = block->record,
        .segment = segment->record,
        .previous = has_previous ? container_of(previous, struct heap_range, user_link)->record : 0,
        .offset_bytes = range->offset,
        .size_bytes = range->size,
    };
}

static void write_lease(const void *object, void *payload) {
    const struct lease *lease = object;
    struct kept_lease *kept = payload;

    *kept = (struct kept_lease){
        .session = lease->session->record,
        .block = lease->block->record,
        .id = lease->id,
        .generation = lease->generation,
        .taken_ns = lease->taken_ns,
        .withheld_bytes = lease->withheld_bytes,
        .is_unanswered = lease->unanswered,
        .is_withheld_by_fences = lease->is_withheld_by_fences,
        .is_on_board = lease->is_on_board,
        .board_fence = lease->board_fence,
    };
    if (lease->fence != NULL) {
        kept->fence_word = lease->fence->word + 1;
        kept->fence_value = lease->fence_value;
    }
}

static void write_fences(const void *object, void *payload) {
    const struct fence_queue *queue = object;

    *(struct kept_fences *)payload = (struct kept_fences){
        .session = queue->session->record,
        .pool = queue->heap->pool->id,
        .word = queue->word,
        .withholds = queue->withholds,
        .withheld_value = queue->withholds ? queue->withheld_value : 0,
    };
}

static void write_parcel(const void *object, void *payload) {
    const struct parcel *parcel = object;
    struct kept_parcel *kept = payload;

    *kept = (struct kept_parcel){
        .block = parcel->block->record,
        .takers = parcel->takers,
        .sent_ns = parcel->sent_ns,
        .lifetime_ns = parcel->lifetime_ns,
        .deadline_ns = parcel->deadline_ns,
        .sender = parcel->sender,
        .pid = parcel->pid,
    };
    memcpy(kept->token, parcel->token.bytes, sizeof kept->token);
}

static void write_request(const void *object, void *payload) {
    const struct request *request = object;

    *(struct kept_request *)payload = (struct kept_request){
        .session = request->session->record,
        .pool = request->pool != NULL ? request->pool->id : 0,
        .lease = request->state == REQUEST_GRANTED ? request->lease->record : 0,
        .n_segments = request->n_segments,
        .probes = request->probes,
        .passes = request->passes,
        .quota_item = request->quota_item,
        .state = (uint8_t)request->state,
        .error = request->state == REQUEST_REFUSED ? (uint8_t)request->error : 0,
        .queue = (uint8_t)request->queue,
        .no_reclaim = request->no_reclaim,
        .idle_only = request->idle_only,
        .gave_back = request->gave_back,
        .waited = request->waited,
        .is_told = request->is_told,
        .id = request->id,
        .number = request->number,
        .size_bytes = request->size_bytes,
        .least_bytes = request->least_bytes,
        .segment_bytes = request->segment_bytes,
        .asked_ns = request->asked_ns,
        .deadline_ns = request->deadline_ns,
    };
}

static void write_name(const void *object, void *payload) {
    const struct name *name = object;
    struct kept_name *kept = payload;

    *kept = (struct kept_name){
        .tenant = {name->tenant->id.uid, name->tenant->id.scope},
        .id = name->id,
        .builder = name->builder != NULL ? name->builder->record : 0,
    };
    memcpy(kept->text, name->text, sizeof kept->text);
}

static void write_edition(const void *object, void *payload) {
    const struct edition *edition = object;

    *(struct kept_edition *)payload = (struct kept_edition){
        .generation = edition->generation,
        .layout = edition->layout,
        .publisher = edition->publisher,
        .published_ns = edition->published_ns,
        .name = edition->name->record,
        .flags = edition->flags,
        .n_parcels = edition->n_parcels,
        .directory_bytes = edition->directory_bytes,
        .pid = edition->pid,
        .session = edition->session != NULL ? edition->session->record : 0,
    };
}

static void write_named(const void *object, void *payload) {
    const struct parcel *parcel = object;
    const struct edition *edition = parcel->edition;
    struct kept_named *kept = payload;

    *kept = (struct kept_named){
        .edition = edition->record,
        .block = parcel->block->record,
        .has_fence = parcel->has_fence,
        .fence = parcel->fence,
    };
    while (edition->parcels[kept->number] != parcel)
        kept->number++;
    memcpy(kept->token, parcel->token.bytes, sizeof kept->token);
}

static void write_directory(const void *object, void *payload) {
    const struct directory_part *part = object;
    const struct edition *edition = part->edition;
    struct kept_directory *kept = payload;
    uint32_t left = edition->directory_bytes - part->offset_bytes;

    *kept = (struct kept_directory){.edition = edition->record, .offset_bytes = part->offset_bytes};
    memcpy(kept->bytes, edition->directory + part->offset_bytes,
           left < KEPT_DIRECTORY_BYTES ? left : KEPT_DIRECTORY_BYTES);
}

static void write_channel(const void *object, void *payload) {
    const struct channel *channel = object;
    const struct proto_channel_capacities *capacities = &channel->capacities;
    struct kept_channel *kept = payload;

    *kept = (struct kept_channel){
        .tenant = {channel->tenant->id.uid, channel->tenant->id.scope},
        .id = channel->id,
        .slot_bytes = capacities->slot_bytes,
        .n_slots = capacities->n_slots,
        .metadata_bytes = capacities->metadata_bytes,
        .n_consumers = capacities->n_consumers,
        .policy = capacities->policy,
        .maker = channel->maker,
        .name = channel->name != NULL ? channel->name->record : 0,
        .block = channel->parcel->block->record,
        .flags = channel->flags,
        .session = channel->session != NULL ? channel->session->record : 0,
    };
    memcpy(kept->token, channel->parcel->token.bytes, sizeof kept->token);
    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES; i++) {
        const struct channel_place *place = &channel->places[i];
        kept->places[i] = (struct kept_place){
            .last_session = place->last_session,
            .session = place->session != NULL ? place->session->record : 0,
            .state = place->state,
            .queue = place->queue,
            .processes = place->processes,
        };
    }
}

static void write_name_wait(const void *object, void *payload) {
    const struct name_wait *wait = object;

    *(struct kept_name_wait *)payload = (struct kept_name_wait){
        .session = wait->session->record,
        .name = wait->name->record,
        .flags = wait->flags,
        .place = wait->place,
        .got = wait->got,
        .state = (uint8_t)wait->state,
        .error = (uint8_t)wait->error,
        .id = wait->id,
        .number = wait->number,
        .generation = wait->generation,
        .deadline_ns = wait->deadline_ns,
    };
}

static void write_numbers(const void *object, void *payload) {
    const struct core *core = object;

    *(struct kept_numbers *)payload = (struct kept_numbers){
        .session = core->next_session_id,
        .segment = core->next_segment_id,
        .request = core->next_request_number,
        .generation = core->leases.next_generation,
    };
}

uint32_t kept_group(struct tenant_id id) {
    uint64_t number = ((uint64_t)id.scope << 32 | id.uid) + 1;

    number *= UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(number >> 32) | 1;
}

static uint32_t group_of(const struct tenant *tenant) {
    return kept_group(tenant->id);
}

static uint32_t group_of_segment(const void *object) {
    const struct segment *segment = object;

    if (segment->state == SEGMENT_CLOSING)
        return group_of(container_of(segment->charge.quota, struct tenant, quota));
    return segment->owner != NULL ? group_of(segment->owner->tenant) : 0;
}

static uint32_t group_of_session(const void *object) {
    return group_of(((const struct session *)object)->tenant);
}

static uint32_t group_of_mapped(const void *object) {
    return group_of_session(((const struct segment_bits *)object)->session);
}

static uint32_t group_of_block(const void *object) {
    return group_of_segment(((const struct block *)object)->segment);
}

static uint32_t group_of_range(const void *object) {
    return group_of_block(((const struct heap_range *)object)->user);
}

static uint32_t group_of_lease(const void *object) {
    return group_of_session(((const struct lease *)object)->session);
}

static uint32_t group_of_fences(const void *object) {
    return group_of_session(((const struct fence_queue *)object)->session);
}

static uint32_t group_of_parcel(const void *object) {
    return group_of_block(((const struct parcel *)object)->block);
}

static uint32_t group_of_request(const void *object) {
    return group_of_session(((const struct request *)object)->session);
}

static uint32_t group_of_name(const void *object) {
    return group_of(((const struct name *)object)->tenant);
}

static uint32_t group_of_edition(const void *object) {
    return group_of_name(((const struct edition *)object)->name);
}

static uint32_t group_of_named(const void *object) {
    return group_of_edition(((const struct parcel *)object)->edition);
}

static uint32_t group_of_directory(const void *object) {
    return group_of_edition(((const struct directory_part *)object)->edition);
}

static uint32_t group_of_channel(const void *object) {
    return group_of(((const struct channel *)object)->tenant);
}

static uint32_t group_of_name_wait(const void *object) {
    return group_of_session(((const struct name_wait *)object)->session);
}

/* The numbers of the core are missed where they are lost. */
static uint32_t group_of_numbers(const void *object) {
    (void)object;
    return 0;
}

#define KIND(name)                                                                                           \
    {                                                                                                        \
        .size_bytes = sizeof(struct kept_##name), .holds = true, .write = write_##name,                      \
        .group = group_of_##name                                                                             \
    }

const struct estate_kind kept_kinds[KEPT_KINDS] = {
    [KEPT_SEGMENT] = KIND(segment), [KEPT_SESSION] = KIND(session),     [KEPT_MAPPED] = KIND(mapped),
    [KEPT_BLOCK] = KIND(block),     [KEPT_RANGE] = KIND(range),         [KEPT_LEASE] = KIND(lease),
    [KEPT_FENCES] = KIND(fences),   [KEPT_PARCEL] = KIND(parcel),       [KEPT_REQUEST] = KIND(request),
    [KEPT_NUMBERS] = KIND(numbers), [KEPT_NAME] = KIND(name),           [KEPT_EDITION] = KIND(edition),
    [KEPT_NAMED] = KIND(named),     [KEPT_DIRECTORY] = KIND(directory), [KEPT_NAME_WAIT] = KIND(name_wait),
    [KEPT_CHANNEL] = KIND(channel),
};

#define IS_WHOLE(type) _Static_assert(sizeof(struct type) % 8 == 0, "a payload is whole words")
IS_WHOLE(kept_segment);
IS_WHOLE(kept_session);
IS_WHOLE(kept_mapped);
IS_WHOLE(kept_block);
IS_WHOLE(kept_range);
IS_WHOLE(kept_lease);
IS_WHOLE(kept_fences);
IS_WHOLE(kept_parcel);
IS_WHOLE(kept_request);
IS_WHOLE(kept_numbers);
IS_WHOLE(kept_name);
IS_WHOLE(kept_edition);
IS_WHOLE(kept_named);
IS_WHOLE(kept_directory);
IS_WHOLE(kept_name_wait);
IS_WHOLE(kept_channel);
