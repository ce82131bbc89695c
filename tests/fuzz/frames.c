/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets of either side. A message that proto_decode() accepts keeps the promises of proto.h (told here once
 * more, from that header and not from the code), encodes to the same bytes, and is accepted of no other
 * sender.
 *
 * Input: one byte of flags, then the packet. Flag 1: the length in the header is made to be right, which a
 * fuzzer that inserts bytes hardly guesses.
 */
#include <errno.h>

#include "proto/proto.h"
#include "tests/fuzz/fuzz.h"

#define FLAG_RIGHT_LENGTH 1u

static bool is_zero(const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (((const uint8_t *)bytes)[i] != 0)
            return false;
    return true;
}

/* A range that neither overflows nor is larger than anything may be. */
static bool is_range(uint64_t offset, uint64_t size) {
    return offset <= PROTO_SIZE_MAX && size <= PROTO_SIZE_MAX && offset + size <= PROTO_SIZE_MAX;
}

/* No control characters: neither the ASCII ones nor U+0080…U+009F. That the rest is UTF-8 the unit tests
 * tell. */
static bool is_text(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        uint8_t c = (uint8_t)text[i];
        if (c < ' ' || c == 0x7f || c >= 0xf5 || c == 0xc0 || c == 0xc1)
            return false;
        if (c == 0xc2 && (i + 1 == size || (uint8_t)text[i + 1] < 0xa0))
            return false;
    }
    return true;
}

static void check_pools(const struct proto_pools *pools) {
    MUST(pools->count <= PROTO_POOLS_MAX);
    for (uint32_t i = 0; i < pools->count; i++) {
        const struct proto_pool *pool = &pools->pools[i];
        MUST(pool->id != 0);
        MUST(pool->kind == PROTO_POOL_DEVICE || pool->kind == PROTO_POOL_HOST);
        MUST((pool->flags & ~PROTO_POOL_FLAGS) == 0);
        MUST((pool->device >= 0) == (pool->kind == PROTO_POOL_DEVICE) && pool->device >= -1);
        MUST(pool->numa_node >= -1);
        MUST(pool->kind == PROTO_POOL_DEVICE || is_zero(pool->uuid, sizeof pool->uuid));
        MUST(memchr(pool->name, '\0', sizeof pool->name) != NULL && is_text(pool->name, strlen(pool->name)));
        MUST(is_zero(pool->name + strlen(pool->name), sizeof pool->name - strlen(pool->name)));
    }
}

static void check_block(uint64_t offset, uint64_t size, uint64_t capacity) {
    MUST(size > 0 && size <= capacity && is_range(offset, capacity));
    MUST(offset % 512 == 0 && capacity % 512 == 0);
}

static void check_lease(const struct proto_lease *lease) {
    const struct proto_segment *description = &lease->description;

    MUST(lease->segment != 0 && lease->pool != 0);
    MUST(lease->parts != 1 && lease->parts <= PROTO_ROW_PARTS_MAX);
    check_block(lease->offset_bytes, lease->size_bytes, lease->capacity_bytes);
    if (description->kind == 0) {
        MUST(is_zero(description, sizeof *description));
        return;
    }
    MUST(description->kind >= PROTO_SEGMENT_LEGACY_IPC && description->kind <= PROTO_SEGMENT_HOST_VMM_FD);
    MUST(description->id == lease->segment && description->pool == lease->pool);
    MUST(description->size_bytes > 0 && description->size_bytes % (UINT64_C(2) << 20) == 0);
    MUST((lease->offset_bytes + lease->capacity_bytes <= description->size_bytes) == (lease->parts == 0));
    MUST(lease->parts == 0 || description->kind == PROTO_SEGMENT_VMM_FD);
    MUST(description->kind == PROTO_SEGMENT_LEGACY_IPC ||
         is_zero(description->handle, sizeof description->handle));
}

static void check_parts(const struct proto_parts *parts) {
    MUST(parts->count > 0 && parts->count <= PROTO_PARTS_MAX && parts->count <= parts->total);
    MUST(parts->total >= 2 && parts->total <= PROTO_ROW_PARTS_MAX);
    for (uint32_t i = 0; i < PROTO_PARTS_MAX; i++) {
        const struct proto_part *part = &parts->parts[i];
        if (i >= parts->count) {
            MUST(is_zero(part, sizeof *part));
            continue;
        }
        MUST(part->segment != 0 && part->segment_bytes % (UINT64_C(2) << 20) == 0);
        check_block(part->offset_bytes, part->size_bytes, part->size_bytes);
        MUST(part->offset_bytes + part->size_bytes <= part->segment_bytes);
    }
}

