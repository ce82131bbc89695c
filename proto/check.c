/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/check.h"

#include <string.h>

#include "proto/channel.h"
#include "proto/text.h"

/* Blocks and segments are multiples of these. The allocators know these numbers by names of their own; the
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

static bool segment_size_is_sane(uint64_t size) {
    return size != 0 && size <= PROTO_SIZE_MAX && is_multiple(size, SEGMENT_GRANULE);
}

/* The texts of what is wrong name these limits. */
#define TEXTS_NAME(limit, number) _Static_assert((limit) == (number), "the texts below name another " #limit)
TEXTS_NAME(PROTO_SIZE_MAX, UINT64_C(1) << 56);
TEXTS_NAME(PROTO_PAGE_FENCES, 512);
TEXTS_NAME(PROTO_CLOSE_MAX, 64);
TEXTS_NAME(PROTO_PARTS_MAX, 64);
TEXTS_NAME(PROTO_ROW_PARTS_MAX, 4096);
TEXTS_NAME(PROTO_LEASES_MAX, 4096);
TEXTS_NAME(PROTO_LEASES_PER_MESSAGE, 64);
TEXTS_NAME(PROTO_PAGE_BYTES, 65536);
TEXTS_NAME(PROTO_BOARD_SLOTS, 1024);
TEXTS_NAME(PROTO_BOARD_WORDS, 64);
TEXTS_NAME(PROTO_BOARD_BYTES, 1048576);
TEXTS_NAME(PROTO_HOLDERS_MAX, 64);
TEXTS_NAME(PROTO_NAME_BUFFERS_MAX, 64);
TEXTS_NAME(PROTO_DIRECTORY_BYTES_MAX, 65536);
TEXTS_NAME(PROTO_NAMES_PER_MESSAGE, 64);
TEXTS_NAME(PROTO_CHANNEL_CONSUMERS_MAX, 16);

/* One function for each body that has rules: NULL, or what is wrong, which begins with the message's and the
 * field's names. */

static const char *check_hello(const struct proto_message *message) {
    const struct proto_hello *hello = &message->hello;
    if (hello->magic != PROTO_MAGIC)
        return "HELLO.magic: not this protocol's number";
    /* A range that this side does not know is well-formed: the answer is an ERROR that says so. */
    if (hello->version_min == 0 || hello->version_min > hello->version_max)
        return "HELLO.version_min: 0, or above version_max";
    if ((hello->flags & ~PROTO_HELLO_FLAGS) != 0)
        return "HELLO.flags: unknown ones are set";
    if ((hello->flags & PROTO_HELLO_QUESTION) != 0 && hello->flags != PROTO_HELLO_QUESTION)
        return "HELLO.flags: QUESTION is set with others";
    if (hello->reserved != 0)
        return "HELLO.reserved: not 0";
    return NULL;
}

static const char *check_hello_reply(const struct proto_message *message) {
    const struct proto_hello_reply *reply = &message->hello_reply;
    if (reply->magic != PROTO_MAGIC)
        return "HELLO_REPLY.magic: not this protocol's number";
    if (reply->version < PROTO_VERSION_MIN || reply->version > PROTO_VERSION_MAX)
        return "HELLO_REPLY.version: not one that was offered";
    if (reply->gpu > PROTO_GPU_SIM)
        return "HELLO_REPLY.gpu: unknown kind";
    if ((reply->flags & ~PROTO_HELLO_REPLY_FLAGS) != 0)
        return "HELLO_REPLY.flags: unknown ones are set";
    size_t length = strnlen(reply->admin_path, sizeof reply->admin_path);
    if (length == sizeof reply->admin_path ||
        !bytes_are_zero(reply->admin_path + length, sizeof reply->admin_path - length))
        return "HELLO_REPLY.admin_path: not ended and filled up by NUL";
    if (!text_is_printable(reply->admin_path, length))
        return "HELLO_REPLY.admin_path: not printable UTF-8";
    return NULL;
}

