/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold for the wire format. Valid messages are made at random from fixed seeds; what the decoder
 * accepts is compared with the header's promises as this file understands them, and must be the one encoding
 * of its message.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "proto/proto.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define SEGMENT_STEP  (UINT64_C(2) << 20)

static const uint16_t operations[] = {
    PROTO_HELLO, PROTO_LIST_POOLS, PROTO_ACQUIRE, PROTO_RELEASE,     PROTO_SHARE, PROTO_ATTACH,
    PROTO_QUERY, PROTO_OPENED,     PROTO_BYE,     PROTO_HELLO_REPLY, PROTO_POOLS, PROTO_LEASE,
    PROTO_OK,    PROTO_TOKEN,      PROTO_INFO,    PROTO_ERROR,
};

static enum proto_sender sender_of(uint16_t operation) {
    return operation < PROTO_HELLO_REPLY ? PROTO_FROM_CLIENT : PROTO_FROM_DAEMON;
}

static enum proto_sender other(enum proto_sender sender) {
    return sender == PROTO_FROM_CLIENT ? PROTO_FROM_DAEMON : PROTO_FROM_CLIENT;
}

/* xorshift64*: the same numbers on every machine. */
static uint64_t random_state;

static uint64_t random64(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(2685821657736338717);
}

/* 0…bound, both included. */
static uint64_t random_to(uint64_t bound) {
    return bound == UINT64_MAX ? random64() : random64() % (bound + 1);
}

/* Of all magnitudes alike, 1…bound. */
static uint64_t random_size(uint64_t bound) {
    uint64_t size = random64() >> random_to(63);
    return size == 0 ? 1 : size > bound ? bound : size;
}

static void random_bytes(void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)random64();
}

/* At most size bytes of printable text, with the characters at the edges of UTF-8's ranges. Returns its
 * length. */