static bool is_segment_size(uint64_t size) {
    return size > 0 && size <= PROTO_SIZE_MAX && size % (UINT64_C(2) << 20) == 0;
}

static void check_acquire_segments(const struct proto_acquire_segments *acquire) {
    MUST((acquire->flags & ~PROTO_ACQUIRE_FLAGS) == 0 && acquire->reserved == 0);
    MUST(is_segment_size(acquire->segment_bytes));
    MUST(acquire->count > 0 && acquire->count <= PROTO_LEASES_MAX);
    MUST(acquire->segment_bytes <= PROTO_SIZE_MAX / acquire->count);
}

static void check_leases(const struct proto_leases *leases) {
    MUST(leases->pool != 0 && is_segment_size(leases->segment_bytes));
    MUST(leases->count > 0 && leases->count <= PROTO_LEASES_PER_MESSAGE);
    MUST(leases->n_described <= leases->count);
    MUST(leases->n_left <= PROTO_LEASES_MAX && leases->count + leases->n_left <= PROTO_LEASES_MAX);
    for (uint32_t i = 0; i < PROTO_LEASES_PER_MESSAGE; i++)
        MUST(i < leases->count ? leases->leases[i].segment != 0
                               : is_zero(&leases->leases[i], sizeof leases->leases[i]));
}

static void check_part(const struct proto_release *part, bool is_split) {
    MUST(is_range(part->offset_bytes, part->size_bytes));
    MUST(part->size_bytes != 0 || (part->offset_bytes == 0 && !is_split));
    MUST(part->fence <= PROTO_PAGE_FENCES && (part->fence != 0 || part->fence_value == 0));
    MUST(part->board_word <= PROTO_BOARD_WORDS && (part->board_word != 0 || part->board_value == 0));
    MUST(part->board_word == 0 || part->size_bytes == 0);
    MUST(!is_split || part->fence == 0);
}

static void check_name(const char text[static PROTO_NAME_TEXT_SIZE]) {
    size_t length = strnlen(text, PROTO_NAME_TEXT_SIZE);
    MUST(length > 0 && length < PROTO_NAME_TEXT_SIZE && is_text(text, length));
    MUST(is_zero(text + length, PROTO_NAME_TEXT_SIZE - length));
}

static void check_fence(const struct proto_board_fence *fence, uint32_t has_fence) {
    MUST(has_fence <= 1 && fence->slot < PROTO_BOARD_SLOTS && fence->word < PROTO_BOARD_WORDS);
    MUST(has_fence == 1 || is_zero(fence, sizeof *fence));
}

static void check_directory(const struct proto_directory_part *part, size_t length) {
    MUST(part->n_bytes > 0 && part->n_bytes <= PROTO_DIRECTORY_PART_MAX);
    MUST((uint64_t)part->offset_bytes + part->n_bytes <= PROTO_DIRECTORY_BYTES_MAX);
    MUST(length ==
         sizeof(struct proto_header) + offsetof(struct proto_directory_part, bytes) + part->n_bytes);
}

static void check_publish(const struct proto_publish *publish) {
    check_name(publish->name);
    MUST((publish->flags & ~PROTO_PUBLISH_FLAGS) == 0 && publish->reserved == 0);
    MUST(publish->count > 0 && publish->count <= PROTO_NAME_BUFFERS_MAX);
    MUST(publish->directory_bytes <= PROTO_DIRECTORY_BYTES_MAX);
    for (uint32_t i = 0; i < PROTO_NAME_BUFFERS_MAX; i++) {
        const struct proto_publish_buffer *buffer = &publish->buffers[i];
        check_fence(&buffer->fence, buffer->has_fence);
        MUST(i < publish->count ? buffer->size_bytes > 0 && buffer->size_bytes <= PROTO_SIZE_MAX
                                : is_zero(buffer, sizeof *buffer));
    }
}