/* The limit alone may be anything: UINT64_MAX is how "no limit" is written. */
static const char *check_pool_sizes(const struct proto_pool *pool) {
    if (pool->reserved_bytes > PROTO_SIZE_MAX)
        return "POOLS.pools.reserved_bytes: above 2^56";
    if (pool->leased_bytes > PROTO_SIZE_MAX)
        return "POOLS.pools.leased_bytes: above 2^56";
    if (pool->free_bytes > PROTO_SIZE_MAX)
        return "POOLS.pools.free_bytes: above 2^56";
    if (pool->quarantined_bytes > PROTO_SIZE_MAX)
        return "POOLS.pools.quarantined_bytes: above 2^56";
    if (pool->largest_free_bytes > PROTO_SIZE_MAX)
        return "POOLS.pools.largest_free_bytes: above 2^56";
    return NULL;
}

static const char *check_pool_name(const struct proto_pool *pool) {
    size_t length = strnlen(pool->name, sizeof pool->name);
    if (!bytes_are_zero(pool->name + length, sizeof pool->name - length) || length == sizeof pool->name)
        return "POOLS.pools.name: not ended and filled up by NUL";
    if (!text_is_printable(pool->name, length))
        return "POOLS.pools.name: not printable UTF-8";
    return NULL;
}

static const char *check_pool(const struct proto_pool *pool) {
    if (pool->id == 0)
        return "POOLS.pools.id: 0";
    if (pool->kind != PROTO_POOL_DEVICE && pool->kind != PROTO_POOL_HOST)
        return "POOLS.pools.kind: unknown";
    if ((pool->flags & ~PROTO_POOL_FLAGS) != 0)
        return "POOLS.pools.flags: unknown ones are set";
    if (pool->kind == PROTO_POOL_DEVICE ? pool->device < 0 : pool->device != -1)
        return "POOLS.pools.device: not one that goes with the kind";
    if (pool->numa_node < -1)
        return "POOLS.pools.numa_node: below -1";
    if (pool->kind == PROTO_POOL_HOST && !bytes_are_zero(pool->uuid, sizeof pool->uuid))
        return "POOLS.pools.uuid: not 0 in a host pool";
    const char *flaw = check_pool_sizes(pool);
    return flaw != NULL ? flaw : check_pool_name(pool);
}

static const char *check_pools(const struct proto_message *message) {
    const struct proto_pools *pools = &message->pools;
    if (pools->reserved != 0)
        return "POOLS.reserved: not 0";
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
        return "ACQUIRE.flags: unknown ones are set";
    if (acquire->size_bytes == 0 || acquire->size_bytes > PROTO_SIZE_MAX)
        return "ACQUIRE.size_bytes: 0, or above 2^56";
    if (acquire->least_bytes > acquire->size_bytes)
        return "ACQUIRE.least_bytes: above size_bytes";
    return NULL;
}

static const char *check_acquire_segments(const struct proto_message *message) {
    const struct proto_acquire_segments *acquire = &message->acquire_segments;
    if ((acquire->flags & ~PROTO_ACQUIRE_FLAGS) != 0)
        return "ACQUIRE_SEGMENTS.flags: unknown ones are set";
    if (!segment_size_is_sane(acquire->segment_bytes))
        return "ACQUIRE_SEGMENTS.segment_bytes: 0, above 2^56 or no multiple of 2 MiB";
    if (acquire->count == 0 || acquire->count > PROTO_LEASES_MAX)
        return "ACQUIRE_SEGMENTS.count: 0, or above 4096";
    if (acquire->segment_bytes > PROTO_SIZE_MAX / acquire->count)
        return "ACQUIRE_SEGMENTS.segment_bytes * count: above 2^56";
    if (acquire->reserved != 0)
        return "ACQUIRE_SEGMENTS.reserved: not 0";
    return NULL;
}

static const char *check_release(const struct proto_message *message) {
    const struct proto_release *release = &message->release;
    if (!range_is_sane(release->offset_bytes, release->size_bytes))
        return "RELEASE.offset_bytes + size_bytes: above 2^56";
    if (release->size_bytes == 0 && release->offset_bytes != 0)
        return "RELEASE.size_bytes: 0, which is the whole lease, beside an offset_bytes";
    if (release->fence > PROTO_PAGE_FENCES)
        return "RELEASE.fence: above 512";
    if (release->fence == 0 && release->fence_value != 0)
        return "RELEASE.fence_value: not 0, without a fence";
    if (release->board_word > PROTO_BOARD_WORDS)
        return "RELEASE.board_word: above 64";
    if (release->board_word == 0 && release->board_value != 0)
        return "RELEASE.board_value: not 0, without a board_word";
    if (release->board_word != 0 && release->size_bytes != 0)
        return "RELEASE.board_word: not 0, beside a size_bytes";
    return NULL;
}

