/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_WIRE_FIELDS_H
#define TESTS_WIRE_FIELDS_H
/*
 * Every field of every message, and the values at which it is tried: for those who change one field of a
 * message that is otherwise good, on either side, and for docs/wire.md, whose tables are compared with it.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/channel.h"
#include "proto/proto.h"

enum wire_kind {
    WIRE_UNSIGNED,
    WIRE_SIGNED, /* of 4 bytes */
    WIRE_BYTES,
    WIRE_TEXT, /* up to its NUL */
};

struct wire_field {
    unsigned operation; /* 0: of every message's header */
    size_t offset, size;
    size_t count; /* above 1: of an array, as ids[i] */
    enum wire_kind kind;
    const char *name; /* as docs/wire.md has it; of an array of structs, the first element's is described */
};

#define WIRE_FIELDS_AS(operation, type, member, name, kind, size, count)                                     \
    { operation, sizeof(struct proto_header) + offsetof(struct type, member), size, count, kind, name }
#define WIRE_SIZE_OF(type, member) sizeof(((struct type *)0)->member)
#define WIRE_AS(operation, type, member, name, kind)                                                         \
    WIRE_FIELDS_AS(operation, type, member, name, kind, WIRE_SIZE_OF(type, member), 1)
#define WIRE_FIELD(operation, type, member) WIRE_AS(operation, type, member, #member, WIRE_UNSIGNED)
#define WIRE_POOL_AS(member, kind)                                                                           \
    WIRE_AS(PROTO_POOLS, proto_pools, pools[0].member, "pools[i]." #member, kind)
#define WIRE_POOL(member) WIRE_POOL_AS(member, WIRE_UNSIGNED)
#define WIRE_PART(member)                                                                                    \
    WIRE_AS(PROTO_PARTS, proto_parts, parts[0].member, "parts[i]." #member, WIRE_UNSIGNED)
#define WIRE_SEGMENT_LEASE(member)                                                                           \
    WIRE_AS(PROTO_LEASES, proto_leases, leases[0].member, "leases[i]." #member, WIRE_UNSIGNED)
#define WIRE_BOARD_FENCE(member)                                                                             \
    WIRE_AS(PROTO_HOLDERS, proto_holders, fences[0].member, "fences[i]." #member, WIRE_UNSIGNED)
#define WIRE_IN_ARRAY(operation, type, array, member)                                                        \
    WIRE_AS(operation, type, array[0].member, #array "[i]." #member, WIRE_UNSIGNED)
#define WIRE_HEADER(member)                                                                                  \
    {                                                                                                        \
        0, offsetof(struct proto_header, member), WIRE_SIZE_OF(proto_header, member), 1, WIRE_UNSIGNED,      \
            #member                                                                                          \
    }

/* Those of a message by offset. */
static const struct wire_field wire_fields[] = {
    WIRE_HEADER(operation),
    WIRE_HEADER(flags),
    WIRE_HEADER(length),
    WIRE_HEADER(request),
    WIRE_FIELD(PROTO_HELLO, proto_hello, magic),
    WIRE_FIELD(PROTO_HELLO, proto_hello, version_min),
    WIRE_FIELD(PROTO_HELLO, proto_hello, version_max),
    WIRE_FIELD(PROTO_HELLO, proto_hello, flags),
    WIRE_FIELD(PROTO_HELLO, proto_hello, reserved),
    WIRE_FIELD(PROTO_ACQUIRE, proto_acquire, pool),
    WIRE_FIELD(PROTO_ACQUIRE, proto_acquire, flags),
    WIRE_FIELD(PROTO_ACQUIRE, proto_acquire, size_bytes),
    WIRE_FIELD(PROTO_ACQUIRE, proto_acquire, least_bytes),
    WIRE_FIELD(PROTO_ACQUIRE, proto_acquire, timeout_ns),
    WIRE_FIELD(PROTO_RELEASE, proto_release, lease),
    WIRE_FIELD(PROTO_RELEASE, proto_release, generation),
    WIRE_FIELD(PROTO_RELEASE, proto_release, offset_bytes),
    WIRE_FIELD(PROTO_RELEASE, proto_release, size_bytes),
    WIRE_FIELD(PROTO_RELEASE, proto_release, fence),
    WIRE_FIELD(PROTO_RELEASE, proto_release, board_word),
    WIRE_FIELD(PROTO_RELEASE, proto_release, fence_value),
    WIRE_FIELD(PROTO_RELEASE, proto_release, board_value),
    WIRE_FIELD(PROTO_SHARE, proto_share, lease),
    WIRE_FIELD(PROTO_SHARE, proto_share, generation),
    WIRE_FIELD(PROTO_SHARE, proto_share, offset_bytes),
    WIRE_FIELD(PROTO_SHARE, proto_share, part_bytes),
    WIRE_FIELD(PROTO_SHARE, proto_share, size_bytes),
    WIRE_AS(PROTO_ATTACH, proto_token, bytes, "token", WIRE_BYTES),
    WIRE_FIELD(PROTO_QUERY, proto_lease_name, lease),
    WIRE_FIELD(PROTO_QUERY, proto_lease_name, generation),
    WIRE_FIELD(PROTO_OPENED, proto_opened, segment),
    WIRE_FIELD(PROTO_CANCEL, proto_cancel, request),
    WIRE_FIELD(PROTO_RECLAIMED, proto_reclaimed, pool),
    WIRE_FIELD(PROTO_RECLAIMED, proto_reclaimed, outcome),
    WIRE_FIELD(PROTO_RECLAIMED, proto_reclaimed, asked),
    WIRE_FIELD(PROTO_RECLAIMED, proto_reclaimed, kept_bytes),
    WIRE_AS(PROTO_NAME, proto_name, name, "name", WIRE_TEXT),
    WIRE_FIELD(PROTO_SPLIT, proto_release, lease),
    WIRE_FIELD(PROTO_SPLIT, proto_release, generation),
    WIRE_FIELD(PROTO_SPLIT, proto_release, offset_bytes),
    WIRE_FIELD(PROTO_SPLIT, proto_release, size_bytes),
    WIRE_FIELD(PROTO_SPLIT, proto_release, fence),
    WIRE_FIELD(PROTO_SPLIT, proto_release, board_word),
    WIRE_FIELD(PROTO_SPLIT, proto_release, fence_value),
    WIRE_FIELD(PROTO_SPLIT, proto_release, board_value),
    WIRE_FIELD(PROTO_MERGE, proto_merge, lease),
    WIRE_FIELD(PROTO_MERGE, proto_merge, generation),
    WIRE_FIELD(PROTO_MERGE, proto_merge, other_lease),
    WIRE_FIELD(PROTO_MERGE, proto_merge, other_generation),
    WIRE_FIELD(PROTO_IDLE, proto_idle, pool),
    WIRE_FIELD(PROTO_IDLE, proto_idle, flags),
    WIRE_FIELD(PROTO_IDLE, proto_idle, size_bytes),
    WIRE_FIELD(PROTO_CLOSED, proto_closed, segment),
    WIRE_FIELD(PROTO_CLOSED, proto_closed, time_ns),
    WIRE_FIELD(PROTO_ASK_PARTS, proto_part_name, lease),
    WIRE_FIELD(PROTO_ASK_PARTS, proto_part_name, generation),
    WIRE_FIELD(PROTO_ASK_PARTS, proto_part_name, part),
    WIRE_FIELD(PROTO_ASK_PARTS, proto_part_name, flags),
    WIRE_FIELD(PROTO_DESCRIBE, proto_part_name, lease),
    WIRE_FIELD(PROTO_DESCRIBE, proto_part_name, generation),
    WIRE_FIELD(PROTO_DESCRIBE, proto_part_name, part),
    WIRE_FIELD(PROTO_DESCRIBE, proto_part_name, flags),
    WIRE_FIELD(PROTO_ACQUIRE_SEGMENTS, proto_acquire_segments, pool),
    WIRE_FIELD(PROTO_ACQUIRE_SEGMENTS, proto_acquire_segments, flags),
    WIRE_FIELD(PROTO_ACQUIRE_SEGMENTS, proto_acquire_segments, segment_bytes),
    WIRE_FIELD(PROTO_ACQUIRE_SEGMENTS, proto_acquire_segments, count),
    WIRE_FIELD(PROTO_ACQUIRE_SEGMENTS, proto_acquire_segments, reserved),
    WIRE_FIELD(PROTO_ACQUIRE_SEGMENTS, proto_acquire_segments, timeout_ns),
    WIRE_FIELD(PROTO_OFFER, proto_offer, pool),
    WIRE_FIELD(PROTO_OFFER, proto_offer, count),
    WIRE_FIELDS_AS(PROTO_OFFER, proto_offer, ids, "ids[i]", WIRE_UNSIGNED, sizeof(uint64_t), PROTO_CLOSE_MAX),
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, magic),
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, version),
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, gpu),
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, session),
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, daemon_pid),
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, flags),
    WIRE_AS(PROTO_HELLO_REPLY, proto_hello_reply, identity, "identity", WIRE_BYTES),
    WIRE_AS(PROTO_HELLO_REPLY, proto_hello_reply, admin_path, "admin_path", WIRE_TEXT),
    WIRE_FIELD(PROTO_POOLS, proto_pools, count),
    WIRE_FIELD(PROTO_POOLS, proto_pools, reserved),
    WIRE_POOL(id),
    WIRE_POOL(kind),
    WIRE_POOL(flags),
    WIRE_POOL_AS(device, WIRE_SIGNED),
    WIRE_POOL_AS(numa_node, WIRE_SIGNED),
    WIRE_POOL_AS(uuid, WIRE_BYTES),
    WIRE_POOL(limit_bytes),
    WIRE_POOL(reserved_bytes),
    WIRE_POOL(leased_bytes),
    WIRE_POOL(free_bytes),
    WIRE_POOL(quarantined_bytes),
    WIRE_POOL(largest_free_bytes),
    WIRE_POOL_AS(name, WIRE_TEXT),
    WIRE_FIELD(PROTO_LEASE, proto_lease, lease),
    WIRE_FIELD(PROTO_LEASE, proto_lease, generation),
    WIRE_FIELD(PROTO_LEASE, proto_lease, segment),
    WIRE_FIELD(PROTO_LEASE, proto_lease, offset_bytes),
    WIRE_FIELD(PROTO_LEASE, proto_lease, size_bytes),
    WIRE_FIELD(PROTO_LEASE, proto_lease, capacity_bytes),
    WIRE_FIELD(PROTO_LEASE, proto_lease, pool),
    WIRE_FIELD(PROTO_LEASE, proto_lease, parts),
    WIRE_FIELD(PROTO_LEASE, proto_lease, description.id),
    WIRE_FIELD(PROTO_LEASE, proto_lease, description.size_bytes),
    WIRE_FIELD(PROTO_LEASE, proto_lease, description.pool),
    WIRE_FIELD(PROTO_LEASE, proto_lease, description.kind),
    WIRE_AS(PROTO_LEASE, proto_lease, description.handle, "description.handle", WIRE_BYTES),
    WIRE_AS(PROTO_TOKEN, proto_token_reply, token.bytes, "token", WIRE_BYTES),
    WIRE_FIELD(PROTO_TOKEN, proto_token_reply, lease),
    WIRE_FIELD(PROTO_TOKEN, proto_token_reply, generation),
    WIRE_FIELD(PROTO_INFO, proto_info, segment),
    WIRE_FIELD(PROTO_INFO, proto_info, offset_bytes),
    WIRE_FIELD(PROTO_INFO, proto_info, size_bytes),
    WIRE_FIELD(PROTO_INFO, proto_info, capacity_bytes),
    WIRE_FIELD(PROTO_INFO, proto_info, pool),
    WIRE_FIELD(PROTO_INFO, proto_info, holders),
    WIRE_FIELD(PROTO_INFO, proto_info, shared),
    WIRE_FIELD(PROTO_INFO, proto_info, parts),
    WIRE_FIELD(PROTO_ERROR, proto_failure, error),
    WIRE_FIELD(PROTO_ERROR, proto_failure, text_length),
    WIRE_AS(PROTO_ERROR, proto_failure, text, "text", WIRE_TEXT),
    WIRE_FIELD(PROTO_PAGE, proto_page_reply, size_bytes),
    WIRE_FIELD(PROTO_PAGE, proto_page_reply, reserved),
    WIRE_FIELD(PROTO_ASK_HOLDERS, proto_lease_name, lease),
    WIRE_FIELD(PROTO_ASK_HOLDERS, proto_lease_name, generation),
    WIRE_AS(PROTO_SEND, proto_send, share.lease, "lease", WIRE_UNSIGNED),
    WIRE_AS(PROTO_SEND, proto_send, share.generation, "generation", WIRE_UNSIGNED),
    WIRE_AS(PROTO_SEND, proto_send, share.offset_bytes, "offset_bytes", WIRE_UNSIGNED),
    WIRE_AS(PROTO_SEND, proto_send, share.part_bytes, "part_bytes", WIRE_UNSIGNED),
    WIRE_AS(PROTO_SEND, proto_send, share.size_bytes, "size_bytes", WIRE_UNSIGNED),
    WIRE_FIELD(PROTO_SEND, proto_send, lifetime_ns),
    WIRE_FIELD(PROTO_SEND, proto_send, takers),
    WIRE_FIELD(PROTO_SEND, proto_send, flags),
    WIRE_AS(PROTO_REVOKE, proto_token, bytes, "token", WIRE_BYTES),
    WIRE_FIELD(PROTO_BOARD, proto_board_reply, size_bytes),
    WIRE_FIELD(PROTO_BOARD, proto_board_reply, slot),
    WIRE_FIELD(PROTO_HOLDERS, proto_holders, n_holding),
    WIRE_FIELD(PROTO_HOLDERS, proto_holders, count),
    WIRE_FIELD(PROTO_HOLDERS, proto_holders, n_left),
    WIRE_FIELD(PROTO_HOLDERS, proto_holders, reserved),
    WIRE_BOARD_FENCE(slot),
    WIRE_BOARD_FENCE(word),
    WIRE_BOARD_FENCE(value),
    WIRE_FIELD(PROTO_SEGMENTS, proto_segments, count),
    WIRE_FIELD(PROTO_SEGMENTS, proto_segments, reserved),
    WIRE_FIELDS_AS(PROTO_SEGMENTS, proto_segments, ids, "ids[i]", WIRE_UNSIGNED, sizeof(uint64_t),
                   PROTO_CLOSE_MAX),
    WIRE_FIELD(PROTO_PARTS, proto_parts, count),
    WIRE_FIELD(PROTO_PARTS, proto_parts, total),
    WIRE_PART(segment),
    WIRE_PART(segment_bytes),
    WIRE_PART(offset_bytes),
    WIRE_PART(size_bytes),
    WIRE_FIELD(PROTO_LEASES, proto_leases, pool),
    WIRE_FIELD(PROTO_LEASES, proto_leases, count),
    WIRE_FIELD(PROTO_LEASES, proto_leases, n_described),
    WIRE_FIELD(PROTO_LEASES, proto_leases, n_left),
    WIRE_FIELD(PROTO_LEASES, proto_leases, segment_bytes),
    WIRE_SEGMENT_LEASE(lease),
    WIRE_SEGMENT_LEASE(generation),
    WIRE_SEGMENT_LEASE(segment),
    WIRE_FIELD(PROTO_WRITE_DIRECTORY, proto_directory_part, offset_bytes),
    WIRE_FIELD(PROTO_WRITE_DIRECTORY, proto_directory_part, n_bytes),
    WIRE_AS(PROTO_WRITE_DIRECTORY, proto_directory_part, bytes, "bytes", WIRE_BYTES),
    WIRE_AS(PROTO_PUBLISH, proto_publish, name, "name", WIRE_TEXT),
    WIRE_FIELD(PROTO_PUBLISH, proto_publish, flags),
    WIRE_FIELD(PROTO_PUBLISH, proto_publish, count),
    WIRE_FIELD(PROTO_PUBLISH, proto_publish, directory_bytes),
    WIRE_FIELD(PROTO_PUBLISH, proto_publish, reserved),
    WIRE_FIELD(PROTO_PUBLISH, proto_publish, layout),
    WIRE_IN_ARRAY(PROTO_PUBLISH, proto_publish, buffers, lease),
    WIRE_IN_ARRAY(PROTO_PUBLISH, proto_publish, buffers, generation),
    WIRE_IN_ARRAY(PROTO_PUBLISH, proto_publish, buffers, size_bytes),
    WIRE_IN_ARRAY(PROTO_PUBLISH, proto_publish, buffers, fence.slot),
    WIRE_IN_ARRAY(PROTO_PUBLISH, proto_publish, buffers, fence.word),
    WIRE_IN_ARRAY(PROTO_PUBLISH, proto_publish, buffers, fence.value),
    WIRE_IN_ARRAY(PROTO_PUBLISH, proto_publish, buffers, has_fence),
    WIRE_IN_ARRAY(PROTO_PUBLISH, proto_publish, buffers, reserved),
    WIRE_AS(PROTO_UNPUBLISH, proto_unpublish, name, "name", WIRE_TEXT),
    WIRE_FIELD(PROTO_UNPUBLISH, proto_unpublish, generation),
    WIRE_FIELD(PROTO_UNPUBLISH, proto_unpublish, flags),
    WIRE_FIELD(PROTO_UNPUBLISH, proto_unpublish, reserved),
    WIRE_AS(PROTO_OPEN_NAME, proto_open_name, name, "name", WIRE_TEXT),
    WIRE_FIELD(PROTO_OPEN_NAME, proto_open_name, generation),
    WIRE_FIELD(PROTO_OPEN_NAME, proto_open_name, timeout_ns),
    WIRE_FIELD(PROTO_OPEN_NAME, proto_open_name, flags),
    WIRE_FIELD(PROTO_OPEN_NAME, proto_open_name, reserved),
    WIRE_AS(PROTO_READ_DIRECTORY, proto_read_directory, name, "name", WIRE_TEXT),
    WIRE_FIELD(PROTO_READ_DIRECTORY, proto_read_directory, generation),
    WIRE_FIELD(PROTO_READ_DIRECTORY, proto_read_directory, offset_bytes),
    WIRE_FIELD(PROTO_READ_DIRECTORY, proto_read_directory, reserved),
    WIRE_FIELD(PROTO_LIST_NAMES, proto_list_names, after),
    WIRE_AS(PROTO_MAKE_CHANNEL, proto_make_channel, name, "name", WIRE_TEXT),
    WIRE_FIELD(PROTO_MAKE_CHANNEL, proto_make_channel, lease),
    WIRE_FIELD(PROTO_MAKE_CHANNEL, proto_make_channel, generation),
    WIRE_FIELD(PROTO_MAKE_CHANNEL, proto_make_channel, slot_bytes),
    WIRE_FIELD(PROTO_MAKE_CHANNEL, proto_make_channel, n_slots),
    WIRE_FIELD(PROTO_MAKE_CHANNEL, proto_make_channel, metadata_bytes),
    WIRE_FIELD(PROTO_MAKE_CHANNEL, proto_make_channel, n_consumers),
    WIRE_FIELD(PROTO_MAKE_CHANNEL, proto_make_channel, policy),
    WIRE_FIELD(PROTO_MAKE_CHANNEL, proto_make_channel, flags),
    WIRE_FIELD(PROTO_MAKE_CHANNEL, proto_make_channel, reserved),
    WIRE_AS(PROTO_JOIN_CHANNEL, proto_join_channel, name, "name", WIRE_TEXT),
    WIRE_FIELD(PROTO_JOIN_CHANNEL, proto_join_channel, timeout_ns),
    WIRE_FIELD(PROTO_JOIN_CHANNEL, proto_join_channel, place),
    WIRE_FIELD(PROTO_JOIN_CHANNEL, proto_join_channel, reserved),
    WIRE_FIELD(PROTO_LEAVE_CHANNEL, proto_channel_page_name, channel),
    WIRE_FIELD(PROTO_LEAVE_CHANNEL, proto_channel_page_name, page),
    WIRE_FIELD(PROTO_LEAVE_CHANNEL, proto_channel_page_name, reserved),
    WIRE_FIELD(PROTO_ASK_CHANNEL_MEMORY, proto_channel_page_name, channel),
    WIRE_FIELD(PROTO_ASK_CHANNEL_MEMORY, proto_channel_page_name, page),
    WIRE_FIELD(PROTO_ASK_CHANNEL_MEMORY, proto_channel_page_name, reserved),
    WIRE_FIELD(PROTO_PUBLISHED, proto_published, generation),
    WIRE_FIELD(PROTO_NAMED, proto_named, state),
    WIRE_FIELD(PROTO_NAMED, proto_named, flags),
    WIRE_FIELD(PROTO_NAMED, proto_named, generation),
    WIRE_FIELD(PROTO_NAMED, proto_named, layout),
    WIRE_FIELD(PROTO_NAMED, proto_named, session),
    WIRE_FIELD(PROTO_NAMED, proto_named, count),
    WIRE_FIELD(PROTO_NAMED, proto_named, directory_bytes),
    WIRE_AS(PROTO_NAMED, proto_named, buffers[0].token.bytes, "buffers[i].token", WIRE_BYTES),
    WIRE_IN_ARRAY(PROTO_NAMED, proto_named, buffers, size_bytes),
    WIRE_IN_ARRAY(PROTO_NAMED, proto_named, buffers, fence.slot),
    WIRE_IN_ARRAY(PROTO_NAMED, proto_named, buffers, fence.word),
    WIRE_IN_ARRAY(PROTO_NAMED, proto_named, buffers, fence.value),
    WIRE_IN_ARRAY(PROTO_NAMED, proto_named, buffers, pool),
    WIRE_IN_ARRAY(PROTO_NAMED, proto_named, buffers, has_fence),
    WIRE_FIELD(PROTO_DIRECTORY, proto_directory_part, offset_bytes),
    WIRE_FIELD(PROTO_DIRECTORY, proto_directory_part, n_bytes),
    WIRE_AS(PROTO_DIRECTORY, proto_directory_part, bytes, "bytes", WIRE_BYTES),
    WIRE_FIELD(PROTO_NAMES, proto_names, count),
    WIRE_FIELD(PROTO_NAMES, proto_names, n_left),
    WIRE_IN_ARRAY(PROTO_NAMES, proto_names, names, id),
    WIRE_IN_ARRAY(PROTO_NAMES, proto_names, names, generation),
    WIRE_IN_ARRAY(PROTO_NAMES, proto_names, names, bytes),
    WIRE_IN_ARRAY(PROTO_NAMES, proto_names, names, layout),
    WIRE_IN_ARRAY(PROTO_NAMES, proto_names, names, session),
    WIRE_IN_ARRAY(PROTO_NAMES, proto_names, names, flags),
    WIRE_IN_ARRAY(PROTO_NAMES, proto_names, names, count),
    WIRE_AS(PROTO_NAMES, proto_names, names[0].name, "names[i].name", WIRE_TEXT),
    WIRE_FIELD(PROTO_CHANNEL, proto_channel_reply, channel),
    WIRE_AS(PROTO_CHANNEL, proto_channel_reply, token.bytes, "token", WIRE_BYTES),
    WIRE_FIELD(PROTO_CHANNEL, proto_channel_reply, slot_bytes),
    WIRE_FIELD(PROTO_CHANNEL, proto_channel_reply, n_slots),
    WIRE_FIELD(PROTO_CHANNEL, proto_channel_reply, metadata_bytes),
    WIRE_FIELD(PROTO_CHANNEL, proto_channel_reply, n_consumers),
    WIRE_FIELD(PROTO_CHANNEL, proto_channel_reply, policy),
    WIRE_FIELD(PROTO_CHANNEL, proto_channel_reply, place),
    WIRE_FIELD(PROTO_CHANNEL, proto_channel_reply, pool),
    WIRE_FIELD(PROTO_CHANNEL_MEMORY, proto_channel_page_reply, channel),
    WIRE_FIELD(PROTO_CHANNEL_MEMORY, proto_channel_page_reply, size_bytes),
    WIRE_FIELD(PROTO_CHANNEL_MEMORY, proto_channel_page_reply, page),
    WIRE_FIELD(PROTO_CHANNEL_MEMORY, proto_channel_page_reply, is_own),
};
#define WIRE_FIELDS (sizeof wire_fields / sizeof *wire_fields)

