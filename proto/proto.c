/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire format's code: one table says for each operation who may send it, how long its body is, what its
 * request id must be and which function checks the body. Decoding goes: header, table, length, copy, check.
 * Nothing of a packet is looked at before its length is known to cover it. Encoding goes the other way and,
 * in builds with assertions, decodes what it made.
 *
 * There is one encoding of each message: what decodes encodes to the same bytes. Bytes that mean nothing
 * (reserved fields, the rest of a name's array) must be zero, so that neither side can leak its memory
 * through them.
 */
#include "proto/proto.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The wire format is the memory's layout of a little-endian machine; this machine is none."
#endif

/* What blocks and segments are multiples of. The allocators know these numbers by names of their own; the
 * wire fixes them for both sides. */
#define BLOCK_GRANULE   UINT64_C(512)
#define SEGMENT_GRANULE (UINT64_C(2) << 20)

#define SIZE_OF(type, size) _Static_assert(sizeof(struct type) == (size), "size of " #type)
#define OFFSET_OF(type, member, offset)                                                                      \
    _Static_assert(offsetof(struct type, member) == (offset), #type "." #member)

SIZE_OF(proto_header, 16);
OFFSET_OF(proto_header, operation, 0);
OFFSET_OF(proto_header, reserved, 2);
OFFSET_OF(proto_header, length, 4);
OFFSET_OF(proto_header, request, 8);

SIZE_OF(proto_hello, 16);
OFFSET_OF(proto_hello, magic, 0);
OFFSET_OF(proto_hello, version_min, 4);
OFFSET_OF(proto_hello, version_max, 6);
OFFSET_OF(proto_hello, flags, 8);
OFFSET_OF(proto_hello, reserved, 12);

SIZE_OF(proto_hello_reply, 24);
OFFSET_OF(proto_hello_reply, magic, 0);
OFFSET_OF(proto_hello_reply, version, 4);
OFFSET_OF(proto_hello_reply, gpu, 6);
OFFSET_OF(proto_hello_reply, session, 8);
OFFSET_OF(proto_hello_reply, daemon_pid, 16);
OFFSET_OF(proto_hello_reply, flags, 20);

SIZE_OF(proto_pool, 144);
OFFSET_OF(proto_pool, id, 0);
OFFSET_OF(proto_pool, kind, 4);
OFFSET_OF(proto_pool, device, 8);
OFFSET_OF(proto_pool, numa_node, 12);
OFFSET_OF(proto_pool, uuid, 16);
OFFSET_OF(proto_pool, limit_bytes, 32);
OFFSET_OF(proto_pool, reserved_bytes, 40);
OFFSET_OF(proto_pool, leased_bytes, 48);
OFFSET_OF(proto_pool, free_bytes, 56);
OFFSET_OF(proto_pool, quarantined_bytes, 64);
OFFSET_OF(proto_pool, largest_free_bytes, 72);
OFFSET_OF(proto_pool, name, 80);

SIZE_OF(proto_pools, 8 + 144 * PROTO_POOLS_MAX);
OFFSET_OF(proto_pools, count, 0);
OFFSET_OF(proto_pools, reserved, 4);
OFFSET_OF(proto_pools, pools, 8);

SIZE_OF(proto_acquire, 32);
OFFSET_OF(proto_acquire, pool, 0);
OFFSET_OF(proto_acquire, flags, 4);
OFFSET_OF(proto_acquire, size_bytes, 8);
OFFSET_OF(proto_acquire, least_bytes, 16);
OFFSET_OF(proto_acquire, timeout_ns, 24);

SIZE_OF(proto_release, 48);
OFFSET_OF(proto_release, lease, 0);
OFFSET_OF(proto_release, generation, 8);
OFFSET_OF(proto_release, offset_bytes, 16);
OFFSET_OF(proto_release, size_bytes, 24);
OFFSET_OF(proto_release, fence, 32);
OFFSET_OF(proto_release, reserved, 36);
OFFSET_OF(proto_release, fence_value, 40);
SIZE_OF(proto_merge, 32);
OFFSET_OF(proto_merge, lease, 0);
OFFSET_OF(proto_merge, generation, 8);
OFFSET_OF(proto_merge, other_lease, 16);
OFFSET_OF(proto_merge, other_generation, 24);

SIZE_OF(proto_lease_name, 16);
OFFSET_OF(proto_lease_name, lease, 0);
OFFSET_OF(proto_lease_name, generation, 8);

SIZE_OF(proto_share, 24);
OFFSET_OF(proto_share, lease, 0);
OFFSET_OF(proto_share, generation, 8);
OFFSET_OF(proto_share, size_bytes, 16);

SIZE_OF(proto_token, PROTO_TOKEN_BYTES);
SIZE_OF(proto_opened, 8);
SIZE_OF(proto_closed, 16);
OFFSET_OF(proto_closed, segment, 0);
OFFSET_OF(proto_closed, time_ns, 8);

SIZE_OF(proto_idle, 16);
OFFSET_OF(proto_idle, pool, 0);
OFFSET_OF(proto_idle, flags, 4);
OFFSET_OF(proto_idle, size_bytes, 8);

SIZE_OF(proto_segments, 8 + 8 * PROTO_CLOSE_MAX);
OFFSET_OF(proto_segments, count, 0);
OFFSET_OF(proto_segments, reserved, 4);
OFFSET_OF(proto_segments, ids, 8);

SIZE_OF(proto_segment, 88);
OFFSET_OF(proto_segment, id, 0);
OFFSET_OF(proto_segment, size_bytes, 8);
OFFSET_OF(proto_segment, pool, 16);
OFFSET_OF(proto_segment, kind, 20);
OFFSET_OF(proto_segment, handle, 24);

SIZE_OF(proto_lease, 144);
OFFSET_OF(proto_lease, lease, 0);
OFFSET_OF(proto_lease, generation, 8);
OFFSET_OF(proto_lease, segment, 16);
OFFSET_OF(proto_lease, offset_bytes, 24);
OFFSET_OF(proto_lease, size_bytes, 32);
OFFSET_OF(proto_lease, capacity_bytes, 40);
OFFSET_OF(proto_lease, pool, 48);
OFFSET_OF(proto_lease, reserved, 52);
OFFSET_OF(proto_lease, description, 56);

SIZE_OF(proto_info, 48);
OFFSET_OF(proto_info, segment, 0);
OFFSET_OF(proto_info, offset_bytes, 8);
OFFSET_OF(proto_info, size_bytes, 16);
OFFSET_OF(proto_info, capacity_bytes, 24);
OFFSET_OF(proto_info, pool, 32);
OFFSET_OF(proto_info, holders, 36);
OFFSET_OF(proto_info, shared, 40);
OFFSET_OF(proto_info, reserved, 44);

SIZE_OF(proto_page_reply, 8);
OFFSET_OF(proto_page_reply, size_bytes, 0);
OFFSET_OF(proto_page_reply, reserved, 4);

/* The failure travels as 8 bytes and its text; the struct's own size does not. */
OFFSET_OF(proto_failure, error, 0);
OFFSET_OF(proto_failure, text_length, 4);
OFFSET_OF(proto_failure, text, 8);

_Static_assert(sizeof(struct proto_header) + sizeof(struct proto_pools) <= PROTO_PACKET_MAX,
               "POOLS fits a packet");
_Static_assert(sizeof(struct proto_header) + sizeof(struct proto_failure) <= PROTO_PACKET_MAX,
               "ERROR fits a packet");

/* Length of the UTF-8 character at text, of which size bytes may be read: 1…4, or 0 when it is not
 * well-formed (no overlong form, no surrogate, nothing above U+10FFFF: Unicode 15, table 3-7) or is a control
 * character. */
static size_t printable_length(const char *text, size_t size) {
    const uint8_t *c = (const uint8_t *)text;
    uint8_t low = 0x80, high = 0xbf; /* range of the second byte */
    size_t length;

    if (size == 0 || c[0] < 0x20 || c[0] == 0x7f)
        return 0;
    if (c[0] < 0x80)
        return 1;
    if (c[0] >= 0xc2 && c[0] <= 0xdf) {
        length = 2;
        if (c[0] == 0xc2)
            low = 0xa0; /* U+0080…U+009F are control characters */
    } else if (c[0] >= 0xe0 && c[0] <= 0xef) {
        length = 3;
        if (c[0] == 0xe0)
            low = 0xa0;
        else if (c[0] == 0xed)
            high = 0x9f;
    } else if (c[0] >= 0xf0 && c[0] <= 0xf4) {
        length = 4;
        if (c[0] == 0xf0)
            low = 0x90;
        else if (c[0] == 0xf4)
            high = 0x8f;
    } else
        return 0;
    if (size < length || c[1] < low || c[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if (c[i] < 0x80 || c[i] > 0xbf)
            return 0;
    return length;
}

static bool text_is_printable(const char *text, size_t size) {
    while (size > 0) {
        size_t length = printable_length(text, size);
        if (length == 0)
            return false;
        text += length;
        size -= length;
    }
    return true;
}

static bool bytes_are_zero(const void *bytes, size_t size) {
    const uint8_t *b = bytes;
    uint8_t any = 0;
    for (size_t i = 0; i < size; i++)
        any |= b[i];
    return any == 0;
}

static bool is_multiple(uint64_t value, uint64_t of) {
    return value % of == 0;
}

/* Offset and size are each at most PROTO_SIZE_MAX, and so is their sum. */
static bool range_is_sane(uint64_t offset, uint64_t size) {
    return offset <= PROTO_SIZE_MAX && size <= PROTO_SIZE_MAX - offset;
}

/* The checks of the bodies: NULL, or what is wrong. Lengths and counts have been checked before. */

static const char *check_hello(const struct proto_message *message) {
    const struct proto_hello *hello = &message->hello;
    if (hello->magic != PROTO_MAGIC)
        return "HELLO: not this protocol's magic number";
    /* A range that this side does not know is well-formed: the answer is an ERROR that says so. */
    if (hello->version_min == 0 || hello->version_min > hello->version_max)
        return "HELLO: empty range of versions";
    if ((hello->flags & ~PROTO_HELLO_FLAGS) != 0)
        return "HELLO: unknown flags";
    if (hello->reserved != 0)
        return "HELLO: reserved field not zero";
    return NULL;
}

static const char *check_hello_reply(const struct proto_message *message) {
    const struct proto_hello_reply *reply = &message->hello_reply;
    if (reply->magic != PROTO_MAGIC)
        return "HELLO_REPLY: not this protocol's magic number";
    if (reply->version < PROTO_VERSION_MIN || reply->version > PROTO_VERSION_MAX)
        return "HELLO_REPLY: a version that was not offered";
    if (reply->gpu > PROTO_GPU_SIM)
        return "HELLO_REPLY: unknown kind of GPU";
    if ((reply->flags & ~PROTO_HELLO_REPLY_FLAGS) != 0)
        return "HELLO_REPLY: unknown flags";
    return NULL;
}

static const char *check_pool(const struct proto_pool *pool) {
    if (pool->id == 0)
        return "POOLS: pool id 0";
    if (pool->kind != PROTO_POOL_DEVICE && pool->kind != PROTO_POOL_HOST)
        return "POOLS: unknown kind of pool";
    if (pool->kind == PROTO_POOL_DEVICE ? pool->device < 0 : pool->device != -1)
        return "POOLS: device does not go with the kind of pool";
    if (pool->numa_node < -1)
        return "POOLS: NUMA node out of range";
    if (pool->kind == PROTO_POOL_HOST && !bytes_are_zero(pool->uuid, sizeof pool->uuid))
        return "POOLS: host pool with a UUID";
    /* The limit alone may be anything: UINT64_MAX is how "no limit" is written. */
    if (pool->reserved_bytes > PROTO_SIZE_MAX || pool->leased_bytes > PROTO_SIZE_MAX ||
        pool->free_bytes > PROTO_SIZE_MAX || pool->quarantined_bytes > PROTO_SIZE_MAX ||
        pool->largest_free_bytes > PROTO_SIZE_MAX)
        return "POOLS: size out of range";

    size_t length = strnlen(pool->name, sizeof pool->name);
    if (!bytes_are_zero(pool->name + length, sizeof pool->name - length) || length == sizeof pool->name)
        return "POOLS: name not ended and filled up by NUL";
    if (!text_is_printable(pool->name, length))
        return "POOLS: name not printable UTF-8";
    return NULL;
}

static const char *check_pools(const struct proto_message *message) {
    const struct proto_pools *pools = &message->pools;
    if (pools->reserved != 0)
        return "POOLS: reserved field not zero";
    for (uint32_t i = 0; i < pools->count; i++) {
        const char *reason = check_pool(&pools->pools[i]);
        if (reason != NULL)
            return reason;
    }
    return NULL;
}

static const char *check_acquire(const struct proto_message *message) {
    const struct proto_acquire *acquire = &message->acquire;
    if ((acquire->flags & ~PROTO_ACQUIRE_FLAGS) != 0)
        return "ACQUIRE: unknown flags";
    if (acquire->size_bytes == 0 || acquire->size_bytes > PROTO_SIZE_MAX)
        return "ACQUIRE: size out of range";
    if (acquire->least_bytes > acquire->size_bytes)
        return "ACQUIRE: least size out of range";
    return NULL;
}

static const char *check_release(const struct proto_message *message) {
    const struct proto_release *release = &message->release;
    if (!range_is_sane(release->offset_bytes, release->size_bytes))
        return "RELEASE: part out of range";
    if (release->size_bytes == 0 && release->offset_bytes != 0)
        return "RELEASE: whole lease with an offset";
    if (release->fence > PROTO_PAGE_FENCES || (release->fence == 0 && release->fence_value != 0))
        return "RELEASE: no such fence";
    if (release->reserved != 0)
        return "RELEASE: reserved field not zero";
    return NULL;
}

static const char *check_split(const struct proto_message *message) {
    const struct proto_release *split = &message->split;
    if (!range_is_sane(split->offset_bytes, split->size_bytes) || split->size_bytes == 0)
        return "SPLIT: part out of range";
    if (split->fence != 0 || split->fence_value != 0 || split->reserved != 0)
        return "SPLIT: with a fence, or a reserved field not zero";
    return NULL;
}

static const char *check_share(const struct proto_message *message) {
    return message->share.size_bytes > PROTO_SIZE_MAX ? "SHARE: size out of range" : NULL;
}

static const char *check_opened(const struct proto_message *message) {
    return message->opened.segment == 0 ? "OPENED: segment id 0" : NULL;
}

static const char *check_closed(const struct proto_message *message) {
    return message->closed.segment == 0 ? "CLOSED: segment id 0" : NULL;
}

static const char *check_idle(const struct proto_message *message) {
    const struct proto_idle *idle = &message->idle;
    if ((idle->flags & ~PROTO_IDLE_FLAGS) != 0)
        return "IDLE: unknown flags";
    if (idle->size_bytes > PROTO_SIZE_MAX)
        return "IDLE: size out of range";
    return NULL;
}

static const char *check_segments(const struct proto_message *message) {
    const struct proto_segments *segments = &message->segments;
    if (segments->count > PROTO_CLOSE_MAX)
        return "SEGMENTS: more than there can be";
    if (segments->reserved != 0)
        return "SEGMENTS: reserved field not zero";
    for (uint32_t i = 0; i < PROTO_CLOSE_MAX; i++)
        if ((segments->ids[i] != 0) != (i < segments->count))
            return "SEGMENTS: count and ids differ";
    return NULL;
}

/* What LEASE and INFO say of a block. */
static bool block_is_sane(uint64_t offset, uint64_t size, uint64_t capacity) {
    return size > 0 && size <= capacity && range_is_sane(offset, capacity) &&
           is_multiple(offset, BLOCK_GRANULE) && is_multiple(capacity, BLOCK_GRANULE);
}

static const char *check_lease(const struct proto_message *message) {
    const struct proto_lease *lease = &message->lease;
    const struct proto_segment *segment = &lease->description;

    if (lease->reserved != 0)
        return "LEASE: reserved field not zero";
    if (lease->segment == 0 || lease->pool == 0)
        return "LEASE: segment or pool id 0";
    if (!block_is_sane(lease->offset_bytes, lease->size_bytes, lease->capacity_bytes))
        return "LEASE: block out of range";

    switch (segment->kind) {
    case 0:
        return bytes_are_zero(segment, sizeof *segment) ? NULL : "LEASE: description without a kind";
    case PROTO_SEGMENT_LEGACY_IPC:
        break;
    case PROTO_SEGMENT_MEMFD:
        if (!bytes_are_zero(segment->handle, sizeof segment->handle))
            return "LEASE: memfd with a handle";
        break;
    default: /* PROTO_SEGMENT_VMM_FD among them: not in this version */
        return "LEASE: unknown kind of segment";
    }
    if (segment->id != lease->segment || segment->pool != lease->pool)
        return "LEASE: description of another segment";
    if (segment->size_bytes == 0 || segment->size_bytes > PROTO_SIZE_MAX ||
        !is_multiple(segment->size_bytes, SEGMENT_GRANULE))
        return "LEASE: segment size out of range";
    if (lease->offset_bytes + lease->capacity_bytes > segment->size_bytes)
        return "LEASE: block reaches out of its segment";
    return NULL;
}

static const char *check_info(const struct proto_message *message) {
    const struct proto_info *info = &message->info;
    if (info->reserved != 0)
        return "INFO: reserved field not zero";
    if (info->segment == 0 || info->pool == 0)
        return "INFO: segment or pool id 0";
    if (!block_is_sane(info->offset_bytes, info->size_bytes, info->capacity_bytes))
        return "INFO: block out of range";
    if (info->holders == 0)
        return "INFO: block that nobody holds";
    if (info->shared > 1)
        return "INFO: shared is neither 0 nor 1";
    return NULL;
}

static const char *check_page(const struct proto_message *message) {
    if (message->page.size_bytes != PROTO_PAGE_BYTES)
        return "PAGE: of another size than this version's";
    if (message->page.reserved != 0)
        return "PAGE: reserved field not zero";
    return NULL;
}

static const char *check_failure(const struct proto_message *message) {
    const struct proto_failure *failure = &message->failure;
    if (failure->error == 0 || failure->error > PROTO_E_MAX)
        return "ERROR: unknown error";
    if (!text_is_printable(failure->text, failure->text_length))
        return "ERROR: text not printable UTF-8";
    return NULL;
}

enum request_rule {
    REQUEST_NONZERO,
    REQUEST_ZERO,
    REQUEST_ANY, /* ERROR with id 0 speaks of the session as a whole, before the daemon closes it; RELEASE and
                    MERGE: one-way */
};

/* A body's fixed part. What may follow it (text, pools) is for variable_size(). */
struct operation {
    const char *name;
    enum proto_sender sender;
    enum request_rule request;
    bool is_variable;
    size_t fixed_size;
    const char *(*check)(const struct proto_message *message); /* NULL: any contents are fine */
};

static const struct operation operations[] = {
    [PROTO_HELLO] = {"HELLO", PROTO_FROM_CLIENT, REQUEST_NONZERO, false, sizeof(struct proto_hello),
                     check_hello},
    [PROTO_LIST_POOLS] = {"LIST_POOLS", PROTO_FROM_CLIENT, REQUEST_NONZERO, false, 0, NULL},
    [PROTO_ACQUIRE] = {"ACQUIRE", PROTO_FROM_CLIENT, REQUEST_NONZERO, false, sizeof(struct proto_acquire),
                       check_acquire},
    [PROTO_RELEASE] = {"RELEASE", PROTO_FROM_CLIENT, REQUEST_ANY, false, sizeof(struct proto_release),
                       check_release},
    [PROTO_SHARE] = {"SHARE", PROTO_FROM_CLIENT, REQUEST_NONZERO, false, sizeof(struct proto_share),
                     check_share},
    [PROTO_ATTACH] = {"ATTACH", PROTO_FROM_CLIENT, REQUEST_NONZERO, false, sizeof(struct proto_token), NULL},
    [PROTO_QUERY] = {"QUERY", PROTO_FROM_CLIENT, REQUEST_NONZERO, false, sizeof(struct proto_lease_name),
                     NULL},
    [PROTO_OPENED] = {"OPENED", PROTO_FROM_CLIENT, REQUEST_ZERO, false, sizeof(struct proto_opened),
                      check_opened},
    [PROTO_BYE] = {"BYE", PROTO_FROM_CLIENT, REQUEST_NONZERO, false, 0, NULL},
    [PROTO_SPLIT] = {"SPLIT", PROTO_FROM_CLIENT, REQUEST_NONZERO, false, sizeof(struct proto_release),
                     check_split},
    [PROTO_ASK_PAGE] = {"ASK_PAGE", PROTO_FROM_CLIENT, REQUEST_NONZERO, false, 0, NULL},
    [PROTO_MERGE] = {"MERGE", PROTO_FROM_CLIENT, REQUEST_ANY, false, sizeof(struct proto_merge), NULL},
    [PROTO_IDLE] = {"IDLE", PROTO_FROM_CLIENT, REQUEST_NONZERO, false, sizeof(struct proto_idle), check_idle},
    [PROTO_CLOSED] = {"CLOSED", PROTO_FROM_CLIENT, REQUEST_NONZERO, false, sizeof(struct proto_closed),
                      check_closed},
    [PROTO_HELLO_REPLY] = {"HELLO_REPLY", PROTO_FROM_DAEMON, REQUEST_NONZERO, false,
                           sizeof(struct proto_hello_reply), check_hello_reply},
    [PROTO_POOLS] = {"POOLS", PROTO_FROM_DAEMON, REQUEST_NONZERO, true, offsetof(struct proto_pools, pools),
                     check_pools},
    [PROTO_LEASE] = {"LEASE", PROTO_FROM_DAEMON, REQUEST_NONZERO, false, sizeof(struct proto_lease),
                     check_lease},
    [PROTO_OK] = {"OK", PROTO_FROM_DAEMON, REQUEST_NONZERO, false, 0, NULL},
    [PROTO_TOKEN] = {"TOKEN", PROTO_FROM_DAEMON, REQUEST_NONZERO, false, sizeof(struct proto_token), NULL},
    [PROTO_INFO] = {"INFO", PROTO_FROM_DAEMON, REQUEST_NONZERO, false, sizeof(struct proto_info), check_info},
    [PROTO_ERROR] = {"ERROR", PROTO_FROM_DAEMON, REQUEST_ANY, true, offsetof(struct proto_failure, text),
                     check_failure},
    [PROTO_PAGE] = {"PAGE", PROTO_FROM_DAEMON, REQUEST_NONZERO, false, sizeof(struct proto_page_reply),
                    check_page},
    [PROTO_SEGMENTS] = {"SEGMENTS", PROTO_FROM_DAEMON, REQUEST_NONZERO, false, sizeof(struct proto_segments),
                        check_segments},
};

static const struct operation *operation_find(unsigned number) {
    if (number >= sizeof operations / sizeof *operations || operations[number].name == NULL)
        return NULL;
    return &operations[number];
}

/* All bodies start where the union does. */
#define BODY_OFFSET offsetof(struct proto_message, hello)
_Static_assert(BODY_OFFSET == sizeof(struct proto_header),
               "the body follows the header, in memory as in the packet");

/* Bytes that follow the fixed part, from the count in it. Returns false when the count is beyond its limit.
 */
static bool variable_size(const struct proto_message *message, size_t *ret_size) {
    switch (message->header.operation) {
    case PROTO_POOLS:
        if (message->pools.count > PROTO_POOLS_MAX)
            return false;
        *ret_size = message->pools.count * sizeof(struct proto_pool);
        return true;
    case PROTO_ERROR:
        if (message->failure.text_length > PROTO_TEXT_MAX)
            return false;
        *ret_size = message->failure.text_length;
        return true;
    default:
        *ret_size = 0;
        return true;
    }
}

/* NULL, or what is wrong. */
static const char *decode(enum proto_sender sender, const uint8_t *packet, size_t size,
                          struct proto_message *message) {
    struct proto_header *header = &message->header;
    size_t rest;

    if (size < sizeof *header)
        return "packet shorter than a header";
    if (size > PROTO_PACKET_MAX)
        return "packet longer than any may be";
    memcpy(header, packet, sizeof *header);
    if (header->length != size)
        return "length in the header is not the packet's";
    if (header->reserved != 0)
        return "reserved field of the header not zero";
    const struct operation *operation = operation_find(header->operation);
    if (operation == NULL)
        return "unknown operation";
    if (operation->sender != sender)
        return "operation of the other side";
    if (operation->request == REQUEST_NONZERO && header->request == 0)
        return "request id 0";
    if (operation->request == REQUEST_ZERO && header->request != 0)
        return "one-way message with a request id";

    size -= sizeof *header;
    packet += sizeof *header;
    uint8_t *body = (uint8_t *)message + BODY_OFFSET;
    if (operation->is_variable ? size < operation->fixed_size : size != operation->fixed_size)
        return "length does not go with the operation";
    memcpy(body, packet, operation->fixed_size);
    if (!variable_size(message, &rest))
        return "count beyond its limit";
    if (size - operation->fixed_size != rest)
        return "count does not go with the length";
    memcpy(body + operation->fixed_size, packet + operation->fixed_size, rest);
    if (header->operation == PROTO_ERROR)
        message->failure.text[rest] = '\0';
    return operation->check != NULL ? operation->check(message) : NULL;
}

int proto_decode(enum proto_sender sender, const void *packet, size_t size, struct proto_message *ret_message,
                 const char **ret_reason) {
    const char *reason = decode(sender, packet, size, ret_message);
    if (reason == NULL)
        return 0;
    if (ret_reason != NULL)
        *ret_reason = reason;
    return -EBADMSG;
}

size_t proto_encode(const struct proto_message *message, void *packet) {
    const struct operation *operation = operation_find(message->header.operation);
    size_t rest = 0;

    assert(operation != NULL);
    bool within_limits = variable_size(message, &rest);
    assert(within_limits);
    (void)within_limits;

    struct proto_header header = {
        .operation = message->header.operation,
        .length = (uint32_t)(sizeof header + operation->fixed_size + rest),
        .request = message->header.request,
    };
    memcpy(packet, &header, sizeof header);
    memcpy((uint8_t *)packet + sizeof header, (const uint8_t *)message + BODY_OFFSET,
           operation->fixed_size + rest);
#ifndef NDEBUG
    struct proto_message decoded;
    const char *reason = decode(operation->sender, packet, header.length, &decoded);
    assert(reason == NULL);
#endif
    return header.length;
}

unsigned proto_message_fds(const struct proto_message *message) {
    if (message->header.operation == PROTO_HELLO_REPLY)
        return (message->hello_reply.flags & PROTO_HELLO_REPLY_EVENTFD) != 0;
    if (message->header.operation == PROTO_PAGE)
        return 1;
    if (message->header.operation != PROTO_LEASE)
        return 0;
    return message->lease.description.kind == PROTO_SEGMENT_MEMFD ||
           message->lease.description.kind == PROTO_SEGMENT_VMM_FD;
}

const char *proto_operation_name(unsigned operation) {
    const struct operation *found = operation_find(operation);
    return found != NULL ? found->name : "unknown operation";
}

const char *proto_error_text(unsigned error) {
    static const char *const texts[] = {
        [PROTO_E_INVALID] = "an argument is out of its range",
        [PROTO_E_VERSION] = "the two sides have no protocol version in common",
        [PROTO_E_NO_POOL] = "there is no pool with this id",
        [PROTO_E_TOO_LARGE] = "larger than the pool may ever be",
        [PROTO_E_EXHAUSTED] = "the pool has no room, and the deadline passed",
        [PROTO_E_STALE] = "no such lease in this session, or its generation has passed",
        [PROTO_E_NO_TOKEN] = "nothing is shared under this token, or not with this user",
        [PROTO_E_SHARED] = "a block that others hold too cannot be given back in parts, split or merged",
        [PROTO_E_LIMIT] = "the session or the tenant has as many as it may",
        [PROTO_E_DRIVER] = "the driver or the kernel refused",
        [PROTO_E_SHUTDOWN] = "the daemon is stopping",
        [PROTO_E_NO_MEMORY] = "the daemon has no memory left for its bookkeeping",
    };
    _Static_assert(sizeof texts / sizeof *texts == PROTO_E_MAX + 1, "a text for each error");
    return error != 0 && error <= PROTO_E_MAX ? texts[error] : "unknown error";
}

/* Length of text without a last character that was cut in two. */
static size_t whole_characters(const char *text, size_t length) {
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        uint8_t c = (uint8_t)text[length - back];
        if (c < 0x80)
            break;
        if (c < 0xc0) /* in the middle of a character: its first byte lies further down */
            continue;
        size_t whole = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
        return whole > back ? length - back : length;
    }
    return length;
}

void proto_failure_set(struct proto_failure *failure, enum proto_error error, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    int printed = vsnprintf(failure->text, sizeof failure->text, format, arguments);
    va_end(arguments);

    size_t length = printed < 0 ? 0 : (size_t)printed;
    if (length > PROTO_TEXT_MAX)
        length = whole_characters(failure->text, PROTO_TEXT_MAX);
    failure->text[length] = '\0';
    /* Arguments may hold what others chose (a command's name, a path): what is not printable must not reach a
     * terminal, nor make the message one that cannot be sent. */
    for (size_t at = 0; at < length;) {
        size_t character = printable_length(failure->text + at, length - at);
        if (character == 0) {
            failure->text[at] = '?';
            character = 1;
        }
        at += character;
    }
    failure->error = error;
    failure->text_length = (uint32_t)length;
}