static const char *check_split(const struct proto_message *message) {
    const struct proto_release *split = &message->split;
    if (!range_is_sane(split->offset_bytes, split->size_bytes))
        return "SPLIT.offset_bytes + size_bytes: above 2^56";
    if (split->size_bytes == 0)
        return "SPLIT.size_bytes: 0";
    if (split->fence != 0)
        return "SPLIT.fence: not 0";
    if (split->board_word != 0)
        return "SPLIT.board_word: not 0";
    if (split->fence_value != 0)
        return "SPLIT.fence_value: not 0";
    if (split->board_value != 0)
        return "SPLIT.board_value: not 0";
    return NULL;
}

/* The fields that SHARE and SEND have in common. */
#define SHARE_FLAW(message, share)                                                                           \
    (!range_is_sane((share)->offset_bytes, (share)->part_bytes) ? message                                    \
         ".offset_bytes + part_bytes: above 2^56"                                                            \
     : (share)->part_bytes == 0 && (share)->offset_bytes != 0 ? message                                      \
         ".offset_bytes: not 0 without a part"                                                               \
     : (share)->size_bytes > PROTO_SIZE_MAX ? message ".size_bytes: above 2^56"                              \
                                            : NULL)

static const char *check_share(const struct proto_message *message) {
    return SHARE_FLAW("SHARE", &message->share);
}

static const char *check_token(const struct proto_message *message) {
    return message->token.lease == 0 ? "TOKEN.lease: 0" : NULL;
}

static const char *check_send(const struct proto_message *message) {
    const struct proto_send *send = &message->send;
    const char *flaw = SHARE_FLAW("SEND", &send->share);
    if (flaw != NULL)
        return flaw;
    if (send->lifetime_ns == 0 || send->lifetime_ns > PROTO_PARCEL_NS_MAX)
        return "SEND.lifetime_ns: 0, or above a day";
    if (send->takers == 0)
        return "SEND.takers: 0";
    if ((send->flags & ~PROTO_SEND_HELD) != 0)
        return "SEND.flags: unknown";
    return NULL;
}

static const char *check_opened(const struct proto_message *message) {
    return message->opened.segment == 0 ? "OPENED.segment: 0" : NULL;
}

static const char *check_cancel(const struct proto_message *message) {
    return message->cancel.request == 0 ? "CANCEL.request: 0" : NULL;
}

static const char *check_reclaimed(const struct proto_message *message) {
    const struct proto_reclaimed *reclaimed = &message->reclaimed;
    if (reclaimed->pool == 0)
        return "RECLAIMED.pool: 0";
    if (reclaimed->outcome < PROTO_RECLAIM_DONE || reclaimed->outcome > PROTO_RECLAIM_PENDING)
        return "RECLAIMED.outcome: unknown";
    if (reclaimed->kept_bytes > PROTO_SIZE_MAX)
        return "RECLAIMED.kept_bytes: above 2^56";
    return NULL;
}

/* The flaw of a member `name`. */
#define NAME_FLAW(message, text)                                                                             \
    ((text)[0] == '\0'                          ? message ".name: empty"                                     \
     : !text_is_filled_up((text), sizeof(text)) ? message ".name: not ended and filled up by NUL"            \
     : !text_is_printable((text), strlen(text)) ? message ".name: not printable UTF-8"                       \
                                                : NULL)

static const char *check_name(const struct proto_message *message) {
    return NAME_FLAW("NAME", message->name.name);
}

static const char *check_closed(const struct proto_message *message) {
    return message->closed.segment == 0 ? "CLOSED.segment: 0" : NULL;
}

static const char *check_idle(const struct proto_message *message) {
    const struct proto_idle *idle = &message->idle;
    if ((idle->flags & ~PROTO_IDLE_FLAGS) != 0)
        return "IDLE.flags: unknown ones are set";
    if (idle->size_bytes > PROTO_SIZE_MAX)
        return "IDLE.size_bytes: above 2^56";
    return NULL;
}