/* Tokens are random bytes, and texts are for people: a test that tries values leaves them out. */
static inline bool wire_is_number(const struct wire_field *field) {
    return field->kind == WIRE_UNSIGNED || field->kind == WIRE_SIGNED;
}

static inline bool wire_is_from_client(unsigned operation) {
    return operation < PROTO_HELLO_REPLY;
}

/* The ends of what a field can hold, and of what it may: one above each limit. */
static const uint64_t wire_extremes[] = {
    0,
    1,
    2,
    PROTO_CLOSE_MAX,
    PROTO_CLOSE_MAX + 1,
    PROTO_POOLS_MAX,
    PROTO_POOLS_MAX + 1,
    PROTO_PAGE_FENCES,
    PROTO_PAGE_FENCES + 1,
    PROTO_ROW_PARTS_MAX,
    PROTO_ROW_PARTS_MAX + 1,
    PROTO_TEXT_MAX,
    PROTO_TEXT_MAX + 1,
    PROTO_PACKET_MAX,
    PROTO_PACKET_MAX + 1,
    PROTO_PAGE_BYTES,
    PROTO_PAGE_BYTES + 1,
    PROTO_CHANNEL_PLACES,
    PROTO_CHANNEL_PLACES + 1,
    PROTO_CHANNEL_SLOTS_MAX,
    PROTO_CHANNEL_SLOTS_MAX + 1,
    PROTO_DIRECTORY_PART_MAX,
    PROTO_DIRECTORY_PART_MAX + 1,
    UINT64_C(1) << 20,
    (UINT64_C(1) << 20) + 1,
    UINT64_C(1) << 21,
    UINT64_C(1) << 22,
    (UINT64_C(1) << 22) + (UINT64_C(1) << 21),
    PROTO_SIZE_MAX,
    PROTO_SIZE_MAX + 1,
    UINT64_C(1) << 31,
    UINT32_MAX,
    UINT64_C(1) << 32,
    INT64_MAX,
    UINT64_C(1) << 63,
    UINT64_MAX - 511,
    UINT64_MAX,
};
#define WIRE_EXTREMES (sizeof wire_extremes / sizeof *wire_extremes)

/* Sets a field of a packet: the low bytes of the value, little-endian. */
static inline void wire_set(const struct wire_field *field, uint64_t value, uint8_t *packet) {
    for (size_t i = 0; i < field->size; i++)
        packet[field->offset + i] = (uint8_t)(value >> (8 * i));
}

#endif
