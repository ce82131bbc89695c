/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the wire format. Valid messages are made at random from fixed seeds. A message that the decoder
 * accepts is compared with the header's promises as this file understands them, and its packet must be the
 * one encoding of the message.
 */
#include <errno.h>

#include "proto_messages.h"

static bool block_promises_hold(uint64_t offset, uint64_t size, uint64_t capacity) {
    return offset % 512 == 0 && capacity % 512 == 0 && size >= 1 && size <= capacity &&
           offset <= PROTO_SIZE_MAX && capacity <= PROTO_SIZE_MAX && offset + capacity <= PROTO_SIZE_MAX;
}

static bool lease_promises_hold(const struct proto_lease *lease) {
    static const struct proto_segment none;
    const struct proto_segment *segment = &lease->description;
    if (lease->parts == 1 || lease->parts > 4096 || lease->segment == 0 || lease->pool == 0)
        return false;
    if (!block_promises_hold(lease->offset_bytes, lease->size_bytes, lease->capacity_bytes))
        return false;
    if (segment->kind == 0)
        return memcmp(segment, &none, sizeof none) == 0;
    if (segment->kind > PROTO_SEGMENT_HOST_VMM_FD)
        return false;
    if (segment->kind != PROTO_SEGMENT_LEGACY_IPC &&
        memcmp(segment->handle, none.handle, sizeof none.handle) != 0)
        return false;
    bool goes_beyond = lease->offset_bytes + lease->capacity_bytes > segment->size_bytes;
    return segment->id == lease->segment && segment->pool == lease->pool && segment->size_bytes > 0 &&
           segment->size_bytes <= PROTO_SIZE_MAX && segment->size_bytes % SEGMENT_STEP == 0 &&
           (lease->parts == 0 ? !goes_beyond
                              : goes_beyond && segment->kind == PROTO_SEGMENT_VMM_FD &&
                                    lease->offset_bytes < segment->size_bytes);
}

static bool parts_promises_hold(const struct proto_parts *parts) {
    static const struct proto_part none;
    if (parts->count < 1 || parts->count > 64 || parts->total < 2 || parts->total > 4096 ||
        parts->count > parts->total)
        return false;
    for (uint32_t i = 0; i < PROTO_PARTS_MAX; i++) {
        const struct proto_part *part = &parts->parts[i];
        if (i >= parts->count ? memcmp(part, &none, sizeof none) != 0
                              : part->segment == 0 || part->segment_bytes % SEGMENT_STEP != 0 ||
                                    part->segment_bytes > PROTO_SIZE_MAX || part->size_bytes == 0 ||
                                    part->size_bytes % 512 != 0 || part->offset_bytes % 512 != 0 ||
                                    part->size_bytes > part->segment_bytes ||
                                    part->offset_bytes > part->segment_bytes - part->size_bytes)
            return false;
    }
    return true;
}

static bool leases_promises_hold(const struct proto_leases *leases) {
    if (leases->pool == 0 || leases->count < 1 || leases->count > 64 || leases->n_described > leases->count ||
        leases->n_left > 4096 || leases->count + leases->n_left > 4096)
        return false;
    if (leases->segment_bytes == 0 || leases->segment_bytes % SEGMENT_STEP != 0 ||
        leases->segment_bytes > PROTO_SIZE_MAX)
        return false;
    for (uint32_t i = 0; i < PROTO_LEASES_PER_MESSAGE; i++) {
        const struct proto_segment_lease *lease = &leases->leases[i];
        if (i < leases->count ? lease->segment == 0
                              : lease->segment != 0 || lease->lease != 0 || lease->generation != 0)
            return false;
    }
    return true;
}

static bool ids_promises_hold(const uint64_t ids[static PROTO_CLOSE_MAX], uint32_t count) {
    for (uint32_t i = 0; i < PROTO_CLOSE_MAX; i++)
        if ((ids[i] == 0) != (i >= count))
            return false;
    return true;
}

static bool holders_promises_hold(const struct proto_holders *holders) {
    if (holders->count > 64 || holders->reserved != 0)
        return false;
    for (uint32_t i = 0; i < 64; i++) {
        const struct proto_board_fence *fence = &holders->fences[i];
        if (fence->slot > 1023 || fence->word > 63 ||
            (i >= holders->count && (fence->slot != 0 || fence->word != 0 || fence->value != 0)))
            return false;
    }
    return true;
}

