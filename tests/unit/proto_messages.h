/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PROTO_MESSAGES_H
#define TESTS_UNIT_PROTO_MESSAGES_H
/* Valid messages of the wire format, made at random from a seed, and what the tests of the format share. */
#include <errno.h>

#include "proto/channel.h"
#include "proto/proto.h"
#include "tests/random.h"
#include "tests/unit/unit.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define SEGMENT_STEP  (UINT64_C(2) << 20)

#define PROTO_MESSAGE(name, number, sender, request, reply, descriptors, member, type) PROTO_##name,
static const uint16_t operations[] = {
#include "proto/messages.def"
};

static inline bool is_one_way(uint16_t operation) {
    return operation == PROTO_OPENED || operation == PROTO_CANCEL || operation == PROTO_RECLAIMED ||
           operation == PROTO_NAME;
}

static inline enum proto_sender sender_of(uint16_t operation) {
    return operation < PROTO_HELLO_REPLY ? PROTO_FROM_CLIENT : PROTO_FROM_DAEMON;
}

static inline enum proto_sender other(enum proto_sender sender) {
    return sender == PROTO_FROM_CLIENT ? PROTO_FROM_DAEMON : PROTO_FROM_CLIENT;
}

static uint64_t random_state;

static inline uint64_t random64(void) {
    return random_next(&random_state);
}

/* 0…bound, both included. */
static inline uint64_t random_to(uint64_t bound) {
    return bound == UINT64_MAX ? random64() : random64() % (bound + 1);
}

/* Of all magnitudes alike, 1…bound. */
static inline uint64_t random_size(uint64_t bound) {
    uint64_t size = random64() >> random_to(63);
    return size == 0 ? 1 : size > bound ? bound : size;
}

static inline void random_bytes(void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)random64();
}

static inline void random_share(struct proto_share *ret_share) {
    *ret_share = (struct proto_share){.lease = random64(), .generation = random64()};
    ret_share->size_bytes = random_size(PROTO_SIZE_MAX);
    if (random_to(1)) {
        ret_share->part_bytes = random_size(PROTO_SIZE_MAX);
        ret_share->offset_bytes = random_to(PROTO_SIZE_MAX - ret_share->part_bytes);
    }
}

/* At most size bytes of printable text, with the characters at the edges of UTF-8's ranges. Returns its
 * length. */
static inline size_t random_text(char *text, size_t size) {
    static const char *const characters[] = {
        " ",
        "~",
        "A",
        "9",
        "\xc2\xa0",
        "\xdf\xbf",
        "\xe0\xa0\x80",
        "\xed\x9f\xbf",
        "\xee\x80\x80",
        "\xef\xbf\xbd",
        "\xf0\x90\x80\x80",
        "\xf4\x8f\xbf\xbf",
        "\xc3\xa4",
        "\xe2\x80\xa6",
    };
    size_t wanted = random_to(size), length = 0;
    for (;;) {
        const char *character = characters[random_to(LENGTH(characters) - 1)];
        size_t bytes = strlen(character);
        if (length + bytes > wanted)
            return length;
        memcpy(text + length, character, bytes);
        length += bytes;
    }
}

static inline void random_pool(struct proto_pool *pool) {
    pool->id = (uint32_t)random_size(UINT32_MAX);
    pool->kind = random_to(1) ? PROTO_POOL_DEVICE : PROTO_POOL_HOST;
    pool->flags = (uint16_t)random_to(1);
    pool->device = pool->kind == PROTO_POOL_DEVICE ? (int32_t)random_to(INT32_MAX) : -1;
    pool->numa_node = (int32_t)random_to(8) - 1;
    if (pool->kind == PROTO_POOL_DEVICE)
        random_bytes(pool->uuid, sizeof pool->uuid);
    pool->limit_bytes = random_to(UINT64_MAX);
    pool->reserved_bytes = random_size(PROTO_SIZE_MAX);
    pool->leased_bytes = random_to(PROTO_SIZE_MAX);
    pool->free_bytes = random_size(PROTO_SIZE_MAX);
    pool->quarantined_bytes = random_size(PROTO_SIZE_MAX);
    pool->largest_free_bytes = random_size(PROTO_SIZE_MAX);
    random_text(pool->name, sizeof pool->name - 1);
}

