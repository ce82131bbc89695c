/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/kept_data.h"

#include <string.h>

#include "daemon/core/kept.h"
#include "daemon/core/pool.h"
#include "daemon/data/channels.h"
#include "daemon/data/client.h"
#include "daemon/supply/supplier.h"

static void write_process(const struct client *client, struct kept_process *kept) {
    const struct watched *watched = &client->watched;
    const struct process_origin *origin = &watched->origin;

    *kept = (struct kept_process){
        .start_ticks = origin->start_ticks,
        .no_gpu = client->no_gpu,
        .driver_lent = client->driver_lent,
        .seen = watched->facts.seen,
        .under_mps = watched->facts.under_mps,
        .socket_over = watched->facts.socket_over,
        .process_over = watched->facts.process_over,
        .has_origin = watched->has_origin,
        .is_complete = origin->is_complete,
        .too_late = watched->too_late,
        .n_ancestors = (uint8_t)origin->n_ancestors,
        .has_page = client->page.memory != NULL,
    };
    for (unsigned i = 0; i < origin->n_ancestors; i++) {
        kept->ancestors[i].pid = origin->ancestors[i].pid;
        kept->ancestors[i].start_ticks = origin->ancestors[i].start_ticks;
    }
}

static void write_client(const void *object, void *payload) {
    const struct client *client = object;
    struct kept_client *kept = payload;

    *kept = (struct kept_client){
        .session = client->session != NULL ? client->session->id : 0,
        .socket = kept_stored(client->stored.socket),
        .process = kept_stored(client->stored.process),
        .page = kept_stored(client->stored.page),
        .reclaim = kept_stored(client->stored.reclaim),
        .awaited_segment = client->connection.outbox.awaited_segment,
        .scope = client->scope,
        .version = client->version,
    };
    write_process(client, &kept->dead);
}

static void write_reply(const void *object, void *payload) {
    const struct outbox_part *part = object;
    const struct outbox_reply *reply = part->reply;
    struct kept_reply *kept = payload;
    size_t left = reply->size - part->offset_bytes;

    *kept = (struct kept_reply){
        .session = reply->session,
        .number = reply->number,
        .size_bytes = (uint32_t)reply->size,
        .offset_bytes = part->offset_bytes,
        .is_in_doubt = reply->is_in_doubt,
    };
    memcpy(kept->bytes, reply->packet + part->offset_bytes,
           left < KEPT_REPLY_BYTES ? left : KEPT_REPLY_BYTES);
}

static void write_board(const void *object, void *payload) {
    const struct board *board = object;

    *(struct kept_board *)payload = (struct kept_board){
        .uid = board->tenant.uid, .scope = board->tenant.scope, .stored = kept_stored(board->stored)};
}

static void write_board_slot(const void *object, void *payload) {
    const struct board_slot *slot = object;

    *(struct kept_board_slot *)payload = (struct kept_board_slot){
        .board = slot->board->record, .slot = slot->number, .state = slot->state, .epoch = slot->epoch};
}

static void write_pool(const void *object, void *payload) {
    const struct pool *pool = object;
    const struct supplier *supplier = pool->owner;
    struct kept_pool *kept = payload;

    *kept = (struct kept_pool){.id = pool->id,
                               .kind = pool->kind,
                               .numa_node = pool->numa_node,
                               .segment_kind = supplier->segment_kind};
    memcpy(kept->uuid, pool->uuid, sizeof kept->uuid);
}

static void write_channel_pages(const void *object, void *payload) {
    const struct channel_pages *pages = object;
    struct kept_channel_pages *kept = payload;

    *kept = (struct kept_channel_pages){.channel = pages->channel};
    for (unsigned i = 0; i < CHANNEL_PAGES_MAX; i++)
        kept->pages[i] = kept_stored(pages->pages[i].stored);
}

static uint32_t group_of_client(const void *object) {
    return kept_group(peer_tenant(&((const struct client *)object)->peer));
}

/* Pages are lost alone: their channel ends. */
static uint32_t group_of_pages(const void *object) {
    (void)object;
    return 0;
}

/* A message is lost alone. */
static uint32_t group_of_reply(const void *object) {
    (void)object;
    return 0;
}

static uint32_t group_of_board(const void *object) {
    return kept_group(((const struct board *)object)->tenant);
}

static uint32_t group_of_board_slot(const void *object) {
    return group_of_board(((const struct board_slot *)object)->board);
}

#define KIND(name, its_group)                                                                                \
    (struct estate_kind) {                                                                                   \
        .size_bytes = sizeof(struct kept_##name), .holds = true, .write = write_##name, .group = (its_group) \
    }

_Static_assert(sizeof(struct kept_client) % 8 == 0 && sizeof(struct kept_reply) % 8 == 0 &&
                   sizeof(struct kept_board) % 8 == 0 && sizeof(struct kept_board_slot) % 8 == 0 &&
                   sizeof(struct kept_pool) % 8 == 0 && sizeof(struct kept_channel_pages) % 8 == 0,
               "a payload is whole words");
_Static_assert(KEPT_ANCESTORS == PROCESSES_ANCESTORS_MAX, "all ancestors are kept");
_Static_assert(KEPT_DATA_KINDS <= ESTATE_KINDS_MAX, "the estate has so many kinds");

void kept_data_kinds(struct estate_kind *kinds) {
    kinds[KEPT_CLIENT] = KIND(client, group_of_client);
    kinds[KEPT_REPLY] = KIND(reply, group_of_reply);
    kinds[KEPT_BOARD] = KIND(board, group_of_board);
    kinds[KEPT_BOARD_SLOT] = KIND(board_slot, group_of_board_slot);
    kinds[KEPT_POOL] = KIND(pool, NULL);
    kinds[KEPT_CHANNEL_PAGES] = KIND(channel_pages, group_of_pages);
}