static const uint8_t zero[PROTO_PATH_SIZE];

/* A text in an array of so many bytes, which NULs fill up. */
static bool padded_text_is_sane(const char *text, size_t size) {
    size_t length = strnlen(text, size);
    return length < size && memcmp(text + length, zero, size - length) == 0 && is_printable(text, length);
}

static bool pool_promises_hold(const struct proto_pool *pool) {
    if (pool->id == 0 || pool->numa_node < -1 || pool->flags > PROTO_POOL_VMM ||
        !padded_text_is_sane(pool->name, sizeof pool->name))
        return false;
    if (pool->reserved_bytes > PROTO_SIZE_MAX || pool->leased_bytes > PROTO_SIZE_MAX ||
        pool->free_bytes > PROTO_SIZE_MAX || pool->quarantined_bytes > PROTO_SIZE_MAX ||
        pool->largest_free_bytes > PROTO_SIZE_MAX)
        return false;
    if (pool->kind == PROTO_POOL_HOST)
        return pool->device == -1 && memcmp(pool->uuid, zero, sizeof pool->uuid) == 0;
    return pool->kind == PROTO_POOL_DEVICE && pool->device >= 0;
}

static bool share_is_sane(const struct proto_share *share) {
    return share->size_bytes <= PROTO_SIZE_MAX && share->part_bytes <= PROTO_SIZE_MAX &&
           share->offset_bytes <= PROTO_SIZE_MAX - share->part_bytes &&
           (share->part_bytes > 0 || share->offset_bytes == 0);
}

static bool board_fence_is_sane(const struct proto_board_fence *fence, uint32_t has_fence) {
    return has_fence == 1 ? fence->slot <= 1023 && fence->word <= 63
                          : has_fence == 0 && fence->slot == 0 && fence->word == 0 && fence->value == 0;
}

/* Where a PUBLISH, NAMED or NAMES has fewer than it has room for, the rest is 0. */
static bool rest_is_zero(const void *array, size_t size, size_t used) {
    for (size_t i = used; i < size; i++)
        if (((const uint8_t *)array)[i] != 0)
            return false;
    return true;
}

static bool name_is_sane(const char text[static PROTO_NAME_TEXT_SIZE]) {
    size_t length = strnlen(text, PROTO_NAME_TEXT_SIZE);
    return length > 0 && length < PROTO_NAME_TEXT_SIZE && is_printable(text, length) &&
           rest_is_zero(text, PROTO_NAME_TEXT_SIZE, length);
}

static bool directory_promises_hold(const struct proto_directory_part *part, size_t size) {
    return part->n_bytes >= 1 && part->n_bytes <= 15360 && size == 8 + part->n_bytes &&
           part->offset_bytes <= 65536 && part->offset_bytes + part->n_bytes <= 65536;
}

static bool publish_promises_hold(const struct proto_publish *publish) {
    if (!name_is_sane(publish->name) || publish->flags > 7 || publish->count < 1 || publish->count > 64 ||
        publish->directory_bytes > 65536 || publish->reserved != 0)
        return false;
    for (uint32_t i = 0; i < publish->count; i++) {
        const struct proto_publish_buffer *buffer = &publish->buffers[i];
        if (buffer->size_bytes < 1 || buffer->size_bytes > PROTO_SIZE_MAX || buffer->reserved != 0 ||
            !board_fence_is_sane(&buffer->fence, buffer->has_fence))
            return false;
    }
    return rest_is_zero(publish->buffers, sizeof publish->buffers, publish->count * 48);
}

static bool named_promises_hold(const struct proto_named *named) {
    if (named->state == PROTO_NAME_BUILD || named->state == PROTO_NAME_GONE)
        return rest_is_zero(named, sizeof *named, sizeof named->state);
    if (named->state != PROTO_NAME_THERE || named->flags > 3 || named->generation == 0 || named->count < 1 ||
        named->count > 64 || named->directory_bytes > 65536)
        return false;
    for (uint32_t i = 0; i < named->count; i++) {
        const struct proto_named_buffer *buffer = &named->buffers[i];
        if (buffer->size_bytes < 1 || buffer->size_bytes > PROTO_SIZE_MAX || buffer->pool == 0 ||
            !board_fence_is_sane(&buffer->fence, buffer->has_fence))
            return false;
    }
    return rest_is_zero(named->buffers, sizeof named->buffers, named->count * 64);
}