static inline void random_lease(struct proto_lease *lease) {
    lease->lease = random64();
    lease->generation = random64();
    lease->segment = random_size(UINT64_MAX);
    lease->pool = (uint32_t)random_size(UINT32_MAX);
    lease->capacity_bytes = random_size(PROTO_SIZE_MAX / 1024) * 512;
    lease->offset_bytes = random_to(PROTO_SIZE_MAX / 1024 - 1) * 512;
    lease->size_bytes = lease->capacity_bytes - random_to(511);
    lease->parts = random_to(3) == 0 ? 1 + (uint32_t)random_size(PROTO_ROW_PARTS_MAX - 1) : 0;
    if (random_to(2) == 0)
        return;
    struct proto_segment *segment = &lease->description;
    segment->id = lease->segment;
    segment->pool = lease->pool;
    segment->kind = PROTO_SEGMENT_LEGACY_IPC + (uint32_t)random_to(3);
    if (segment->kind == PROTO_SEGMENT_LEGACY_IPC)
        random_bytes(segment->handle, sizeof segment->handle);
    /* The smallest segment that holds the block, so that every byte more would be out of it. */
    uint64_t end = lease->offset_bytes + lease->capacity_bytes;
    segment->size_bytes = (end + SEGMENT_STEP - 1) / SEGMENT_STEP * SEGMENT_STEP;
    if (lease->parts == 0)
        return;
    /* The first segment of a row is one that the block goes beyond. */
    segment->kind = PROTO_SEGMENT_VMM_FD;
    memset(segment->handle, 0, sizeof segment->handle);
    segment->size_bytes = lease->offset_bytes / SEGMENT_STEP * SEGMENT_STEP + SEGMENT_STEP;
    lease->capacity_bytes =
        segment->size_bytes - lease->offset_bytes + random_size(PROTO_SIZE_MAX / 2048) * 512;
    lease->size_bytes = lease->capacity_bytes - random_to(511);
}

/* The size of a segment, up to bound. */
static inline uint64_t random_segment_bytes(uint64_t bound) {
    return random_size(bound / SEGMENT_STEP) * SEGMENT_STEP;
}

static inline void random_part(struct proto_part *part) {
    part->segment = random_size(UINT64_MAX);
    part->segment_bytes = random_segment_bytes(PROTO_SIZE_MAX);
    part->size_bytes = random_size(part->segment_bytes / 512) * 512;
    part->offset_bytes = random_to((part->segment_bytes - part->size_bytes) / 512) * 512;
}

static inline void random_leases(struct proto_leases *leases) {
    leases->pool = (uint32_t)random_size(UINT32_MAX);
    leases->count = (uint32_t)random_size(PROTO_LEASES_PER_MESSAGE);
    leases->n_described = (uint32_t)random_to(leases->count);
    leases->n_left = (uint32_t)random_to(PROTO_LEASES_MAX - leases->count);
    leases->segment_bytes = random_segment_bytes(PROTO_SIZE_MAX);
    for (uint32_t i = 0; i < leases->count; i++)
        leases->leases[i] = (struct proto_segment_lease){random64(), random64(), random_size(UINT64_MAX)};
}

static inline void random_name(char text[static PROTO_NAME_TEXT_SIZE]) {
    if (random_text(text, PROTO_NAME_TEXT_SIZE - 1) == 0)
        text[0] = 'n';
}