static void check_capacities(uint64_t slot_bytes, uint64_t n_slots, uint64_t metadata_bytes,
                             uint64_t n_consumers, uint64_t policy) {
    MUST(n_slots >= 2 && n_slots <= 1024 && slot_bytes >= 1 && slot_bytes <= PROTO_SIZE_MAX / n_slots);
    MUST(metadata_bytes <= 1024 && n_consumers >= 1 && n_consumers <= 16 && policy >= 1 && policy <= 3);
}

static void check_named(const struct proto_named *named) {
    MUST(named->state >= PROTO_NAME_THERE && named->state <= PROTO_NAME_GONE);
    if (named->state != PROTO_NAME_THERE) {
        MUST(is_zero(&named->flags, sizeof *named - sizeof named->state));
        return;
    }
    MUST((named->flags & ~(PROTO_PUBLISH_KEEP | PROTO_PUBLISH_LIVE)) == 0 && named->generation != 0);
    MUST(named->count > 0 && named->count <= PROTO_NAME_BUFFERS_MAX);
    MUST(named->directory_bytes <= PROTO_DIRECTORY_BYTES_MAX);
    for (uint32_t i = 0; i < PROTO_NAME_BUFFERS_MAX; i++) {
        const struct proto_named_buffer *buffer = &named->buffers[i];
        check_fence(&buffer->fence, buffer->has_fence);
        MUST(i < named->count
                 ? buffer->size_bytes > 0 && buffer->size_bytes <= PROTO_SIZE_MAX && buffer->pool != 0
                 : is_zero(buffer, sizeof *buffer));
    }
}

static void check_names(const struct proto_names *names) {
    MUST(names->count <= PROTO_NAMES_PER_MESSAGE);
    for (uint32_t i = 0; i < PROTO_NAMES_PER_MESSAGE; i++) {
        const struct proto_listed_name *name = &names->names[i];
        if (i >= names->count) {
            MUST(is_zero(name, sizeof *name));
            continue;
        }
        check_name(name->name);
        MUST(name->id != 0 && (name->generation != 0) == (name->count != 0));
        MUST(name->count <= PROTO_NAME_BUFFERS_MAX);
    }
}