static bool capacities_are_sane(uint64_t slot_bytes, uint64_t n_slots, uint64_t metadata_bytes,
                                uint64_t n_consumers, uint64_t policy) {
    return n_slots >= 2 && n_slots <= 1024 && slot_bytes >= 1 && slot_bytes <= PROTO_SIZE_MAX / n_slots &&
           metadata_bytes <= 1024 && n_consumers >= 1 && n_consumers <= 16 && policy >= 1 && policy <= 3;
}

static bool make_channel_promises_hold(const struct proto_make_channel *make) {
    return name_is_sane(make->name) && make->flags <= 1 && make->reserved == 0 &&
           capacities_are_sane(make->slot_bytes, make->n_slots, make->metadata_bytes, make->n_consumers,
                               make->policy);
}

static bool channel_promises_hold(const struct proto_channel_reply *reply) {
    return reply->channel != 0 && reply->pool != 0 && reply->place <= reply->n_consumers &&
           capacities_are_sane(reply->slot_bytes, reply->n_slots, reply->metadata_bytes, reply->n_consumers,
                               reply->policy);
}

static bool names_promises_hold(const struct proto_names *names) {
    if (names->count > 64)
        return false;
    for (uint32_t i = 0; i < names->count; i++) {
        const struct proto_listed_name *name = &names->names[i];
        if (name->id == 0 || !name_is_sane(name->name) || (name->flags & ~19u) != 0 || name->count > 64 ||
            (name->generation == 0) != (name->count == 0))
            return false;
    }
    return rest_is_zero(names->names, sizeof names->names, names->count * 176);
}