/* With pools_max small, a short one. */
static inline void random_directory_part(struct proto_directory_part *part, uint32_t pools_max) {
    part->n_bytes = (uint32_t)random_size(pools_max == PROTO_POOLS_MAX ? PROTO_DIRECTORY_PART_MAX : 64);
    part->offset_bytes = (uint32_t)random_to(PROTO_DIRECTORY_BYTES_MAX - part->n_bytes);
    random_bytes(part->bytes, part->n_bytes);
}

/* Returns whether there is a fence. */
static inline uint32_t random_fence(struct proto_board_fence *fence) {
    if (random_to(1))
        return 0;
    *fence = (struct proto_board_fence){.slot = (uint32_t)random_to(PROTO_BOARD_SLOTS - 1),
                                        .word = (uint32_t)random_to(PROTO_BOARD_WORDS - 1),
                                        .value = random64()};
    return 1;
}

static inline void random_publish(struct proto_publish *publish) {
    random_name(publish->name);
    publish->flags = (uint32_t)random_to(PROTO_PUBLISH_FLAGS);
    publish->count = (uint32_t)random_size(PROTO_NAME_BUFFERS_MAX);
    publish->directory_bytes = (uint32_t)random_to(PROTO_DIRECTORY_BYTES_MAX);
    publish->layout = random64();
    for (uint32_t i = 0; i < publish->count; i++) {
        struct proto_publish_buffer *buffer = &publish->buffers[i];
        *buffer =
            (struct proto_publish_buffer){random64(), random64(), random_size(PROTO_SIZE_MAX), {0}, 0, 0};
        buffer->has_fence = random_fence(&buffer->fence);
    }
}

static inline void random_named(struct proto_named *named) {
    named->state = PROTO_NAME_THERE + (uint32_t)random_to(PROTO_NAME_GONE - PROTO_NAME_THERE);
    if (named->state != PROTO_NAME_THERE)
        return;
    named->flags = (uint32_t)random_to(PROTO_PUBLISH_KEEP | PROTO_PUBLISH_LIVE);
    named->generation = random_size(UINT64_MAX);
    named->layout = random64();
    named->session = random64();
    named->count = (uint32_t)random_size(PROTO_NAME_BUFFERS_MAX);
    named->directory_bytes = (uint32_t)random_to(PROTO_DIRECTORY_BYTES_MAX);
    for (uint32_t i = 0; i < named->count; i++) {
        struct proto_named_buffer *buffer = &named->buffers[i];
        random_bytes(&buffer->token, sizeof buffer->token);
        buffer->size_bytes = random_size(PROTO_SIZE_MAX);
        buffer->pool = (uint32_t)random_size(UINT32_MAX);
        buffer->has_fence = random_fence(&buffer->fence);
    }
}

static inline void random_names(struct proto_names *names) {
    names->count = (uint32_t)random_to(PROTO_NAMES_PER_MESSAGE);
    names->n_left = (uint32_t)random64();
    for (uint32_t i = 0; i < names->count; i++) {
        struct proto_listed_name *name = &names->names[i];
        name->id = random_size(UINT64_MAX);
        name->session = random64();
        random_name(name->name);
        if (random_to(1))
            continue;
        name->generation = random_size(UINT64_MAX);
        name->bytes = random64();
        name->layout = random64();
        name->flags = (uint32_t)random_to(PROTO_PUBLISH_KEEP | PROTO_PUBLISH_LIVE);
        name->count = (uint32_t)random_size(PROTO_NAME_BUFFERS_MAX);
    }
}

static inline struct proto_channel_capacities random_capacities(void) {
    uint64_t n_slots = PROTO_CHANNEL_SLOTS_MIN + random_to(PROTO_CHANNEL_SLOTS_MAX - PROTO_CHANNEL_SLOTS_MIN);
    return (struct proto_channel_capacities){.slot_bytes = random_size(PROTO_SIZE_MAX / n_slots),
                                             .n_slots = n_slots,
                                             .metadata_bytes = random_to(PROTO_CHANNEL_METADATA_MAX),
                                             .n_consumers = random_size(PROTO_CHANNEL_CONSUMERS_MAX),
                                             .policy = random_size(PROTO_CHANNEL_FAIL)};
}