/* Whether there are so many ids, and zeros behind them. */
static bool ids_are_counted(const uint64_t ids[static PROTO_CLOSE_MAX], uint32_t count) {
    for (uint32_t i = 0; i < PROTO_CLOSE_MAX; i++)
        if ((ids[i] != 0) != (i < count))
            return false;
    return true;
}

static const char *check_offer(const struct proto_message *message) {
    const struct proto_offer *offer = &message->offer;
    if (offer->count == 0 || offer->count > PROTO_CLOSE_MAX)
        return "OFFER.count: 0, or above 64";
    return ids_are_counted(offer->ids, offer->count) ? NULL : "OFFER.count: not the ids that are there";
}

static const char *check_segments(const struct proto_message *message) {
    const struct proto_segments *segments = &message->segments;
    if (segments->count > PROTO_CLOSE_MAX)
        return "SEGMENTS.count: above 64";
    if (segments->reserved != 0)
        return "SEGMENTS.reserved: not 0";
    return ids_are_counted(segments->ids, segments->count) ? NULL
                                                           : "SEGMENTS.count: not the ids that are there";
}

static const char *check_ask_parts(const struct proto_message *message) {
    if (message->ask_parts.part >= PROTO_ROW_PARTS_MAX)
        return "ASK_PARTS.part: above 4095";
    return message->ask_parts.flags != 0 ? "ASK_PARTS.flags: not 0" : NULL;
}

static const char *check_describe(const struct proto_message *message) {
    if (message->describe.part >= PROTO_ROW_PARTS_MAX)
        return "DESCRIBE.part: above 4095";
    return (message->describe.flags & ~PROTO_DESCRIBE_AGAIN) != 0 ? "DESCRIBE.flags: unknown ones" : NULL;
}

static const char *check_part(const struct proto_part *part) {
    if (part->segment == 0)
        return "PARTS.parts.segment: 0";
    if (!segment_size_is_sane(part->segment_bytes))
        return "PARTS.parts.segment_bytes: 0, above 2^56 or no multiple of 2 MiB";
    if (!is_multiple(part->offset_bytes, BLOCK_GRANULE))
        return "PARTS.parts.offset_bytes: no multiple of 512";
    if (part->size_bytes == 0 || !is_multiple(part->size_bytes, BLOCK_GRANULE))
        return "PARTS.parts.size_bytes: 0, or no multiple of 512";
    if (!range_is_sane(part->offset_bytes, part->size_bytes) ||
        part->offset_bytes + part->size_bytes > part->segment_bytes)
        return "PARTS.parts.offset_bytes + size_bytes: beyond segment_bytes";
    return NULL;
}

static const char *check_parts(const struct proto_message *message) {
    const struct proto_parts *parts = &message->parts;
    if (parts->count == 0 || parts->count > PROTO_PARTS_MAX)
        return "PARTS.count: 0, or above 64";
    if (parts->total < 2 || parts->total > PROTO_ROW_PARTS_MAX || parts->count > parts->total)
        return "PARTS.total: below 2 or count, or above 4096";
    for (uint32_t i = 0; i < PROTO_PARTS_MAX; i++) {
        const char *flaw = i < parts->count ? check_part(&parts->parts[i])
                           : bytes_are_zero(&parts->parts[i], sizeof parts->parts[i])
                               ? NULL
                               : "PARTS.count: not the parts that are there";
        if (flaw != NULL)
            return flaw;
    }
    return NULL;
}

/* The fields of LEASE and INFO that describe a block. */
#define BLOCK_FLAW(message, block)                                                                           \
    ((block)->size_bytes == 0 || (block)->size_bytes > (block)->capacity_bytes ? message                     \
         ".size_bytes: 0, or above capacity_bytes"                                                           \
     : !range_is_sane((block)->offset_bytes, (block)->capacity_bytes) ? message                              \
         ".offset_bytes + capacity_bytes: above 2^56"                                                        \
     : !is_multiple((block)->offset_bytes, BLOCK_GRANULE)   ? message ".offset_bytes: no multiple of 512"    \
     : !is_multiple((block)->capacity_bytes, BLOCK_GRANULE) ? message ".capacity_bytes: no multiple of 512"  \
     : (block)->parts == 1 || (block)->parts > PROTO_ROW_PARTS_MAX ? message ".parts: 1, or above 4096"      \
                                                                   : NULL)