/* Whether a decoded message keeps the promises of proto.h. */
static bool promises_hold(enum proto_sender sender, size_t size, const struct proto_message *message) {
    const struct proto_header *header = &message->header;
    bool known = false;
    for (size_t i = 0; i < LENGTH(operations); i++)
        known |= operations[i] == header->operation;
    if (!known || sender_of(header->operation) != sender || header->length != size ||
        (header->flags & ~(sender == PROTO_FROM_DAEMON ? PROTO_AGAIN : 0)) != 0)
        return false;
    if (is_one_way(header->operation)
            ? header->request != 0
            : header->request == 0 && header->operation != PROTO_ERROR &&
                  header->operation != PROTO_RELEASE && header->operation != PROTO_MERGE)
        return false;
    size -= sizeof *header;
    switch (header->operation) {
    case PROTO_HELLO:
        return size == 16 && message->hello.magic == PROTO_MAGIC && message->hello.flags <= 4 &&
               message->hello.reserved == 0 && message->hello.version_min >= 1 &&
               message->hello.version_min <= message->hello.version_max;
    case PROTO_ACQUIRE:
        return size == 32 && message->acquire.flags <= 31 &&
               message->acquire.least_bytes <= message->acquire.size_bytes &&
               message->acquire.size_bytes >= 1 && message->acquire.size_bytes <= PROTO_SIZE_MAX;
    case PROTO_ACQUIRE_SEGMENTS:
        return size == 32 && message->acquire_segments.flags <= 31 &&
               message->acquire_segments.reserved == 0 && message->acquire_segments.count >= 1 &&
               message->acquire_segments.count <= 4096 && message->acquire_segments.segment_bytes > 0 &&
               message->acquire_segments.segment_bytes % SEGMENT_STEP == 0 &&
               message->acquire_segments.segment_bytes <= PROTO_SIZE_MAX &&
               message->acquire_segments.count <= PROTO_SIZE_MAX / message->acquire_segments.segment_bytes;
    case PROTO_RELEASE:
        return size == 56 && message->release.board_word <= 64 &&
               (message->release.board_word > 0 || message->release.board_value == 0) &&
               (message->release.board_word == 0 || message->release.size_bytes == 0) &&
               message->release.fence <= PROTO_PAGE_FENCES &&
               (message->release.fence > 0 || message->release.fence_value == 0) &&
               message->release.offset_bytes <= PROTO_SIZE_MAX &&
               message->release.size_bytes <= PROTO_SIZE_MAX &&
               message->release.offset_bytes + message->release.size_bytes <= PROTO_SIZE_MAX &&
               (message->release.size_bytes > 0 || message->release.offset_bytes == 0);
    case PROTO_SPLIT:
        return size == 56 && message->split.fence == 0 && message->split.board_word == 0 &&
               message->split.board_value == 0 && message->split.fence_value == 0 &&
               message->split.offset_bytes <= PROTO_SIZE_MAX && message->split.size_bytes >= 1 &&
               message->split.size_bytes <= PROTO_SIZE_MAX &&
               message->split.offset_bytes + message->split.size_bytes <= PROTO_SIZE_MAX;
    case PROTO_MERGE:
        return size == 32;
    case PROTO_SHARE:
        return size == 40 && share_is_sane(&message->share);
    case PROTO_QUERY:
        return size == 16;
    case PROTO_SEND:
        return size == 56 && share_is_sane(&message->send.share) && message->send.lifetime_ns > 0 &&
               message->send.lifetime_ns <= PROTO_PARCEL_NS_MAX && message->send.takers > 0 &&
               message->send.flags <= PROTO_SEND_HELD;
    case PROTO_ATTACH:
    case PROTO_REVOKE:
        return size == 32;
    case PROTO_TOKEN:
        return size == 48 && message->token.lease != 0;
    case PROTO_OPENED:
        return size == 8 && message->opened.segment != 0;
    case PROTO_CANCEL:
        return size == 8 && message->cancel.request != 0;
    case PROTO_RECLAIMED:
        return size == 24 && message->reclaimed.pool != 0 && message->reclaimed.outcome >= 1 &&
               message->reclaimed.outcome <= 6 && message->reclaimed.kept_bytes <= PROTO_SIZE_MAX;
    case PROTO_NAME:
        return size == 48 && message->name.name[0] != '\0' &&
               padded_text_is_sane(message->name.name, sizeof message->name.name);
    case PROTO_CLOSED:
        return size == 16 && message->closed.segment != 0;
    case PROTO_IDLE:
        return size == 16 && message->idle.flags <= 1 && message->idle.size_bytes <= PROTO_SIZE_MAX;
    case PROTO_SEGMENTS:
        return size == 520 && message->segments.count <= 64 && message->segments.reserved == 0 &&
               ids_promises_hold(message->segments.ids, message->segments.count);
    case PROTO_OFFER:
        return size == 520 && message->offer.count >= 1 && message->offer.count <= 64 &&
               ids_promises_hold(message->offer.ids, message->offer.count);
    case PROTO_ASK_PARTS:
        return size == 24 && message->ask_parts.part <= 4095 && message->ask_parts.flags == 0;
    case PROTO_DESCRIBE:
        return size == 24 && message->describe.part <= 4095 && message->describe.flags <= 1;
    case PROTO_PARTS:
        return size == 2056 && parts_promises_hold(&message->parts);
    case PROTO_HELLO_REPLY:
        return size == 152 && message->hello_reply.magic == PROTO_MAGIC &&
               message->hello_reply.version >= 1 && message->hello_reply.version <= PROTO_VERSION_MAX &&
               message->hello_reply.gpu <= 2 && message->hello_reply.flags <= 1 &&
               padded_text_is_sane(message->hello_reply.admin_path, sizeof message->hello_reply.admin_path);
    case PROTO_POOLS:
        if (message->pools.reserved != 0 || message->pools.count > PROTO_POOLS_MAX ||
            size != 8 + message->pools.count * sizeof(struct proto_pool))
            return false;
        for (uint32_t i = 0; i < message->pools.count; i++)
            if (!pool_promises_hold(&message->pools.pools[i]))
                return false;
        return true;
    case PROTO_LEASE:
        return size == 144 && lease_promises_hold(&message->lease);
    case PROTO_LEASES:
        return size == 1560 && leases_promises_hold(&message->leases);
    case PROTO_INFO:
        return size == 48 && message->info.parts != 1 && message->info.parts <= 4096 &&
               message->info.shared <= 1 && message->info.holders >= 1 && message->info.segment != 0 &&
               message->info.pool != 0 &&
               block_promises_hold(message->info.offset_bytes, message->info.size_bytes,
                                   message->info.capacity_bytes);
    case PROTO_BOARD:
        return size == 8 && message->board.size_bytes == 1048576 && message->board.slot <= 1023;
    case PROTO_ASK_HOLDERS:
        return size == 16;
    case PROTO_HOLDERS:
        return size == 1040 && holders_promises_hold(&message->holders);
    case PROTO_PAGE:
        return size == 8 && message->page.size_bytes == PROTO_PAGE_BYTES && message->page.reserved == 0;
    case PROTO_WRITE_DIRECTORY:
    case PROTO_DIRECTORY:
        return directory_promises_hold(&message->directory, size);
    case PROTO_PUBLISH:
        return size == 3224 && publish_promises_hold(&message->publish);
    case PROTO_UNPUBLISH:
        return size == 144 && name_is_sane(message->unpublish.name) && message->unpublish.flags <= 1 &&
               message->unpublish.reserved == 0;
    case PROTO_OPEN_NAME:
        return size == 152 && name_is_sane(message->open_name.name) && message->open_name.flags <= 2 &&
               message->open_name.reserved == 0;
    case PROTO_READ_DIRECTORY:
        return size == 144 && name_is_sane(message->read_directory.name) &&
               message->read_directory.reserved == 0;
    case PROTO_LIST_NAMES:
        return size == 8;
    case PROTO_MAKE_CHANNEL:
        return size == 192 && make_channel_promises_hold(&message->make_channel);
    case PROTO_JOIN_CHANNEL:
        return size == 144 && name_is_sane(message->join_channel.name) &&
               message->join_channel.reserved == 0 &&
               (message->join_channel.place <= 16 || message->join_channel.place == UINT32_MAX);
    case PROTO_LEAVE_CHANNEL:
        return size == 16 && message->leave_channel.page <= 16 && message->leave_channel.reserved == 0;
    case PROTO_ASK_CHANNEL_MEMORY:
        return size == 16 && message->ask_channel_memory.page <= 17 &&
               message->ask_channel_memory.reserved == 0;
    case PROTO_CHANNEL:
        return size == 88 && channel_promises_hold(&message->channel);
    case PROTO_CHANNEL_MEMORY:
        return size == 24 && message->channel_memory.channel != 0 && message->channel_memory.size_bytes > 0 &&
               message->channel_memory.size_bytes % 4096 == 0 && message->channel_memory.page <= 17 &&
               message->channel_memory.is_own <= 1;
    case PROTO_PUBLISHED:
        return size == 8 && message->published.generation != 0;
    case PROTO_NAMED:
        return size == 4136 && named_promises_hold(&message->named);
    case PROTO_NAMES:
        return size == 11272 && names_promises_hold(&message->names);
    case PROTO_ERROR:
        return message->failure.error >= 1 && message->failure.error <= PROTO_E_MAX &&
               message->failure.text_length <= PROTO_TEXT_MAX && size == 8 + message->failure.text_length &&
               message->failure.text[message->failure.text_length] == '\0' &&
               is_printable(message->failure.text, message->failure.text_length);
    default:
        return size == 0;
    }
}