static void check_body(const struct proto_message *message) {
    switch (message->header.operation) {
    case PROTO_HELLO:
        MUST(message->hello.magic == PROTO_MAGIC && message->hello.reserved == 0);
        MUST(message->hello.version_min != 0 && message->hello.version_min <= message->hello.version_max);
        MUST((message->hello.flags & ~PROTO_HELLO_FLAGS) == 0);
        MUST((message->hello.flags & PROTO_HELLO_QUESTION) == 0 ||
             message->hello.flags == PROTO_HELLO_QUESTION);
        return;
    case PROTO_HELLO_REPLY:
        MUST(message->hello_reply.magic == PROTO_MAGIC);
        MUST(message->hello_reply.version >= 1 && message->hello_reply.version <= PROTO_VERSION_MAX &&
             message->hello_reply.gpu <= PROTO_GPU_SIM);
        MUST(memchr(message->hello_reply.admin_path, 0, PROTO_PATH_SIZE) != NULL);
        return;
    case PROTO_POOLS:
        check_pools(&message->pools);
        return;
    case PROTO_ACQUIRE:
        MUST(message->acquire.size_bytes >= 1 && message->acquire.size_bytes <= PROTO_SIZE_MAX);
        MUST((message->acquire.flags & ~PROTO_ACQUIRE_FLAGS) == 0);
        MUST(message->acquire.least_bytes <= message->acquire.size_bytes);
        return;
    case PROTO_RELEASE:
    case PROTO_SPLIT:
        check_part(&message->release, message->header.operation == PROTO_SPLIT);
        return;
    case PROTO_SHARE:
        MUST(message->share.size_bytes <= PROTO_SIZE_MAX);
        return;
    case PROTO_SEND:
        MUST(message->send.share.size_bytes <= PROTO_SIZE_MAX && message->send.lifetime_ns > 0 &&
             message->send.lifetime_ns <= PROTO_PARCEL_NS_MAX && message->send.takers > 0 &&
             message->send.flags <= PROTO_SEND_HELD);
        return;
    case PROTO_OPENED:
        MUST(message->opened.segment != 0);
        return;
    case PROTO_CANCEL:
        MUST(message->cancel.request != 0);
        return;
    case PROTO_RECLAIMED:
        MUST(message->reclaimed.pool != 0 && message->reclaimed.outcome >= PROTO_RECLAIM_DONE &&
             message->reclaimed.outcome <= PROTO_RECLAIM_PENDING &&
             message->reclaimed.kept_bytes <= PROTO_SIZE_MAX);
        return;
    case PROTO_NAME:
        MUST(message->name.name[0] != '\0' && message->name.name[PROTO_PROCESS_NAME_SIZE - 1] == '\0');
        return;
    case PROTO_CLOSED:
        MUST(message->closed.segment != 0);
        return;
    case PROTO_IDLE:
        MUST(message->idle.size_bytes <= PROTO_SIZE_MAX && (message->idle.flags & ~PROTO_IDLE_FLAGS) == 0);
        return;
    case PROTO_SEGMENTS:
        MUST(message->segments.count <= PROTO_CLOSE_MAX && message->segments.reserved == 0);
        for (uint32_t i = 0; i < PROTO_CLOSE_MAX; i++)
            MUST((message->segments.ids[i] != 0) == (i < message->segments.count));
        return;
    case PROTO_ASK_PARTS:
    case PROTO_DESCRIBE:
        MUST(message->describe.part < PROTO_ROW_PARTS_MAX && message->describe.flags <= PROTO_DESCRIBE_AGAIN);
        return;
    case PROTO_PARTS:
        check_parts(&message->parts);
        return;
    case PROTO_LEASE:
        check_lease(&message->lease);
        return;
    case PROTO_ACQUIRE_SEGMENTS:
        check_acquire_segments(&message->acquire_segments);
        return;
    case PROTO_LEASES:
        check_leases(&message->leases);
        return;
    case PROTO_INFO:
        check_block(message->info.offset_bytes, message->info.size_bytes, message->info.capacity_bytes);
        MUST(message->info.segment != 0 && message->info.pool != 0 && message->info.holders > 0);
        MUST(message->info.shared <= 1 && message->info.parts != 1 &&
             message->info.parts <= PROTO_ROW_PARTS_MAX);
        return;
    case PROTO_BOARD:
        MUST(message->board.size_bytes == PROTO_BOARD_BYTES && message->board.slot < PROTO_BOARD_SLOTS);
        return;
    case PROTO_HOLDERS:
        MUST(message->holders.count <= PROTO_HOLDERS_MAX && message->holders.reserved == 0);
        for (uint32_t i = 0; i < PROTO_HOLDERS_MAX; i++)
            MUST(message->holders.fences[i].slot < PROTO_BOARD_SLOTS &&
                 message->holders.fences[i].word < PROTO_BOARD_WORDS);
        return;
    case PROTO_PAGE:
        MUST(message->page.size_bytes == PROTO_PAGE_BYTES && message->page.reserved == 0);
        return;
    case PROTO_WRITE_DIRECTORY:
    case PROTO_DIRECTORY:
        check_directory(&message->directory, message->header.length);
        return;
    case PROTO_PUBLISH:
        check_publish(&message->publish);
        return;
    case PROTO_UNPUBLISH:
        check_name(message->unpublish.name);
        MUST((message->unpublish.flags & ~PROTO_UNPUBLISH_BUILD) == 0 && message->unpublish.reserved == 0);
        return;
    case PROTO_OPEN_NAME:
        check_name(message->open_name.name);
        MUST(message->open_name.flags < PROTO_OPEN_NAME_FLAGS && message->open_name.reserved == 0);
        return;
    case PROTO_READ_DIRECTORY:
        check_name(message->read_directory.name);
        MUST(message->read_directory.reserved == 0);
        return;
    case PROTO_MAKE_CHANNEL:
        check_name(message->make_channel.name);
        check_capacities(message->make_channel.slot_bytes, message->make_channel.n_slots,
                         message->make_channel.metadata_bytes, message->make_channel.n_consumers,
                         message->make_channel.policy);
        MUST(message->make_channel.flags <= PROTO_MAKE_CHANNEL_KEEP && message->make_channel.reserved == 0);
        return;
    case PROTO_JOIN_CHANNEL:
        check_name(message->join_channel.name);
        MUST(message->join_channel.place <= 16 || message->join_channel.place == PROTO_CHANNEL_ANY_CONSUMER);
        MUST(message->join_channel.reserved == 0);
        return;
    case PROTO_LEAVE_CHANNEL:
        MUST(message->leave_channel.page <= 16 && message->leave_channel.reserved == 0);
        return;
    case PROTO_ASK_CHANNEL_MEMORY:
        MUST(message->ask_channel_memory.page <= 17 && message->ask_channel_memory.reserved == 0);
        return;
    case PROTO_CHANNEL:
        check_capacities(message->channel.slot_bytes, message->channel.n_slots,
                         message->channel.metadata_bytes, message->channel.n_consumers,
                         message->channel.policy);
        MUST(message->channel.channel != 0 && message->channel.pool != 0 &&
             message->channel.place <= message->channel.n_consumers);
        return;
    case PROTO_CHANNEL_MEMORY:
        MUST(message->channel_memory.channel != 0 && message->channel_memory.page <= 17 &&
             message->channel_memory.is_own <= 1 && message->channel_memory.size_bytes > 0 &&
             message->channel_memory.size_bytes % 4096 == 0);
        return;
    case PROTO_PUBLISHED:
        MUST(message->published.generation != 0);
        return;
    case PROTO_NAMED:
        check_named(&message->named);
        return;
    case PROTO_NAMES:
        check_names(&message->names);
        return;
    case PROTO_ERROR:
        MUST(message->failure.error >= 1 && message->failure.error <= PROTO_E_MAX);
        MUST(message->failure.text_length <= PROTO_TEXT_MAX);
        MUST(strlen(message->failure.text) == message->failure.text_length);
        MUST(is_text(message->failure.text, message->failure.text_length));
        return;
    default: /* bodies in which everything is allowed, and none */
        return;
    }
}