static const char *check_description(const struct proto_lease *lease) {
    const struct proto_segment *segment = &lease->description;

    switch (segment->kind) {
    case 0:
        return bytes_are_zero(segment, sizeof *segment)
                   ? NULL
                   : "LEASE.description.kind: 0, beside fields that are not 0";
    case PROTO_SEGMENT_LEGACY_IPC:
        break;
    case PROTO_SEGMENT_MEMFD:
    case PROTO_SEGMENT_VMM_FD:
    case PROTO_SEGMENT_HOST_VMM_FD:
        if (!bytes_are_zero(segment->handle, sizeof segment->handle))
            return "LEASE.description.handle: not 0 beside a descriptor";
        break;
    default:
        return "LEASE.description.kind: unknown";
    }
    if (segment->id != lease->segment)
        return "LEASE.description.id: not the lease's segment";
    if (segment->pool != lease->pool)
        return "LEASE.description.pool: not the lease's pool";
    if (!segment_size_is_sane(segment->size_bytes))
        return "LEASE.description.size_bytes: 0, above 2^56 or no multiple of 2 MiB";
    if (lease->parts == 0)
        return lease->offset_bytes + lease->capacity_bytes > segment->size_bytes
                   ? "LEASE.offset_bytes + capacity_bytes: beyond the segment's size_bytes, beside parts 0"
                   : NULL;
    if (segment->kind != PROTO_SEGMENT_VMM_FD)
        return "LEASE.parts: not 0, beside another description.kind than 3";
    if (lease->offset_bytes >= segment->size_bytes ||
        lease->offset_bytes + lease->capacity_bytes <= segment->size_bytes)
        return "LEASE.parts: not 0, and offset_bytes + capacity_bytes not beyond description.size_bytes";
    return NULL;
}

static const char *check_lease(const struct proto_message *message) {
    const struct proto_lease *lease = &message->lease;

    if (lease->segment == 0)
        return "LEASE.segment: 0";
    if (lease->pool == 0)
        return "LEASE.pool: 0";
    const char *flaw = BLOCK_FLAW("LEASE", lease);
    return flaw != NULL ? flaw : check_description(lease);
}

static const char *check_leases(const struct proto_message *message) {
    const struct proto_leases *leases = &message->leases;

    if (leases->pool == 0)
        return "LEASES.pool: 0";
    if (leases->count == 0 || leases->count > PROTO_LEASES_PER_MESSAGE)
        return "LEASES.count: 0, or above 64";
    if (leases->n_described > leases->count)
        return "LEASES.n_described: above count";
    if (leases->n_left > PROTO_LEASES_MAX - leases->count)
        return "LEASES.n_left: above 4096 with count";
    if (!segment_size_is_sane(leases->segment_bytes))
        return "LEASES.segment_bytes: 0, above 2^56 or no multiple of 2 MiB";
    for (uint32_t i = 0; i < PROTO_LEASES_PER_MESSAGE; i++) {
        const struct proto_segment_lease *lease = &leases->leases[i];
        if (i < leases->count ? lease->segment == 0 : !bytes_are_zero(lease, sizeof *lease))
            return i < leases->count ? "LEASES.leases.segment: 0, in one of the first count leases"
                                     : "LEASES.count: not the leases that are there";
    }
    return NULL;
}

static const char *check_info(const struct proto_message *message) {
    const struct proto_info *info = &message->info;
    if (info->segment == 0)
        return "INFO.segment: 0";
    if (info->pool == 0)
        return "INFO.pool: 0";
    if (info->holders == 0)
        return "INFO.holders: 0";
    if (info->shared > 1)
        return "INFO.shared: neither 0 nor 1";
    return BLOCK_FLAW("INFO", info);
}

static const char *check_board(const struct proto_message *message) {
    if (message->board.size_bytes != PROTO_BOARD_BYTES)
        return "BOARD.size_bytes: not 1048576";
    if (message->board.slot >= PROTO_BOARD_SLOTS)
        return "BOARD.slot: above 1023";
    return NULL;
}