/* Either side refuses the packet, or it is a message's one encoding and keeps the promises. Returns whether
 * the sender's side accepted it. */
static bool packet_is_refused_or_sound(enum proto_sender sender, const uint8_t *packet, size_t size) {
    static struct proto_message message;
    uint8_t again[PROTO_PACKET_MAX];

    memset(&message, 0xa5, sizeof message);
    if (decode_exactly(sender, packet, size, &message) < 0)
        return false;
    assert_true(promises_hold(sender, size, &message));
    assert_int_equal(proto_encode(&message, again), size);
    assert_memory_equal(again, packet, size);
    return true;
}

static void every_message_survives_the_round_trip(void **state) {
    (void)state;
    static struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    random_state = 1;
    for (size_t i = 0; i < LENGTH(operations); i++)
        for (unsigned round = 0; round < 300; round++) {
            random_message(operations[i], PROTO_POOLS_MAX, &message);
            message.header.length = 0xffffffff; /* encode fills it in */
            size_t size = proto_encode(&message, packet);

            memset(&decoded, 0, sizeof decoded);
            assert_int_equal(decode_exactly(sender_of(operations[i]), packet, size, &decoded), 0);
            assert_true(promises_hold(sender_of(operations[i]), size, &decoded));
            message.header.length = (uint32_t)size;
            assert_memory_equal(&decoded, &message, sizeof message);
        }
}