static inline void random_make_channel(struct proto_make_channel *make) {
    struct proto_channel_capacities capacities = random_capacities();

    random_name(make->name);
    make->lease = random64();
    make->generation = random64();
    make->slot_bytes = capacities.slot_bytes;
    make->n_slots = capacities.n_slots;
    make->metadata_bytes = capacities.metadata_bytes;
    make->n_consumers = capacities.n_consumers;
    make->policy = capacities.policy;
    make->flags = (uint32_t)random_to(PROTO_MAKE_CHANNEL_KEEP);
}

static inline void random_channel(struct proto_channel_reply *reply) {
    struct proto_channel_capacities capacities = random_capacities();

    reply->channel = random_size(UINT64_MAX);
    random_bytes(&reply->token, sizeof reply->token);
    reply->slot_bytes = capacities.slot_bytes;
    reply->n_slots = capacities.n_slots;
    reply->metadata_bytes = capacities.metadata_bytes;
    reply->n_consumers = capacities.n_consumers;
    reply->policy = capacities.policy;
    reply->place = (uint32_t)random_to(capacities.n_consumers);
    reply->pool = (uint32_t)random_size(UINT32_MAX);
}

/* Makes a valid message. POOLS has at most pools_max pools: large ones make some tests slow. */
static inline void random_message(uint16_t operation, uint32_t pools_max, struct proto_message *message) {
    memset(message, 0, sizeof *message);
    message->header.operation = operation;
    message->header.request =
        is_one_way(operation) ? 0
        : (operation == PROTO_ERROR || operation == PROTO_RELEASE || operation == PROTO_MERGE) &&
                !random_to(3)
            ? 0
            : random_size(UINT64_MAX);
    if (sender_of(operation) == PROTO_FROM_DAEMON && random_to(3) == 0)
        message->header.flags = PROTO_AGAIN;
    switch (operation) {
    case PROTO_HELLO:
        message->hello.magic = PROTO_MAGIC;
        message->hello.version_min = (uint16_t)random_size(UINT16_MAX);
        message->hello.version_max =
            (uint16_t)(message->hello.version_min + random_to(UINT16_MAX - message->hello.version_min));
        message->hello.flags = (uint32_t)random_to(PROTO_HELLO_QUESTION);
        break;
    case PROTO_ACQUIRE:
        message->acquire.pool = (uint32_t)random64();
        message->acquire.size_bytes = random_size(PROTO_SIZE_MAX);
        message->acquire.timeout_ns = random_to(1) ? random64() : UINT64_MAX;
        message->acquire.flags = (uint32_t)random_to(PROTO_ACQUIRE_FLAGS);
        if (random_to(1))
            message->acquire.least_bytes = random_size(message->acquire.size_bytes);
        break;
    case PROTO_ACQUIRE_SEGMENTS:
        message->acquire_segments.pool = (uint32_t)random64();
        message->acquire_segments.flags = (uint32_t)random_to(PROTO_ACQUIRE_FLAGS);
        message->acquire_segments.count = (uint32_t)random_size(PROTO_LEASES_MAX);
        message->acquire_segments.segment_bytes =
            random_segment_bytes(PROTO_SIZE_MAX / message->acquire_segments.count);
        message->acquire_segments.timeout_ns = random_to(1) ? random64() : UINT64_MAX;
        break;
    case PROTO_RELEASE:
    case PROTO_SPLIT:
        message->release.lease = random64();
        message->release.generation = random64();
        if (random_to(1) || operation == PROTO_SPLIT) {
            message->release.size_bytes = random_size(PROTO_SIZE_MAX / 1024) * 512;
            message->release.offset_bytes = random_to(PROTO_SIZE_MAX / 1024) * 512;
        }
        if (random_to(1) && operation == PROTO_RELEASE) {
            message->release.fence = (uint32_t)random_size(PROTO_PAGE_FENCES);
            message->release.fence_value = random64();
        }
        if (random_to(1) && message->release.size_bytes == 0) {
            message->release.board_word = (uint32_t)random_size(PROTO_BOARD_WORDS);
            message->release.board_value = random64();
        }
        break;
    case PROTO_MERGE:
        random_bytes(&message->merge, sizeof message->merge);
        break;
    case PROTO_SHARE:
        random_share(&message->share);
        break;
    case PROTO_QUERY:
        random_bytes(&message->query, sizeof message->query);
        break;
    case PROTO_SEND:
        random_share(&message->send.share);
        message->send.lifetime_ns = random_size(PROTO_PARCEL_NS_MAX);
        message->send.takers = (uint32_t)random_size(UINT32_MAX);
        message->send.flags = (uint32_t)random64() & PROTO_SEND_HELD;
        break;
    case PROTO_ATTACH:
    case PROTO_REVOKE:
        random_bytes(&message->attach, sizeof message->attach);
        break;
    case PROTO_TOKEN:
        random_bytes(&message->token, sizeof message->token);
        message->token.lease |= 1;
        break;
    case PROTO_OPENED:
        message->opened.segment = random_size(UINT64_MAX);
        break;
    case PROTO_CANCEL:
        message->cancel.request = random_size(UINT64_MAX);
        break;
    case PROTO_RECLAIMED:
        message->reclaimed.pool = (uint32_t)random_size(UINT32_MAX);
        message->reclaimed.outcome = (uint32_t)random_size(PROTO_RECLAIM_PENDING);
        message->reclaimed.asked = random64();
        message->reclaimed.kept_bytes = random_to(1) ? random_size(PROTO_SIZE_MAX) : 0;
        break;
    case PROTO_NAME:
        if (random_text(message->name.name, PROTO_PROCESS_NAME_SIZE - 1) == 0)
            message->name.name[0] = 'a';
        break;
    case PROTO_CLOSED:
        message->closed.segment = random_size(UINT64_MAX);
        message->closed.time_ns = random64();
        break;
    case PROTO_IDLE:
        message->idle.pool = (uint32_t)random64();
        message->idle.flags = (uint32_t)random_to(PROTO_IDLE_FLAGS);
        message->idle.size_bytes = random_to(1) ? random_size(PROTO_SIZE_MAX) : 0;
        break;
    case PROTO_OFFER:
        message->offer.pool = (uint32_t)random64();
        message->offer.count = (uint32_t)random_size(PROTO_CLOSE_MAX);
        for (uint32_t i = 0; i < message->offer.count; i++)
            message->offer.ids[i] = random_size(UINT64_MAX);
        break;
    case PROTO_SEGMENTS:
        message->segments.count = (uint32_t)random_to(PROTO_CLOSE_MAX);
        for (uint32_t i = 0; i < message->segments.count; i++)
            message->segments.ids[i] = random_size(UINT64_MAX);
        break;
    case PROTO_ASK_PARTS:
    case PROTO_DESCRIBE:
        random_bytes(&message->describe, sizeof message->describe);
        message->describe.part = (uint32_t)random_to(PROTO_ROW_PARTS_MAX - 1);
        message->describe.flags = operation == PROTO_DESCRIBE ? (uint32_t)random_to(PROTO_DESCRIBE_AGAIN) : 0;
        break;
    case PROTO_PARTS:
        message->parts.count = (uint32_t)random_size(PROTO_PARTS_MAX);
        message->parts.total =
            message->parts.count + 1 + (uint32_t)random_to(PROTO_ROW_PARTS_MAX - PROTO_PARTS_MAX - 1);
        for (uint32_t i = 0; i < message->parts.count; i++)
            random_part(&message->parts.parts[i]);
        break;
    case PROTO_HELLO_REPLY:
        message->hello_reply.magic = PROTO_MAGIC;
        message->hello_reply.version =
            (uint16_t)(PROTO_VERSION_MIN + random_to(PROTO_VERSION_MAX - PROTO_VERSION_MIN));
        message->hello_reply.gpu = (uint16_t)random_to(PROTO_GPU_SIM);
        message->hello_reply.session = random64();
        message->hello_reply.daemon_pid = (uint32_t)random64();
        message->hello_reply.flags = (uint32_t)random_to(PROTO_HELLO_REPLY_FLAGS);
        random_bytes(message->hello_reply.identity, sizeof message->hello_reply.identity);
        random_text(message->hello_reply.admin_path, random_to(PROTO_PATH_SIZE - 1));
        break;
    case PROTO_POOLS:
        message->pools.count = (uint32_t)random_to(pools_max);
        for (uint32_t i = 0; i < message->pools.count; i++)
            random_pool(&message->pools.pools[i]);
        break;
    case PROTO_LEASE:
        random_lease(&message->lease);
        break;
    case PROTO_LEASES:
        random_leases(&message->leases);
        break;
    case PROTO_INFO:
        message->info.segment = random_size(UINT64_MAX);
        message->info.capacity_bytes = random_size(PROTO_SIZE_MAX / 1024) * 512;
        message->info.offset_bytes = random_to(PROTO_SIZE_MAX / 1024) * 512;
        message->info.size_bytes = message->info.capacity_bytes - random_to(511);
        message->info.pool = (uint32_t)random_size(UINT32_MAX);
        message->info.holders = (uint32_t)random_size(UINT32_MAX);
        message->info.shared = (uint32_t)random_to(1);
        message->info.parts = random_to(1) ? 2 + (uint32_t)random_to(PROTO_ROW_PARTS_MAX - 2) : 0;
        break;
    case PROTO_PAGE:
        message->page.size_bytes = PROTO_PAGE_BYTES;
        break;
    case PROTO_BOARD:
        message->board.size_bytes = PROTO_BOARD_BYTES;
        message->board.slot = (uint32_t)random_to(PROTO_BOARD_SLOTS - 1);
        break;
    case PROTO_ASK_HOLDERS:
        random_bytes(&message->ask_holders, sizeof message->ask_holders);
        break;
    case PROTO_HOLDERS:
        message->holders.n_holding = (uint32_t)random64();
        message->holders.n_left = (uint32_t)random64();
        message->holders.count = (uint32_t)random_to(PROTO_HOLDERS_MAX);
        for (uint32_t i = 0; i < message->holders.count; i++)
            message->holders.fences[i] =
                (struct proto_board_fence){.slot = (uint32_t)random_to(PROTO_BOARD_SLOTS - 1),
                                           .word = (uint32_t)random_to(PROTO_BOARD_WORDS - 1),
                                           .value = random64()};
        break;
    case PROTO_WRITE_DIRECTORY:
    case PROTO_DIRECTORY:
        random_directory_part(&message->directory, pools_max);
        break;
    case PROTO_PUBLISH:
        random_publish(&message->publish);
        break;
    case PROTO_UNPUBLISH:
        random_name(message->unpublish.name);
        message->unpublish.generation = random64();
        message->unpublish.flags = (uint32_t)random_to(PROTO_UNPUBLISH_BUILD);
        break;
    case PROTO_OPEN_NAME:
        random_name(message->open_name.name);
        message->open_name.generation = random64();
        message->open_name.timeout_ns = random_to(1) ? random64() : UINT64_MAX;
        message->open_name.flags = (uint32_t)random_to(PROTO_OPEN_NAME_CHANGE);
        break;
    case PROTO_READ_DIRECTORY:
        random_name(message->read_directory.name);
        message->read_directory.generation = random64();
        message->read_directory.offset_bytes = (uint32_t)random64();
        break;
    case PROTO_LIST_NAMES:
        message->list_names.after = random64();
        break;
    case PROTO_MAKE_CHANNEL:
        random_make_channel(&message->make_channel);
        break;
    case PROTO_JOIN_CHANNEL:
        random_name(message->join_channel.name);
        message->join_channel.timeout_ns = random_to(1) ? random64() : UINT64_MAX;
        message->join_channel.place =
            random_to(1) ? (uint32_t)random_to(PROTO_CHANNEL_CONSUMERS_MAX) : PROTO_CHANNEL_ANY_CONSUMER;
        break;
    case PROTO_LEAVE_CHANNEL:
        message->leave_channel.channel = random64();
        message->leave_channel.page = (uint32_t)random_to(PROTO_CHANNEL_CONSUMERS_MAX);
        break;
    case PROTO_ASK_CHANNEL_MEMORY:
        message->ask_channel_memory.channel = random64();
        message->ask_channel_memory.page = (uint32_t)random_to(PROTO_CHANNEL_PLACES);
        break;
    case PROTO_CHANNEL:
        random_channel(&message->channel);
        break;
    case PROTO_CHANNEL_MEMORY:
        message->channel_memory.channel = random_size(UINT64_MAX);
        message->channel_memory.size_bytes = random_size(1024) * PROTO_CHANNEL_PAGE;
        message->channel_memory.page = (uint32_t)random_to(PROTO_CHANNEL_PLACES);
        message->channel_memory.is_own = (uint32_t)random_to(1);
        break;
    case PROTO_PUBLISHED:
        message->published.generation = random_size(UINT64_MAX);
        break;
    case PROTO_NAMED:
        random_named(&message->named);
        break;
    case PROTO_NAMES:
        random_names(&message->names);
        break;
    case PROTO_ERROR:
        message->failure.error = (uint32_t)random_to(PROTO_E_MAX - 1) + 1;
        message->failure.text_length = (uint32_t)random_text(message->failure.text, PROTO_TEXT_MAX);
        break;
    default:
        break;
    }
}