static const char *check_holders(const struct proto_message *message) {
    const struct proto_holders *holders = &message->holders;

    if (holders->count > PROTO_HOLDERS_MAX)
        return "HOLDERS.count: above 64";
    if (holders->reserved != 0)
        return "HOLDERS.reserved: not 0";
    for (uint32_t i = 0; i < PROTO_HOLDERS_MAX; i++) {
        const struct proto_board_fence *fence = &holders->fences[i];
        if (i >= holders->count && (fence->slot != 0 || fence->word != 0 || fence->value != 0))
            return "HOLDERS.count: not the fences that are there";
        if (fence->slot >= PROTO_BOARD_SLOTS)
            return "HOLDERS.slot: above 1023";
        if (fence->word >= PROTO_BOARD_WORDS)
            return "HOLDERS.word: above 63";
    }
    return NULL;
}

static bool fence_is_sane(const struct proto_board_fence *fence, uint32_t has_fence) {
    return has_fence == 1 ? fence->slot < PROTO_BOARD_SLOTS && fence->word < PROTO_BOARD_WORDS
                          : has_fence == 0 && bytes_are_zero(fence, sizeof *fence);
}

/* n_bytes is known to be no more than a message may have. */
#define DIRECTORY_FLAW(message, part)                                                                        \
    ((part)->n_bytes == 0                                                 ? message ".n_bytes: 0"            \
     : (part)->offset_bytes > PROTO_DIRECTORY_BYTES_MAX - (part)->n_bytes ? message                          \
         ".offset_bytes + n_bytes: above 65536"                                                              \
                                                                          : NULL)

static const char *check_write_directory(const struct proto_message *message) {
    return DIRECTORY_FLAW("WRITE_DIRECTORY", &message->write_directory);
}

static const char *check_directory(const struct proto_message *message) {
    return DIRECTORY_FLAW("DIRECTORY", &message->directory);
}

static const char *check_publish_buffer(const struct proto_publish_buffer *buffer) {
    if (buffer->size_bytes == 0 || buffer->size_bytes > PROTO_SIZE_MAX)
        return "PUBLISH.buffers.size_bytes: 0, or above 2^56";
    if (!fence_is_sane(&buffer->fence, buffer->has_fence))
        return "PUBLISH.buffers.has_fence: neither 0 without a fence, nor 1 with one of the board's";
    return buffer->reserved != 0 ? "PUBLISH.buffers.reserved: not 0" : NULL;
}

static const char *check_publish(const struct proto_message *message) {
    const struct proto_publish *publish = &message->publish;
    const char *flaw = NAME_FLAW("PUBLISH", publish->name);

    if (flaw != NULL)
        return flaw;
    if ((publish->flags & ~PROTO_PUBLISH_FLAGS) != 0)
        return "PUBLISH.flags: unknown ones are set";
    if (publish->count == 0 || publish->count > PROTO_NAME_BUFFERS_MAX)
        return "PUBLISH.count: 0, or above 64";
    if (publish->directory_bytes > PROTO_DIRECTORY_BYTES_MAX)
        return "PUBLISH.directory_bytes: above 65536";
    if (publish->reserved != 0)
        return "PUBLISH.reserved: not 0";
    for (uint32_t i = 0; flaw == NULL && i < PROTO_NAME_BUFFERS_MAX; i++)
        flaw = bytes_are_zero(&publish->buffers[i], sizeof publish->buffers[i]) == (i < publish->count)
                   ? "PUBLISH.count: not the buffers that are there"
               : i < publish->count ? check_publish_buffer(&publish->buffers[i])
                                    : NULL;
    return flaw;
}

static const char *check_unpublish(const struct proto_message *message) {
    const struct proto_unpublish *unpublish = &message->unpublish;

    if ((unpublish->flags & ~PROTO_UNPUBLISH_BUILD) != 0)
        return "UNPUBLISH.flags: unknown ones are set";
    if (unpublish->reserved != 0)
        return "UNPUBLISH.reserved: not 0";
    return NAME_FLAW("UNPUBLISH", unpublish->name);
}

static const char *check_open_name(const struct proto_message *message) {
    const struct proto_open_name *open = &message->open_name;

    if ((open->flags & ~PROTO_OPEN_NAME_FLAGS) != 0 || open->flags == PROTO_OPEN_NAME_FLAGS)
        return "OPEN_NAME.flags: unknown ones are set, or BUILD with CHANGE";
    if (open->reserved != 0)
        return "OPEN_NAME.reserved: not 0";
    return NAME_FLAW("OPEN_NAME", open->name);
}