static void largest_messages_fit_a_packet(void **state) {
    (void)state;
    static struct proto_message message;
    uint8_t packet[PROTO_PACKET_MAX];

    random_state = 2;
    random_message(PROTO_POOLS, PROTO_POOLS_MAX, &message);
    message.pools.count = PROTO_POOLS_MAX;
    for (uint32_t i = 0; i < PROTO_POOLS_MAX; i++) {
        memset(&message.pools.pools[i], 0, sizeof message.pools.pools[i]);
        random_pool(&message.pools.pools[i]);
    }
    assert_int_equal(proto_encode(&message, packet), 16 + 8 + 64 * 144);
    assert_true(packet_is_refused_or_sound(PROTO_FROM_DAEMON, packet, 16 + 8 + 64 * 144));

    memset(&message, 0, sizeof message);
    message.header.operation = PROTO_ERROR;
    message.failure.error = PROTO_E_DRIVER;
    message.failure.text_length = PROTO_TEXT_MAX;
    memset(message.failure.text, 'x', PROTO_TEXT_MAX);
    assert_int_equal(proto_encode(&message, packet), 16 + 8 + 1024);
    assert_true(packet_is_refused_or_sound(PROTO_FROM_DAEMON, packet, 16 + 8 + 1024));
}

static void parts_of_directories_are_as_long_as_they_say(void **state) {
    (void)state;
    static struct proto_message message;
    static const struct {
        uint32_t offset_bytes, n_bytes;
        bool is_right;
    } cases[] = {{0, 1, true},
                 {0, 0, false},
                 {0, 15360, true},
                 {65536 - 15360, 15360, true},
                 {65536 - 15360 + 1, 15360, false},
                 {65535, 1, true},
                 {65536, 1, false},
                 {UINT32_MAX, 1, false}};
    uint8_t packet[PROTO_PACKET_MAX];

    for (size_t i = 0; i < LENGTH(cases); i++)
        for (unsigned side = 0; side < 2; side++) {
            enum proto_sender sender = side == 0 ? PROTO_FROM_CLIENT : PROTO_FROM_DAEMON;
            memset(&message, 0, sizeof message);
            message.header.operation = side == 0 ? PROTO_WRITE_DIRECTORY : PROTO_DIRECTORY;
            message.header.request = 5;
            message.directory.n_bytes = 15360;
            memset(message.directory.bytes, 0x5a, sizeof message.directory.bytes);
            assert_int_equal(proto_encode(&message, packet), 16 + 8 + 15360);
            uint32_t size = 16 + 8 + cases[i].n_bytes;
            memcpy(packet + 4, &size, sizeof size);
            memcpy(packet + 16, &cases[i].offset_bytes, sizeof cases[i].offset_bytes);
            memcpy(packet + 20, &cases[i].n_bytes, sizeof cases[i].n_bytes);
            assert_true(packet_is_refused_or_sound(sender, packet, size) == cases[i].is_right);
        }
}

static void truncated_and_extended_messages_are_refused(void **state) {
    (void)state;
    static struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX + 1] = {0};

    random_state = 3;
    for (size_t i = 0; i < LENGTH(operations); i++)
        for (unsigned round = 0; round < 10; round++) {
            random_message(operations[i], 3, &message);
            size_t size = proto_encode(&message, packet);
            enum proto_sender sender = sender_of(operations[i]);
            for (size_t cut = 0; cut <= size + 1; cut++) {
                uint32_t length = (uint32_t)size;
                /* The packet as cut, then with a header that agrees with the cut. */
                memcpy(packet + 4, &length, sizeof length);
                if (cut == size)
                    continue;
                if (cut > size)
                    packet[size] = 0;
                assert_int_equal(decode_exactly(sender, packet, cut, &decoded), -EBADMSG);
                length = (uint32_t)cut;
                memcpy(packet + 4, &length, sizeof length);
                assert_int_equal(decode_exactly(sender, packet, cut, &decoded), -EBADMSG);
            }
        }
    memset(packet, 0, sizeof packet);
    assert_int_equal(decode_exactly(PROTO_FROM_CLIENT, packet, sizeof packet, &decoded), -EBADMSG);
    assert_int_equal(proto_decode(PROTO_FROM_CLIENT, NULL, 0, &decoded, NULL), -EBADMSG);
}

