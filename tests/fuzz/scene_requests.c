/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/scene.h"

#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/units.h"

/* Returns the name of a lease: mostly one that the client has, or of another client, or one that no client
 * has. */
static struct proto_lease_name choose_name(struct input *input, const struct puppet *client,
                                           unsigned *ret_index) {
    unsigned choice = input_below(input, 256);
    const struct puppet *other = choice < 224 ? client : &scene.clients[choice % CLIENTS];

    *ret_index = other->n_names > 0 ? choice % other->n_names : 0;
    if (choice < 248 && other->n_names > 0)
        return other->names[*ret_index];
    struct proto_lease_name name = {.lease = input_edgy(input)};
    name.generation = input_edgy(input);
    return name;
}

static void choose_part(struct input *input, struct proto_release *part, uint64_t capacity_bytes) {
    if (input_below(input, 4) == 0) {
        part->offset_bytes = input_edgy(input);
        part->size_bytes = input_edgy(input);
    } else {
        part->offset_bytes = input_number(input, 1) * 512;
        part->size_bytes = input_number(input, 1) * 512;
        if (input_below(input, 4) == 0 && capacity_bytes > part->offset_bytes)
            part->size_bytes = capacity_bytes - part->offset_bytes;
    }
}

static void choose_release(struct input *input, const struct puppet *client, struct proto_message *message) {
    struct proto_release *release = &message->release;
    unsigned index, flags = input_below(input, 256);
    struct proto_lease_name name = choose_name(input, client, &index);

    *release = (struct proto_release){.lease = name.lease, .generation = name.generation};
    if (message->header.operation == PROTO_SPLIT || (flags & 1) != 0)
        choose_part(input, release, client->capacities[index]);
    if (message->header.operation == PROTO_RELEASE && (flags & 2) != 0) {
        release->fence = 1 + (flags & 4 ? (uint32_t)input_edgy(input) : input_below(input, 4));
        release->fence_value = flags & 8 ? input_edgy(input) : input_number(input, 1) % 8;
    }
    if (message->header.operation == PROTO_RELEASE && (flags & 16) != 0)
        message->header.request = 0;
    if (message->header.operation == PROTO_RELEASE && (flags & 32) != 0)
        release->board_word = flags / 64 * 21; /* 0 to 63, or beside a part */
}

static void choose_share(struct input *input, struct puppet *client, struct proto_message *message) {
    unsigned index;
    struct proto_lease_name name = choose_name(input, client, &index);
    struct proto_release part = {0};
    if (input_below(input, 2) == 0)
        choose_part(input, &part, client->capacities[index]);
    message->share = (struct proto_share){name.lease, name.generation, part.offset_bytes, part.size_bytes,
                                          input_edgy(input)};
}

/* One of a few names; rarely one that is none. Returns what the caller may choose by. */
static unsigned choose_text(struct input *input, char text[static PROTO_NAME_TEXT_SIZE]) {
    unsigned choice = input_below(input, 256);

    text[0] = choice == 255 ? '\n' : (char)('a' + choice % 3);
    return choice;
}

static void choose_publish(struct input *input, const struct puppet *client, struct proto_publish *publish) {
    unsigned choice = choose_text(input, publish->name), index;

    publish->flags = choice / 4 % 8;
    publish->count = 1 + choice / 32 % 3;
    publish->layout = choice % 2;
    publish->directory_bytes = input_below(input, 3) * 8;
    for (uint32_t i = 0; i < publish->count; i++) {
        struct proto_lease_name name = choose_name(input, client, &index);
        unsigned fence = input_below(input, 8);
        publish->buffers[i] =
            (struct proto_publish_buffer){.lease = name.lease, .generation = name.generation};
        publish->buffers[i].size_bytes = fence == 7 ? input_edgy(input) : 1 + client->capacities[index] / 2;
        publish->buffers[i].has_fence = fence >= 4;
        publish->buffers[i].fence.slot = fence >= 4 ? fence % 4 : 0;
        publish->buffers[i].fence.word = fence >= 4;
    }
}