static const char *check_read_directory(const struct proto_message *message) {
    return message->read_directory.reserved != 0 ? "READ_DIRECTORY.reserved: not 0"
                                                 : NAME_FLAW("READ_DIRECTORY", message->read_directory.name);
}

static bool is_place(uint32_t place) {
    return place < PROTO_CHANNEL_PLACES;
}

static const char *check_make_channel(const struct proto_message *message) {
    const struct proto_make_channel *make = &message->make_channel;
    const struct proto_channel_capacities capacities = {make->slot_bytes, make->n_slots, make->metadata_bytes,
                                                        make->n_consumers, make->policy};

    if (!proto_channel_are_valid(&capacities) || make->slot_bytes > PROTO_SIZE_MAX / make->n_slots)
        return "MAKE_CHANNEL.slot_bytes, n_slots, metadata_bytes, n_consumers or policy: out of range, or "
               "n_slots * "
               "slot_bytes above 2^56";
    if ((make->flags & ~PROTO_MAKE_CHANNEL_KEEP) != 0)
        return "MAKE_CHANNEL.flags: unknown ones are set";
    if (make->reserved != 0)
        return "MAKE_CHANNEL.reserved: not 0";
    return NAME_FLAW("MAKE_CHANNEL", make->name);
}

static const char *check_join_channel(const struct proto_message *message) {
    const struct proto_join_channel *join = &message->join_channel;

    if (!is_place(join->place) && join->place != PROTO_CHANNEL_ANY_CONSUMER)
        return "JOIN_CHANNEL.place: above 16, and not 2^32 - 1";
    if (join->reserved != 0)
        return "JOIN_CHANNEL.reserved: not 0";
    return NAME_FLAW("JOIN_CHANNEL", join->name);
}

static const char *check_leave_channel(const struct proto_message *message) {
    if (!is_place(message->leave_channel.page))
        return "LEAVE_CHANNEL.page: above 16";
    return message->leave_channel.reserved != 0 ? "LEAVE_CHANNEL.reserved: not 0" : NULL;
}

static const char *check_ask_channel_memory(const struct proto_message *message) {
    if (message->ask_channel_memory.page > PROTO_CHANNEL_PLACES)
        return "ASK_CHANNEL_MEMORY.page: above 17";
    return message->ask_channel_memory.reserved != 0 ? "ASK_CHANNEL_MEMORY.reserved: not 0" : NULL;
}

static const char *check_channel(const struct proto_message *message) {
    const struct proto_channel_reply *reply = &message->channel;
    const struct proto_channel_capacities capacities = {
        reply->slot_bytes, reply->n_slots, reply->metadata_bytes, reply->n_consumers, reply->policy};

    if (reply->channel == 0)
        return "CHANNEL.channel: 0";
    if (!proto_channel_are_valid(&capacities) || reply->slot_bytes > PROTO_SIZE_MAX / reply->n_slots)
        return "CHANNEL.slot_bytes, n_slots, metadata_bytes, n_consumers or policy: out of range, or n_slots "
               "* "
               "slot_bytes above 2^56";
    if (reply->place > reply->n_consumers)
        return "CHANNEL.place: above n_consumers";
    return reply->pool == 0 ? "CHANNEL.pool: 0" : NULL;
}

static const char *check_channel_memory(const struct proto_message *message) {
    const struct proto_channel_page_reply *reply = &message->channel_memory;

    if (reply->channel == 0)
        return "CHANNEL_MEMORY.channel: 0";
    if (reply->size_bytes == 0 || !is_multiple(reply->size_bytes, PROTO_CHANNEL_PAGE))
        return "CHANNEL_MEMORY.size_bytes: 0, or no multiple of 4096";
    if (reply->page > PROTO_CHANNEL_PLACES)
        return "CHANNEL_MEMORY.page: above 17";
    return reply->is_own > 1 ? "CHANNEL_MEMORY.is_own: neither 0 nor 1" : NULL;
}

static const char *check_published(const struct proto_message *message) {
    return message->published.generation == 0 ? "PUBLISHED.generation: 0" : NULL;
}

static const char *check_named_buffer(const struct proto_named_buffer *buffer) {
    if (buffer->size_bytes == 0 || buffer->size_bytes > PROTO_SIZE_MAX)
        return "NAMED.buffers.size_bytes: 0, or above 2^56";
    if (buffer->pool == 0)
        return "NAMED.buffers.pool: 0";
    return fence_is_sane(&buffer->fence, buffer->has_fence)
               ? NULL
               : "NAMED.buffers.has_fence: neither 0 without a fence, nor 1 with one of the board's";
}