static void corrupted_bytes_are_refused_or_make_another_sound_message(void **state) {
    (void)state;
    static struct proto_message message;
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff, '\n'};
    uint8_t packet[PROTO_PACKET_MAX];
    size_t refused = 0, accepted = 0;

    random_state = 4;
    for (size_t i = 0; i < LENGTH(operations); i++)
        for (unsigned round = 0; round < 8; round++) {
            random_message(operations[i], 3, &message);
            size_t size = proto_encode(&message, packet);
            /* Of a large message one byte in some: each costs its whole length. */
            for (size_t at = 0; at < size; at += size < 2500 ? 1 : 1 + random_to(size / 256)) {
                uint8_t before = packet[at];
                for (unsigned k = 0; k < LENGTH(values) + 8; k++) {
                    packet[at] =
                        k < LENGTH(values) ? values[k] : before ^ (uint8_t)(1u << (k - LENGTH(values)));
                    bool sound = packet_is_refused_or_sound(sender_of(operations[i]), packet, size);
                    sound ? accepted++ : refused++;
                    packet_is_refused_or_sound(other(sender_of(operations[i])), packet, size);
                }
                packet[at] = before;
            }
        }
    /* Both happen, or the loop has tested nothing. */
    assert_true(refused > 10000);
    assert_true(accepted > 10000);
}

static void random_damage_is_refused_or_makes_another_sound_message(void **state) {
    (void)state;
    static struct proto_message message;
    uint8_t packet[PROTO_PACKET_MAX];

    random_state = 5;
    for (unsigned round = 0; round < 60000; round++) {
        uint16_t operation = operations[random_to(LENGTH(operations) - 1)];
        random_message(operation, 3, &message);
        size_t size = proto_encode(&message, packet);
        for (uint64_t changes = random_to(6); changes > 0; changes--) {
            size_t at = random_to(size - 1);
            packet[at] = (uint8_t)random64();
        }
        if (random_to(3) == 0) { /* another length, and a header that says so */
            uint32_t length = (uint32_t)random_to(1200);
            if (length > size)
                random_bytes(packet + size, length - size);
            size = length;
            memcpy(packet + 4, &length, sizeof length);
        }
        packet_is_refused_or_sound(sender_of(operation), packet, size);
    }
}

static void messages_of_the_other_side_are_refused(void **state) {
    (void)state;
    static struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    random_state = 6;
    for (size_t i = 0; i < LENGTH(operations); i++) {
        random_message(operations[i], PROTO_POOLS_MAX, &message);
        size_t size = proto_encode(&message, packet);
        assert_int_equal(decode_exactly(other(sender_of(operations[i])), packet, size, &decoded), -EBADMSG);
    }
}

static void unknown_operations_are_refused(void **state) {
    (void)state;
    static struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];
    unsigned unknown = 0;

    for (uint32_t number = 0; number <= UINT16_MAX; number++) {
        bool known = false;
        for (size_t i = 0; i < LENGTH(operations); i++)
            known |= operations[i] == number;
        if (known)
            continue;
        unknown++;
        for (size_t size = 16; size <= 160; size += 144) { /* as a message without a body and as a LEASE */
            memset(packet, 0, sizeof packet);
            message.header = (struct proto_header){(uint16_t)number, 0, (uint32_t)size, 1};
            memcpy(packet, &message.header, sizeof message.header);
            assert_int_equal(decode_exactly(PROTO_FROM_CLIENT, packet, size, &decoded), -EBADMSG);
            assert_int_equal(decode_exactly(PROTO_FROM_DAEMON, packet, size, &decoded), -EBADMSG);
        }
        assert_string_equal(proto_operation_name(number), "unknown operation");
    }
    assert_int_equal(unknown, 65536 - LENGTH(operations));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_survives_the_round_trip),
        cmocka_unit_test(largest_messages_fit_a_packet),
        cmocka_unit_test(parts_of_directories_are_as_long_as_they_say),
        cmocka_unit_test(truncated_and_extended_messages_are_refused),
        cmocka_unit_test(corrupted_bytes_are_refused_or_make_another_sound_message),
        cmocka_unit_test(random_damage_is_refused_or_makes_another_sound_message),
        cmocka_unit_test(messages_of_the_other_side_are_refused),
        cmocka_unit_test(unknown_operations_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