static void check_message(const struct proto_message *message, enum proto_sender sender) {
    unsigned operation = message->header.operation;
    bool one_way = operation == PROTO_OPENED || operation == PROTO_CANCEL || operation == PROTO_RECLAIMED ||
                   operation == PROTO_NAME,
         either = operation == PROTO_RELEASE || operation == PROTO_MERGE || operation == PROTO_ERROR;

    MUST(sender == PROTO_FROM_CLIENT ? operation >= PROTO_HELLO && operation <= PROTO_ASK_CHANNEL_MEMORY
                                     : operation >= PROTO_HELLO_REPLY && operation <= PROTO_CHANNEL_MEMORY);
    MUST((message->header.flags & ~(sender == PROTO_FROM_DAEMON ? PROTO_AGAIN : 0)) == 0);
    MUST(either || (message->header.request == 0) == one_way);
    MUST(strcmp(proto_operation_name(operation), proto_operation_name(UINT32_MAX)) != 0);
    check_body(message);

    unsigned fds = proto_message_fds(message);
    bool may_have = operation == PROTO_LEASE || operation == PROTO_HELLO_REPLY || operation == PROTO_PAGE ||
                    operation == PROTO_BOARD || operation == PROTO_ALIVE;
    MUST(operation == PROTO_LEASES ? fds == message->leases.n_described : fds <= 1 && (fds == 0 || may_have));
}

static bool try(enum proto_sender sender, const uint8_t *packet, size_t size) {
    /* On the heap: a write beyond what belongs to it would otherwise go into this frame. */
    struct proto_message *message = malloc(sizeof *message);
    uint8_t *encoded = malloc(PROTO_PACKET_MAX);
    const char *reason = NULL;

    MUST(message != NULL && encoded != NULL);
    memset(message, 0xa5, sizeof *message);
    int r = proto_decode(sender, packet, size, message, &reason);
    if (r == 0) {
        MUST(message->header.length == size && size <= PROTO_PACKET_MAX);
        check_message(message, sender);
        MUST(proto_encode(message, encoded) == size && memcmp(encoded, packet, size) == 0);
    } else {
        MUST(r == -EBADMSG && reason != NULL);
    }
    free(encoded);
    free(message);
    return r == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    unsigned flags = data[0];
    size--;
    uint8_t *packet = malloc(size > 0 ? size : 1);
    MUST(packet != NULL);
    memcpy(packet, data + 1, size);
    if ((flags & FLAG_RIGHT_LENGTH) != 0 && size >= sizeof(struct proto_header)) {
        uint32_t length = (uint32_t)size;
        memcpy(packet + offsetof(struct proto_header, length), &length, sizeof length);
    }
    bool from_client = try(PROTO_FROM_CLIENT, packet, size),
         from_daemon = try(PROTO_FROM_DAEMON, packet, size);
    MUST(!from_client || !from_daemon);
    free(packet);
    return 0;
}
