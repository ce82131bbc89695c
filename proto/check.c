/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/check.h"

#include <string.h>

#include "proto/text.h"

/* What blocks and segments are multiples of. The allocators know these numbers by names of their own; the
 * wire fixes them for both sides. */
#define BLOCK_GRANULE   UINT64_C(512)
#define SEGMENT_GRANULE (UINT64_C(2) << 20)

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

/* One function for each body that has rules: NULL, or what is wrong. */

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

const char *proto_check(const struct proto_message *message) {
    switch (message->header.operation) {
    case PROTO_HELLO:
        return check_hello(message);
    case PROTO_ACQUIRE:
        return check_acquire(message);
    case PROTO_RELEASE:
        return check_release(message);
    case PROTO_SHARE:
        return check_share(message);
    case PROTO_OPENED:
        return check_opened(message);
    case PROTO_SPLIT:
        return check_split(message);
    case PROTO_IDLE:
        return check_idle(message);
    case PROTO_CLOSED:
        return check_closed(message);
    case PROTO_HELLO_REPLY:
        return check_hello_reply(message);
    case PROTO_POOLS:
        return check_pools(message);
    case PROTO_LEASE:
        return check_lease(message);
    case PROTO_INFO:
        return check_info(message);
    case PROTO_ERROR:
        return check_failure(message);
    case PROTO_PAGE:
        return check_page(message);
    case PROTO_SEGMENTS:
        return check_segments(message);
    default: /* any contents are fine, or there are none */
        return NULL;
    }
}