static const char *check_named(const struct proto_message *message) {
    const struct proto_named *named = &message->named;
    const char *flaw = NULL;

    if (named->state < PROTO_NAME_THERE || named->state > PROTO_NAME_GONE)
        return "NAMED.state: unknown";
    if (named->state != PROTO_NAME_THERE)
        return bytes_are_zero(&named->flags, sizeof *named - offsetof(struct proto_named, flags))
                   ? NULL
                   : "NAMED.state: 2 or 3, beside fields that are not 0";
    if ((named->flags & ~PROTO_NAMED_FLAGS) != 0)
        return "NAMED.flags: unknown ones are set";
    if (named->generation == 0)
        return "NAMED.generation: 0";
    if (named->count == 0 || named->count > PROTO_NAME_BUFFERS_MAX)
        return "NAMED.count: 0, or above 64";
    if (named->directory_bytes > PROTO_DIRECTORY_BYTES_MAX)
        return "NAMED.directory_bytes: above 65536";
    for (uint32_t i = 0; flaw == NULL && i < PROTO_NAME_BUFFERS_MAX; i++)
        flaw = bytes_are_zero(&named->buffers[i], sizeof named->buffers[i]) == (i < named->count)
                   ? "NAMED.count: not the buffers that are there"
               : i < named->count ? check_named_buffer(&named->buffers[i])
                                  : NULL;
    return flaw;
}

static const char *check_listed_name(const struct proto_listed_name *name) {
    if (name->id == 0)
        return "NAMES.names.id: 0";
    if ((name->flags & ~(PROTO_NAMED_FLAGS | PROTO_NAME_CHANNEL)) != 0)
        return "NAMES.names.flags: unknown ones are set";
    if (name->count > PROTO_NAME_BUFFERS_MAX || (name->count == 0) != (name->generation == 0))
        return "NAMES.names.count: above 64, or 0 beside a generation, or not 0 without one";
    return NAME_FLAW("NAMES.names", name->name);
}

static const char *check_names(const struct proto_message *message) {
    const struct proto_names *names = &message->names;
    const char *flaw = NULL;

    if (names->count > PROTO_NAMES_PER_MESSAGE)
        return "NAMES.count: above 64";
    for (uint32_t i = 0; flaw == NULL && i < PROTO_NAMES_PER_MESSAGE; i++)
        flaw = bytes_are_zero(&names->names[i], sizeof names->names[i]) == (i < names->count)
                   ? "NAMES.count: not the names that are there"
               : i < names->count ? check_listed_name(&names->names[i])
                                  : NULL;
    return flaw;
}

static const char *check_page(const struct proto_message *message) {
    if (message->page.size_bytes != PROTO_PAGE_BYTES)
        return "PAGE.size_bytes: not 65536";
    if (message->page.reserved != 0)
        return "PAGE.reserved: not 0";
    return NULL;
}

static const char *check_failure(const struct proto_message *message) {
    const struct proto_failure *failure = &message->failure;
    if (failure->error == 0 || failure->error > PROTO_E_MAX)
        return "ERROR.error: unknown";
    if (!text_is_printable(failure->text, failure->text_length))
        return "ERROR.text: not printable UTF-8";
    return NULL;
}

/* Of these any contents are fine, or there are none. */
#define check_list_pools  NULL
#define check_attach      NULL
#define check_query       NULL
#define check_bye         NULL
#define check_ask_page    NULL
#define check_merge       NULL
#define check_ask_board   NULL
#define check_ask_holders NULL
#define check_revoke      NULL
#define check_ask_alive   NULL
#define check_list_names  NULL
#define check_alive       NULL
#define check_ok          NULL

const char *proto_check(const struct proto_message *message) {
#define PROTO_MESSAGE(name, number, sender, request, reply, descriptors, member, type)                       \
    [PROTO_##name] = check_##member,
    static const char *(*const checks[])(const struct proto_message *message) = {
#include "proto/messages.def"
    };
    unsigned operation = message->header.operation;

    return checks[operation] != NULL ? checks[operation](message) : NULL;
}