/* Decodes from memory of exactly the packet's size, so that the sanitisers see a byte read beyond it. */
static inline int decode_exactly(enum proto_sender sender, const void *packet, size_t size,
                                 struct proto_message *ret_message) {
    void *copy = malloc(size);
    const char *reason = NULL;
    assert_true(copy != NULL || size == 0);
    if (size > 0)
        memcpy(copy, packet, size);
    int r = proto_decode(sender, copy, size, ret_message, &reason);
    free(copy);
    assert_true(r == 0 || r == -EBADMSG);
    assert_true((r == 0) == (reason == NULL));
    return r;
}

/* By another way than the decoder's: characters are decoded, and their numbers looked at. */
static inline bool is_printable(const char *text, size_t length) {
    for (size_t i = 0; i < length;) {
        uint8_t first = (uint8_t)text[i];
        unsigned more = first < 0x80 ? 0 : (first & 0xe0) == 0xc0 ? 1 : (first & 0xf0) == 0xe0 ? 2 : 3;
        uint32_t number = more == 0 ? first : first & (0x3fu >> more);
        if (first >= 0x80 && (first < 0xc0 || first >= 0xf8))
            return false;
        if (more > length - 1 - i)
            return false;
        for (unsigned k = 1; k <= more; k++) {
            uint8_t next = (uint8_t)text[i + k];
            if ((next & 0xc0) != 0x80)
                return false;
            number = number << 6 | (next & 0x3f);
        }
        static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
        if (number < least[more] || number > 0x10ffff || (number >= 0xd800 && number <= 0xdfff))
            return false;
        if (number < 0x20 || (number >= 0x7f && number <= 0x9f))
            return false;
        i += 1 + more;
    }
    return true;
}

#endif