static size_t random_text(char *text, size_t size) {
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

static void random_pool(struct proto_pool *pool) {
    pool->id = (uint32_t)random_size(UINT32_MAX);
    pool->kind = random_to(1) ? PROTO_POOL_DEVICE : PROTO_POOL_HOST;
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

static void random_lease(struct proto_lease *lease) {
    lease->lease = random64();
    lease->generation = random64();
    lease->segment = random_size(UINT64_MAX);
    lease->pool = (uint32_t)random_size(UINT32_MAX);
    lease->capacity_bytes = random_size(PROTO_SIZE_MAX / 1024) * 512;
    lease->offset_bytes = random_to(PROTO_SIZE_MAX / 1024 - 1) * 512;
    lease->size_bytes = lease->capacity_bytes - random_to(511);
    if (random_to(2) == 0)
        return;
    struct proto_segment *segment = &lease->description;
    segment->id = lease->segment;
    segment->pool = lease->pool;
    segment->kind = random_to(1) ? PROTO_SEGMENT_LEGACY_IPC : PROTO_SEGMENT_MEMFD;
    if (segment->kind == PROTO_SEGMENT_LEGACY_IPC)
        random_bytes(segment->handle, sizeof segment->handle);
    /* The smallest segment that holds the block, so that every byte more would be out of it. */
    uint64_t end = lease->offset_bytes + lease->capacity_bytes;
    segment->size_bytes = (end + SEGMENT_STEP - 1) / SEGMENT_STEP * SEGMENT_STEP;
}

/* Makes a valid message. POOLS has at most pools_max pools: large ones make some tests slow. */
static void random_message(uint16_t operation, uint32_t pools_max, struct proto_message *message) {
    memset(message, 0, sizeof *message);
    message->header.operation = operation;
    message->header.request = operation == PROTO_OPENED                   ? 0
                              : operation == PROTO_ERROR && !random_to(3) ? 0
                                                                          : random_size(UINT64_MAX);
    switch (operation) {
    case PROTO_HELLO:
        message->hello.magic = PROTO_MAGIC;
        message->hello.version_min = (uint16_t)random_size(UINT16_MAX);
        message->hello.version_max =
            (uint16_t)(message->hello.version_min + random_to(UINT16_MAX - message->hello.version_min));
        break;
    case PROTO_ACQUIRE:
        message->acquire.pool = (uint32_t)random64();
        message->acquire.size_bytes = random_size(PROTO_SIZE_MAX);
        message->acquire.timeout_ns = random_to(1) ? random64() : UINT64_MAX;
        break;
    case PROTO_RELEASE:
        message->release.lease = random64();
        message->release.generation = random64();
        if (random_to(1)) {
            message->release.size_bytes = random_size(PROTO_SIZE_MAX / 1024) * 512;
            message->release.offset_bytes = random_to(PROTO_SIZE_MAX / 1024) * 512;
        }
        break;
    case PROTO_SHARE:
    case PROTO_QUERY:
        random_bytes(&message->share, sizeof message->share);
        break;
    case PROTO_ATTACH:
    case PROTO_TOKEN:
        random_bytes(&message->token, sizeof message->token);
        break;
    case PROTO_OPENED:
        message->opened.segment = random_size(UINT64_MAX);
        break;
    case PROTO_HELLO_REPLY:
        message->hello_reply.magic = PROTO_MAGIC;
        message->hello_reply.version = PROTO_VERSION_MAX;
        message->hello_reply.gpu = (uint16_t)random_to(PROTO_GPU_SIM);
        message->hello_reply.session = random64();
        message->hello_reply.daemon_pid = (uint32_t)random64();
        break;
    case PROTO_POOLS:
        message->pools.count = (uint32_t)random_to(pools_max);
        for (uint32_t i = 0; i < message->pools.count; i++)
            random_pool(&message->pools.pools[i]);
        break;
    case PROTO_LEASE:
        random_lease(&message->lease);
        break;
    case PROTO_INFO:
        message->info.segment = random_size(UINT64_MAX);
        message->info.capacity_bytes = random_size(PROTO_SIZE_MAX / 1024) * 512;
        message->info.offset_bytes = random_to(PROTO_SIZE_MAX / 1024) * 512;
        message->info.size_bytes = message->info.capacity_bytes - random_to(511);
        message->info.pool = (uint32_t)random_size(UINT32_MAX);
        message->info.holders = (uint32_t)random_size(UINT32_MAX);
        message->info.shared = (uint32_t)random_to(1);
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
static int decode_exactly(enum proto_sender sender, const void *packet, size_t size,
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
static bool is_printable(const char *text, size_t length) {
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

static bool block_promises_hold(uint64_t offset, uint64_t size, uint64_t capacity) {
    return offset % 512 == 0 && capacity % 512 == 0 && size >= 1 && size <= capacity &&
           offset <= PROTO_SIZE_MAX && capacity <= PROTO_SIZE_MAX && offset + capacity <= PROTO_SIZE_MAX;
}

static bool lease_promises_hold(const struct proto_lease *lease) {
    static const struct proto_segment none;
    const struct proto_segment *segment = &lease->description;
    if (lease->reserved != 0 || lease->segment == 0 || lease->pool == 0)
        return false;
    if (!block_promises_hold(lease->offset_bytes, lease->size_bytes, lease->capacity_bytes))
        return false;
    if (segment->kind == 0)
        return memcmp(segment, &none, sizeof none) == 0;
    if (segment->kind != PROTO_SEGMENT_LEGACY_IPC && segment->kind != PROTO_SEGMENT_MEMFD)
        return false;
    if (segment->kind == PROTO_SEGMENT_MEMFD && memcmp(segment->handle, none.handle, sizeof none.handle) != 0)
        return false;
    return segment->id == lease->segment && segment->pool == lease->pool && segment->size_bytes > 0 &&
           segment->size_bytes <= PROTO_SIZE_MAX && segment->size_bytes % SEGMENT_STEP == 0 &&
           lease->offset_bytes + lease->capacity_bytes <= segment->size_bytes;
}

static bool pool_promises_hold(const struct proto_pool *pool) {
    static const uint8_t zero[PROTO_NAME_SIZE];
    size_t length = strnlen(pool->name, sizeof pool->name);
    if (length == sizeof pool->name || memcmp(pool->name + length, zero, sizeof pool->name - length) != 0)
        return false;
    if (pool->id == 0 || pool->numa_node < -1 || !is_printable(pool->name, length))
        return false;
    if (pool->reserved_bytes > PROTO_SIZE_MAX || pool->leased_bytes > PROTO_SIZE_MAX ||
        pool->free_bytes > PROTO_SIZE_MAX || pool->quarantined_bytes > PROTO_SIZE_MAX ||
        pool->largest_free_bytes > PROTO_SIZE_MAX)
        return false;
    if (pool->kind == PROTO_POOL_HOST)
        return pool->device == -1 && memcmp(pool->uuid, zero, sizeof pool->uuid) == 0;
    return pool->kind == PROTO_POOL_DEVICE && pool->device >= 0;
}

/* What proto.h promises of a decoded message. */
static bool promises_hold(enum proto_sender sender, size_t size, const struct proto_message *message) {
    const struct proto_header *header = &message->header;
    bool known = false;
    for (size_t i = 0; i < LENGTH(operations); i++)
        known |= operations[i] == header->operation;
    if (!known || sender_of(header->operation) != sender || header->length != size || header->reserved != 0)
        return false;
    if (header->operation == PROTO_OPENED ? header->request != 0
                                          : header->request == 0 && header->operation != PROTO_ERROR)
        return false;
    size -= sizeof *header;
    switch (header->operation) {
    case PROTO_HELLO:
        return size == 8 && message->hello.magic == PROTO_MAGIC && message->hello.version_min >= 1 &&
               message->hello.version_min <= message->hello.version_max;
    case PROTO_ACQUIRE:
        return size == 24 && message->acquire.reserved == 0 && message->acquire.size_bytes >= 1 &&
               message->acquire.size_bytes <= PROTO_SIZE_MAX;
    case PROTO_RELEASE:
        return size == 32 && message->release.offset_bytes % 512 == 0 &&
               message->release.size_bytes % 512 == 0 && message->release.offset_bytes <= PROTO_SIZE_MAX &&
               message->release.size_bytes <= PROTO_SIZE_MAX &&
               message->release.offset_bytes + message->release.size_bytes <= PROTO_SIZE_MAX &&
               (message->release.size_bytes > 0 || message->release.offset_bytes == 0);
    case PROTO_SHARE:
    case PROTO_QUERY:
        return size == 16;
    case PROTO_ATTACH:
    case PROTO_TOKEN:
        return size == 32;
    case PROTO_OPENED:
        return size == 8 && message->opened.segment != 0;
    case PROTO_HELLO_REPLY:
        return size == 24 && message->hello_reply.magic == PROTO_MAGIC && message->hello_reply.version == 1 &&
               message->hello_reply.gpu <= 2 && message->hello_reply.reserved == 0;
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
    case PROTO_INFO:
        return size == 48 && message->info.reserved == 0 && message->info.shared <= 1 &&
               message->info.holders >= 1 && message->info.segment != 0 && message->info.pool != 0 &&
               block_promises_hold(message->info.offset_bytes, message->info.size_bytes,
                                   message->info.capacity_bytes);
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
            message.header.reserved = 0xffff; /* encode fills these two in */
            message.header.length = 0xffffffff;
            size_t size = proto_encode(&message, packet);

            memset(&decoded, 0, sizeof decoded);
            assert_int_equal(decode_exactly(sender_of(operations[i]), packet, size, &decoded), 0);
            assert_true(promises_hold(sender_of(operations[i]), size, &decoded));
            message.header.reserved = 0;
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
            for (size_t at = 0; at < size; at++) {
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

/* One rule broken at a time: what the decoder must not let through, each in a message that is otherwise
 * valid. */

enum breakage_value_size {
    BYTE = 1,
    U16 = 2,
    U32 = 4,
    U64 = 8,
};

struct breakage {
    uint16_t operation;
    size_t offset; /* in the body; from the end of the header */
    size_t width;
    uint64_t value;
};

#define BODY(type, member) offsetof(struct type, member)
#define IN_POOL(member)    (offsetof(struct proto_pools, pools) + offsetof(struct proto_pool, member))
#define IN_SEGMENT(member)                                                                                   \
    (offsetof(struct proto_lease, description) + offsetof(struct proto_segment, member))

/* Valid messages with plain contents, for the table of breakages. */
static void plain_message(uint16_t operation, struct proto_message *message) {
    memset(message, 0, sizeof *message);
    message->header.operation = operation;
    message->header.request = operation == PROTO_OPENED ? 0 : 7;
    switch (operation) {
    case PROTO_HELLO:
        message->hello = (struct proto_hello){PROTO_MAGIC, 1, 1};
        break;
    case PROTO_HELLO_REPLY:
        message->hello_reply = (struct proto_hello_reply){PROTO_MAGIC, 1, PROTO_GPU_SIM, 3, 4, 0};
        break;
    case PROTO_POOLS:
        message->pools.count = 1;
        message->pools.pools[0] = (struct proto_pool){
            .id = 1, .kind = PROTO_POOL_HOST, .device = -1, .numa_node = 0, .name = "host memory, node 0"};
        break;
    case PROTO_ACQUIRE:
        message->acquire = (struct proto_acquire){1, 0, 1, 0};
        break;
    case PROTO_RELEASE:
        message->release = (struct proto_release){1, 1, 512, 512};
        break;
    case PROTO_OPENED:
        message->opened.segment = 9;
        break;
    case PROTO_LEASE:
        message->lease = (struct proto_lease){
            1, 1, 9, 512, 1000, 1024, 1, 0, {9, SEGMENT_STEP, 1, PROTO_SEGMENT_MEMFD, {0}}};
        break;
    case PROTO_INFO:
        message->info = (struct proto_info){9, 512, 1000, 1024, 1, 1, 0, 0};
        break;
    case PROTO_ERROR:
        proto_failure_set(&message->failure, PROTO_E_STALE, "lease %d", 5);
        break;
    default:
        break;
    }
}

static void each_broken_rule_is_refused(void **state) {
    (void)state;
    static const struct breakage breakages[] = {
        {PROTO_HELLO, BODY(proto_hello, magic), U32, PROTO_MAGIC + 1},
        {PROTO_HELLO, BODY(proto_hello, version_min), U16, 0},
        {PROTO_HELLO, BODY(proto_hello, version_min), U16, 2},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, magic), U32, 0},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, version), U16, 0},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, version), U16, 2},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, gpu), U16, 3},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, reserved), U32, 1},
        {PROTO_POOLS, BODY(proto_pools, count), U32, 0},
        {PROTO_POOLS, BODY(proto_pools, count), U32, 2},
        {PROTO_POOLS, BODY(proto_pools, count), U32, PROTO_POOLS_MAX + 1},
        {PROTO_POOLS, BODY(proto_pools, count), U32, UINT32_MAX},
        {PROTO_POOLS, BODY(proto_pools, count), U32, UINT64_C(0x10000001)},
        {PROTO_POOLS, BODY(proto_pools, reserved), U32, 1},
        {PROTO_POOLS, IN_POOL(id), U32, 0},
        {PROTO_POOLS, IN_POOL(kind), U32, 0},
        {PROTO_POOLS, IN_POOL(kind), U32, 3},
        {PROTO_POOLS, IN_POOL(kind), U32, PROTO_POOL_DEVICE}, /* its device is -1 */
        {PROTO_POOLS, IN_POOL(device), U32, 0},
        {PROTO_POOLS, IN_POOL(device), U32, UINT32_MAX - 1},
        {PROTO_POOLS, IN_POOL(numa_node), U32, UINT32_MAX - 1},
        {PROTO_POOLS, IN_POOL(uuid), BYTE, 1},
        {PROTO_POOLS, IN_POOL(uuid) + 15, BYTE, 1},
        {PROTO_POOLS, IN_POOL(reserved_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_POOLS, IN_POOL(leased_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_POOLS, IN_POOL(free_bytes), U64, UINT64_MAX},
        {PROTO_POOLS, IN_POOL(quarantined_bytes), U64, UINT64_MAX},
        {PROTO_POOLS, IN_POOL(largest_free_bytes), U64, UINT64_MAX},
        {PROTO_POOLS, IN_POOL(name), BYTE, '\n'},
        {PROTO_POOLS, IN_POOL(name), BYTE, 0x7f},
        {PROTO_POOLS, IN_POOL(name), BYTE, 0xc3},
        {PROTO_POOLS, IN_POOL(name), BYTE, 0}, /* and a rest that is not zero */
        {PROTO_POOLS, IN_POOL(name) + 63, BYTE, 'x'},
        {PROTO_ACQUIRE, BODY(proto_acquire, reserved), U32, 1},
        {PROTO_ACQUIRE, BODY(proto_acquire, size_bytes), U64, 0},
        {PROTO_ACQUIRE, BODY(proto_acquire, size_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_RELEASE, BODY(proto_release, offset_bytes), U64, 513},
        {PROTO_RELEASE, BODY(proto_release, size_bytes), U64, 1},
        {PROTO_RELEASE, BODY(proto_release, size_bytes), U64, 0}, /* its offset is 512 */
        {PROTO_RELEASE, BODY(proto_release, size_bytes), U64, PROTO_SIZE_MAX},
        {PROTO_RELEASE, BODY(proto_release, size_bytes), U64, UINT64_MAX - 511},
        {PROTO_RELEASE, BODY(proto_release, offset_bytes), U64, UINT64_MAX - 511},
        {PROTO_OPENED, BODY(proto_opened, segment), U64, 0},
        {PROTO_LEASE, BODY(proto_lease, segment), U64, 0},
        {PROTO_LEASE, BODY(proto_lease, segment), U64, 10},
        {PROTO_LEASE, BODY(proto_lease, offset_bytes), U64, 1},
        {PROTO_LEASE, BODY(proto_lease, offset_bytes), U64, SEGMENT_STEP - 512},
        {PROTO_LEASE, BODY(proto_lease, offset_bytes), U64, SEGMENT_STEP},
        {PROTO_LEASE, BODY(proto_lease, offset_bytes), U64, UINT64_MAX - 511},
        {PROTO_LEASE, BODY(proto_lease, size_bytes), U64, 0},
        {PROTO_LEASE, BODY(proto_lease, size_bytes), U64, 1025},
        {PROTO_LEASE, BODY(proto_lease, capacity_bytes), U64, 1001},
        {PROTO_LEASE, BODY(proto_lease, capacity_bytes), U64, SEGMENT_STEP},
        {PROTO_LEASE, BODY(proto_lease, capacity_bytes), U64, UINT64_MAX - 511},
        {PROTO_LEASE, BODY(proto_lease, pool), U32, 0},
        {PROTO_LEASE, BODY(proto_lease, pool), U32, 2},
        {PROTO_LEASE, BODY(proto_lease, reserved), U32, 1},
        {PROTO_LEASE, IN_SEGMENT(id), U64, 0},
        {PROTO_LEASE, IN_SEGMENT(id), U64, 10},
        {PROTO_LEASE, IN_SEGMENT(size_bytes), U64, 0},
        {PROTO_LEASE, IN_SEGMENT(size_bytes), U64, SEGMENT_STEP + 512},
        {PROTO_LEASE, IN_SEGMENT(size_bytes), U64, PROTO_SIZE_MAX + SEGMENT_STEP},
        {PROTO_LEASE, IN_SEGMENT(pool), U32, 2},
        {PROTO_LEASE, IN_SEGMENT(kind), U32, 0},
        {PROTO_LEASE, IN_SEGMENT(kind), U32, PROTO_SEGMENT_VMM_FD},
        {PROTO_LEASE, IN_SEGMENT(kind), U32, 4},
        {PROTO_LEASE, IN_SEGMENT(handle), BYTE, 1},
        {PROTO_LEASE, IN_SEGMENT(handle) + 63, BYTE, 1},
        {PROTO_INFO, BODY(proto_info, segment), U64, 0},
        {PROTO_INFO, BODY(proto_info, offset_bytes), U64, 256},
        {PROTO_INFO, BODY(proto_info, offset_bytes), U64, PROTO_SIZE_MAX},
        {PROTO_INFO, BODY(proto_info, size_bytes), U64, 0},
        {PROTO_INFO, BODY(proto_info, size_bytes), U64, 1025},
        {PROTO_INFO, BODY(proto_info, capacity_bytes), U64, 1023},
        {PROTO_INFO, BODY(proto_info, pool), U32, 0},
        {PROTO_INFO, BODY(proto_info, holders), U32, 0},
        {PROTO_INFO, BODY(proto_info, shared), U32, 2},
        {PROTO_INFO, BODY(proto_info, reserved), U32, 1},
        {PROTO_ERROR, BODY(proto_failure, error), U32, 0},
        {PROTO_ERROR, BODY(proto_failure, error), U32, PROTO_E_MAX + 1},
        {PROTO_ERROR, BODY(proto_failure, text_length), U32, 6},
        {PROTO_ERROR, BODY(proto_failure, text_length), U32, 8},
        {PROTO_ERROR, BODY(proto_failure, text_length), U32, UINT32_MAX},
        {PROTO_ERROR, BODY(proto_failure, text), BYTE, 0},
        {PROTO_ERROR, BODY(proto_failure, text), BYTE, 0x1b},
        {PROTO_ERROR, BODY(proto_failure, text) + 6, BYTE, 0xc3},
    };
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    for (size_t i = 0; i < LENGTH(breakages); i++) {
        const struct breakage *breakage = &breakages[i];
        plain_message(breakage->operation, &message);
        size_t size = proto_encode(&message, packet);
        assert_int_equal(decode_exactly(sender_of(breakage->operation), packet, size, &decoded), 0);
        memcpy(packet + 16 + breakage->offset, &breakage->value, breakage->width);
        if (decode_exactly(sender_of(breakage->operation), packet, size, &decoded) == 0)
            fail_msg("breakage %zu of %s was let through", i, proto_operation_name(breakage->operation));
    }
}

static void request_ids_are_where_they_belong(void **state) {
    (void)state;
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    for (size_t i = 0; i < LENGTH(operations); i++)
        for (uint64_t request = 0; request <= 1; request++) {
            plain_message(operations[i], &message);
            size_t size = proto_encode(&message, packet);
            memcpy(packet + 8, &request, sizeof request);
            bool wanted = operations[i] == PROTO_ERROR || (operations[i] == PROTO_OPENED) == (request == 0);
            assert_int_equal(decode_exactly(sender_of(operations[i]), packet, size, &decoded),
                             wanted ? 0 : -EBADMSG);
        }
}

static void malformed_utf8_is_refused(void **state) {
    (void)state;
    static const char *const malformed[] = {
        "\x80",
        "\xbf",
        "\xc0\x80",
        "\xc1\xbf",
        "\xc2",
        "\xc2 ",
        "\xe0\x9f\xbf",
        "\xe2\x80",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf",
        "\xf0\x9f\x98",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xff",
        "\xfe",
        "\xc2\x80",
        "\xc2\x9f",
        "a\tb",
        "\r",
        "\x1f",
        "\x7f",
        "\xe2\x28\xa1",
        "\xf0\x90\x80\xc0",
    };
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    plain_message(PROTO_ERROR, &message);
    for (size_t i = 0; i < LENGTH(malformed); i++) {
        size_t length = strlen(malformed[i]);
        message.failure.text_length = (uint32_t)length;
        memset(message.failure.text, 'x', length);
        size_t size = proto_encode(&message, packet);
        memcpy(packet + 24, malformed[i], length);
        assert_false(is_printable(malformed[i], length));
        assert_int_equal(decode_exactly(PROTO_FROM_DAEMON, packet, size, &decoded), -EBADMSG);
    }
}

static void only_a_described_memfd_brings_a_descriptor(void **state) {
    (void)state;
    static struct proto_message message;

    for (size_t i = 0; i < LENGTH(operations); i++) {
        plain_message(operations[i], &message);
        assert_int_equal(proto_message_fds(&message), operations[i] == PROTO_LEASE);
    }
    plain_message(PROTO_LEASE, &message);
    message.lease.description.kind = PROTO_SEGMENT_LEGACY_IPC;
    assert_int_equal(proto_message_fds(&message), 0);
    memset(&message.lease.description, 0, sizeof message.lease.description);
    assert_int_equal(proto_message_fds(&message), 0);
}

static void numbers_have_names(void **state) {
    (void)state;
    assert_string_equal(proto_operation_name(PROTO_ACQUIRE), "ACQUIRE");
    assert_string_equal(proto_operation_name(PROTO_HELLO_REPLY), "HELLO_REPLY");
    assert_string_equal(proto_operation_name(UINT32_MAX), "unknown operation");
    for (unsigned error = 1; error <= PROTO_E_MAX; error++) {
        assert_string_not_equal(proto_error_text(error), "unknown error");
        for (unsigned before = 1; before < error; before++)
            assert_string_not_equal(proto_error_text(error), proto_error_text(before));
    }
    assert_string_equal(proto_error_text(0), "unknown error");
    assert_string_equal(proto_error_text(PROTO_E_MAX + 1), "unknown error");
    assert_string_equal(proto_error_text(UINT32_MAX), "unknown error");
}

/* Encodes and decodes the failure, which must succeed whatever was put into it. */
static void assert_failure_travels(const struct proto_failure *failure) {
    static struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    message.header.operation = PROTO_ERROR;
    message.header.request = 1;
    message.failure = *failure;
    size_t size = proto_encode(&message, packet);
    assert_int_equal(decode_exactly(PROTO_FROM_DAEMON, packet, size, &decoded), 0);
    assert_int_equal(strlen(decoded.failure.text), failure->text_length);
    assert_string_equal(decoded.failure.text, failure->text);
}

static void failure_text_is_cut_between_characters(void **state) {
    (void)state;
    static const char *const characters[] = {"x", "\xc3\xa4", "\xe2\x80\xa6", "\xf0\x9f\x98\x80"};
    struct proto_failure failure;
    char text[4 * PROTO_TEXT_MAX + 8];

    for (size_t width = 1; width <= 4; width++)
        for (size_t before = PROTO_TEXT_MAX - 8; before <= PROTO_TEXT_MAX + 1; before++) {
            /* before bytes of x, then two characters of this width */
            memset(text, 'x', before);
            memcpy(text + before, characters[width - 1], width);
            memcpy(text + before + width, characters[width - 1], width);
            text[before + 2 * width] = '\0';
            proto_failure_set(&failure, PROTO_E_EXHAUSTED, "%s", text);

            size_t wanted = before > PROTO_TEXT_MAX ? PROTO_TEXT_MAX : before;
            for (unsigned k = 0; k < 2 && wanted + width <= PROTO_TEXT_MAX; k++)
                wanted += width;
            assert_int_equal(failure.error, PROTO_E_EXHAUSTED);
            assert_int_equal(failure.text_length, wanted);
            assert_memory_equal(failure.text, text, wanted);
            assert_int_equal(failure.text[wanted], 0);
            assert_failure_travels(&failure);
        }
}

static void failure_text_is_made_printable(void **state) {
    (void)state;
    struct proto_failure failure;
    char text[2 * PROTO_TEXT_MAX];

    proto_failure_set(&failure, PROTO_E_DRIVER, "%s has %u", "a\nb\x1b[31m\xff\xc3\xa4\xc3", 3u);
    assert_string_equal(failure.text, "a?b?[31m?\xc3\xa4? has 3");
    assert_failure_travels(&failure);
    proto_failure_set(&failure, PROTO_E_DRIVER, "%s", "");
    assert_int_equal(failure.text_length, 0);
    assert_failure_travels(&failure);

    random_state = 7;
    for (unsigned round = 0; round < 5000; round++) {
        size_t length = random_to(sizeof text - 1);
        for (size_t i = 0; i < length; i++) /* many beginnings and middles of characters */
            text[i] = (char)(random_to(3) ? 0x80 + random_to(127) : 1 + random_to(126));
        text[length] = '\0';
        proto_failure_set(&failure, PROTO_E_DRIVER, "%s", text);
        assert_true(failure.text_length <= PROTO_TEXT_MAX);
        assert_true(failure.text_length >= (length > PROTO_TEXT_MAX ? PROTO_TEXT_MAX - 3 : length));
        assert_failure_travels(&failure);
    }
}

static void encoding_what_would_be_refused_is_caught(void **state) {
    (void)state;
#ifdef NDEBUG
    skip(); /* this build has no assertions */
#else
    static struct proto_message message;
    uint8_t packet[PROTO_PACKET_MAX];

    for (unsigned round = 0; round < 4; round++) {
        plain_message(round == 0   ? PROTO_ACQUIRE
                      : round == 1 ? PROTO_LEASE
                      : round == 2 ? PROTO_POOLS
                                   : PROTO_OK,
                      &message);
        switch (round) {
        case 0:
            message.acquire.size_bytes = 0;
            break;
        case 1:
            message.lease.description.kind = PROTO_SEGMENT_VMM_FD;
            break;
        case 2:
            message.pools.count = PROTO_POOLS_MAX + 1;
            break;
        default:
            message.header.operation = 63;
        }
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            signal(SIGABRT, SIG_DFL);
            close(STDERR_FILENO);
            proto_encode(&message, packet);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_survives_the_round_trip),
        cmocka_unit_test(largest_messages_fit_a_packet),
        cmocka_unit_test(truncated_and_extended_messages_are_refused),
        cmocka_unit_test(corrupted_bytes_are_refused_or_make_another_sound_message),
        cmocka_unit_test(random_damage_is_refused_or_makes_another_sound_message),
        cmocka_unit_test(messages_of_the_other_side_are_refused),
        cmocka_unit_test(unknown_operations_are_refused),
        cmocka_unit_test(each_broken_rule_is_refused),
        cmocka_unit_test(request_ids_are_where_they_belong),
        cmocka_unit_test(malformed_utf8_is_refused),
        cmocka_unit_test(only_a_described_memfd_brings_a_descriptor),
        cmocka_unit_test(numbers_have_names),
        cmocka_unit_test(failure_text_is_cut_between_characters),
        cmocka_unit_test(failure_text_is_made_printable),
        cmocka_unit_test(encoding_what_would_be_refused_is_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