void puppet_send_request(struct input *input) {
    static const uint8_t operations[] = {
        PROTO_ACQUIRE,      PROTO_RELEASE,      PROTO_ACQUIRE,         PROTO_RELEASE,
        PROTO_SHARE,        PROTO_ATTACH,       PROTO_QUERY,           PROTO_OPENED,
        PROTO_SPLIT,        PROTO_MERGE,        PROTO_ASK_PAGE,        PROTO_BYE,
        PROTO_LIST_POOLS,   PROTO_HELLO,        PROTO_OPENED,          PROTO_IDLE,
        PROTO_CLOSED,       PROTO_ASK_PARTS,    PROTO_DESCRIBE,        PROTO_ACQUIRE_SEGMENTS,
        PROTO_OFFER,        PROTO_ASK_BOARD,    PROTO_RELEASE,         PROTO_ASK_HOLDERS,
        PROTO_SEND,         PROTO_REVOKE,       PROTO_CANCEL,          PROTO_RECLAIMED,
        PROTO_NAME,         PROTO_ASK_ALIVE,    PROTO_WRITE_DIRECTORY, PROTO_PUBLISH,
        PROTO_UNPUBLISH,    PROTO_OPEN_NAME,    PROTO_READ_DIRECTORY,  PROTO_LIST_NAMES,
        PROTO_MAKE_CHANNEL, PROTO_JOIN_CHANNEL, PROTO_LEAVE_CHANNEL,   PROTO_ASK_CHANNEL_MEMORY};
    static const uint64_t timeouts[] = {0, NS_FOREVER, NS_PER_MS, NS_PER_S};
    struct puppet *client = scene_choose_client(input);
    struct proto_message *message = &scene.message;
    unsigned index, choice;

    /* Initialisers read the input in no certain order, so that nothing is read in them. */
    memset(message, 0, offsetof(struct proto_message, hello) + sizeof(struct proto_publish));
    message->header.operation = operations[input_below(input, sizeof operations)];
    message->header.request = ++client->last_request;
    switch (message->header.operation) {
    case PROTO_HELLO:
        message->hello = (struct proto_hello){.magic = PROTO_MAGIC, .version_max = 4};
        message->hello.version_min = 1 + (uint16_t)input_below(input, 4); /* 4: a newer one */
        message->hello.flags = input_below(input, 9);
        break;
    case PROTO_ACQUIRE:
        message->acquire.pool =
            input_below(input, 8) == 7 ? (uint32_t)input_edgy(input) : 1 + input_below(input, 2);
        message->acquire.size_bytes = input_edgy(input);
        choice = input_below(input, 8);
        message->acquire.timeout_ns = timeouts[choice % 4];
        message->acquire.flags = choice == 4 || choice == 5 ? PROTO_ACQUIRE_NO_RECLAIM : 0;
        message->acquire.least_bytes =
            choice >= 4 ? message->acquire.size_bytes >> 2 * input_below(input, 4) : 0;
        break;
    case PROTO_ACQUIRE_SEGMENTS:
        choice = input_below(input, 64);
        message->acquire_segments.pool = 1 + choice % 3;
        message->acquire_segments.timeout_ns = timeouts[choice / 4 % 4];
        message->acquire_segments.flags = choice / 16;
        message->acquire_segments.count = 1 + input_below(input, 80);
        message->acquire_segments.segment_bytes = input_below(input, 8) == 7 ? input_edgy(input) : 2 * MIB;
        break;
    case PROTO_OFFER:
        choice = input_below(input, 256);
        message->offer.pool = 1 + choice % 3;
        message->offer.count = 1 + choice % (PROTO_CLOSE_MAX + 1);
        for (uint32_t i = 0; i < message->offer.count && i < PROTO_CLOSE_MAX; i++)
            message->offer.ids[i] = 1 + choice / 64 + i;
        break;
    case PROTO_ASK_HOLDERS:
        message->ask_holders = choose_name(input, client, &index);
        break;
    case PROTO_CANCEL: /* mostly one that may wait */
        message->header.request = 0;
        choice = input_below(input, 256);
        message->cancel.request = choice == 255 ? input_edgy(input) : client->last_request - choice % 8;
        break;
    case PROTO_RECLAIMED: /* mostly one that it could send */
        message->header.request = 0;
        choice = input_below(input, 256);
        message->reclaimed.pool = 1 + choice % 3;
        message->reclaimed.outcome = choice / 3 % (PROTO_RECLAIM_PENDING + 2);
        message->reclaimed.asked = choice >= 240 ? input_edgy(input) : choice / 24 % 4;
        message->reclaimed.kept_bytes = choice % 2 == 0 ? 0 : input_edgy(input);
        break;
    case PROTO_NAME: /* mostly a good one */
        message->header.request = 0;
        choice = input_below(input, 256);
        memset(message->name.name, 'a', choice % PROTO_PROCESS_NAME_SIZE);
        message->name.name[choice % 4] = choice >= 240 ? (char)choice : 'b';
        break;
    case PROTO_IDLE:
        choice = input_below(input, 6);
        message->idle.pool = 1 + choice % 3;
        message->idle.flags = choice >= 3 ? PROTO_IDLE_BUSY : 0;
        message->idle.size_bytes = input_edgy(input);
        break;
    case PROTO_CLOSED:
        message->closed.segment = input_below(input, 4) == 3 ? input_edgy(input) : client->closable;
        message->closed.time_ns = message->closed.segment; /* also more than any time */
        break;
    case PROTO_RELEASE:
    case PROTO_SPLIT:
        choose_release(input, client, message);
        break;
    case PROTO_MERGE: {
        struct proto_lease_name one = choose_name(input, client, &index),
                                two = choose_name(input, client, &index);
        message->merge = (struct proto_merge){one.lease, one.generation, two.lease, two.generation};
        if (message->header.request % 2 == 0)
            message->header.request = 0; /* without an answer; a wrong one ends the session */
        break;
    }
    case PROTO_SHARE:
        choose_share(input, client, message);
        break;
    case PROTO_SEND:
        choose_share(input, client, message); /* begins with the same fields */
        message->send.lifetime_ns = input_edgy(input) % (PROTO_PARCEL_NS_MAX + 1);
        message->send.takers = input_below(input, 4);
        break;
    case PROTO_REVOKE:
    case PROTO_ATTACH:
        index = input_below(input, 256);
        if (scene.n_tokens > 0)
            message->attach = scene.tokens[index % scene.n_tokens];
        if (index >= 240)
            message->attach.bytes[index % PROTO_TOKEN_BYTES] ^= 1;
        break;
    case PROTO_QUERY:
        message->query = choose_name(input, client, &index);
        break;
    case PROTO_ASK_PARTS:
    case PROTO_DESCRIBE: {
        struct proto_lease_name name = choose_name(input, client, &index);
        message->describe =
            (struct proto_part_name){.lease = name.lease, .generation = name.generation, .part = index};
        break;
    }
    case PROTO_OPENED:
        message->header.request = 0;
        message->opened.segment = input_below(input, 8) == 7 ? input_edgy(input) : client->unopened;
        break;
    case PROTO_WRITE_DIRECTORY:
        choice = input_below(input, 256);
        message->write_directory.offset_bytes = choice < 128   ? 0
                                                : choice < 240 ? 8
                                                               : (uint32_t)input_edgy(input);
        message->write_directory.n_bytes = choice % 8 == 7 ? 7 : 8; /* 8 follow */
        break;
    case PROTO_PUBLISH:
        choose_publish(input, client, &message->publish);
        break;
    case PROTO_UNPUBLISH:
        choice = choose_text(input, message->unpublish.name);
        message->unpublish.flags = choice / 64 % 2;
        message->unpublish.generation = choice >= 240 ? input_edgy(input) : 0;
        break;
    case PROTO_OPEN_NAME:
        choice = choose_text(input, message->open_name.name);
        message->open_name.flags = choice / 4 % 4;
        message->open_name.timeout_ns = timeouts[choice / 16 % 4];
        message->open_name.generation = choice >= 240 ? input_edgy(input) : scene.generation;
        break;
    case PROTO_READ_DIRECTORY:
        choice = choose_text(input, message->read_directory.name);
        message->read_directory.generation = choice >= 240 ? input_edgy(input) : scene.generation;
        message->read_directory.offset_bytes = choice / 4 % 16;
        break;
    case PROTO_MAKE_CHANNEL: {
        struct proto_lease_name name = choose_name(input, client, &index);
        choice = choose_text(input, message->make_channel.name);
        message->make_channel.lease = name.lease;
        message->make_channel.generation = name.generation;
        message->make_channel.slot_bytes = choice >= 240 ? input_edgy(input) : 512;
        message->make_channel.n_slots = 2 + choice / 4 % 3;
        message->make_channel.metadata_bytes = choice % 8;
        message->make_channel.n_consumers = 1 + choice / 16 % 3;
        message->make_channel.policy = 1 + choice / 8 % 3;
        message->make_channel.flags = choice / 32 % 2;
        break;
    }
    case PROTO_JOIN_CHANNEL:
        choice = choose_text(input, message->join_channel.name);
        message->join_channel.timeout_ns = timeouts[choice / 16 % 4];
        message->join_channel.place = choice / 4 % 4 == 3 ? PROTO_CHANNEL_ANY_CONSUMER : choice / 4 % 4;
        break;
    case PROTO_LEAVE_CHANNEL:
    case PROTO_ASK_CHANNEL_MEMORY:
        choice = input_below(input, 256);
        message->leave_channel.channel = choice >= 240 ? input_edgy(input) : scene.channel;
        message->leave_channel.page = choice % 4;
        break;
    case PROTO_LIST_NAMES:
        message->list_names.after = input_below(input, 2) == 0 ? 0 : input_edgy(input);
        break;
    default:
        break;
    }
    /* Encoded here: the encoder asserts that what it makes is right, and this need not be. */
    static const uint16_t sizes[] = {[PROTO_HELLO] = sizeof(struct proto_hello),
                                     [PROTO_ACQUIRE] = sizeof(struct proto_acquire),
                                     [PROTO_RELEASE] = sizeof(struct proto_release),
                                     [PROTO_SPLIT] = sizeof(struct proto_release),
                                     [PROTO_MERGE] = sizeof(struct proto_merge),
                                     [PROTO_SHARE] = sizeof(struct proto_share),
                                     [PROTO_ATTACH] = sizeof(struct proto_token),
                                     [PROTO_QUERY] = sizeof(struct proto_lease_name),
                                     [PROTO_OPENED] = sizeof(struct proto_opened),
                                     [PROTO_IDLE] = sizeof(struct proto_idle),
                                     [PROTO_CLOSED] = sizeof(struct proto_closed),
                                     [PROTO_ASK_PARTS] = sizeof(struct proto_part_name),
                                     [PROTO_DESCRIBE] = sizeof(struct proto_part_name),
                                     [PROTO_ACQUIRE_SEGMENTS] = sizeof(struct proto_acquire_segments),
                                     [PROTO_OFFER] = sizeof(struct proto_offer),
                                     [PROTO_ASK_BOARD] = 0,
                                     [PROTO_ASK_HOLDERS] = sizeof(struct proto_lease_name),
                                     [PROTO_SEND] = sizeof(struct proto_send),
                                     [PROTO_REVOKE] = sizeof(struct proto_token),
                                     [PROTO_CANCEL] = sizeof(struct proto_cancel),
                                     [PROTO_RECLAIMED] = sizeof(struct proto_reclaimed),
                                     [PROTO_NAME] = sizeof(struct proto_name),
                                     [PROTO_ASK_ALIVE] = 0,
                                     [PROTO_WRITE_DIRECTORY] =
                                         offsetof(struct proto_directory_part, bytes) + 8,
                                     [PROTO_PUBLISH] = sizeof(struct proto_publish),
                                     [PROTO_UNPUBLISH] = sizeof(struct proto_unpublish),
                                     [PROTO_OPEN_NAME] = sizeof(struct proto_open_name),
                                     [PROTO_READ_DIRECTORY] = sizeof(struct proto_read_directory),
                                     [PROTO_LIST_NAMES] = sizeof(struct proto_list_names),
                                     [PROTO_MAKE_CHANNEL] = sizeof(struct proto_make_channel),
                                     [PROTO_JOIN_CHANNEL] = sizeof(struct proto_join_channel),
                                     [PROTO_LEAVE_CHANNEL] = sizeof(struct proto_channel_page_name),
                                     [PROTO_ASK_CHANNEL_MEMORY] = sizeof(struct proto_channel_page_name)};
    size_t size = sizeof message->header + sizes[message->header.operation];
    message->header.length = (uint32_t)size;
    uint8_t packet[sizeof message->header + sizeof(struct proto_publish)];
    memcpy(packet, message, size);
    puppet_send(client, packet, size, 0);
}

void puppet_send_bytes(struct input *input) {
    struct puppet *client = scene_choose_client(input);
    unsigned flags = input_below(input, 256);
    size_t size = input_number(input, 1);
    uint8_t packet[sizeof(struct proto_header) + UINT8_MAX];
    struct proto_header header = {.operation = (uint16_t)(flags / 8 % 16), .request = ++client->last_request};
    const uint8_t *bytes = input_bytes(input, &size);

    if ((flags & 1) != 0) {
        size_t used = 0;
        header.length = (uint32_t)(sizeof header + size);
        memcpy(packet, &header, sizeof header);
        used += sizeof header;
        memcpy(packet + used, bytes, size);
        puppet_send(client, packet, used + size, flags >> 1 & 3);
    } else if (size > 0) {
        puppet_send(client, bytes, size, flags >> 1 & 3);
    }
}
