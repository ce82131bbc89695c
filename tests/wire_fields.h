/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_WIRE_FIELDS_H
#define TESTS_WIRE_FIELDS_H
/*
 * Every field of every message, and the values at which it is tried: for those who change one field of a
 * message that is otherwise good, on either side. Ids that are random bytes (tokens) and texts are left out.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/proto.h"

struct wire_field {
    unsigned operation; /* 0: of every message's header */
    size_t offset, size;
    const char *name;
};

#define WIRE_FIELD(operation, type, member)                                                                  \
    {                                                                                                        \
        operation, sizeof(struct proto_header) + offsetof(struct type, member),                              \
            sizeof(((struct type *)0)->member), #operation "." #member                                       \
    }
#define WIRE_HEADER(member)                                                                                  \
    {                                                                                                        \
        0, offsetof(struct proto_header, member), sizeof(((struct proto_header *)0)->member),                \
            "header." #member                                                                                \
    }

static const struct wire_field wire_header_fields[] = {
    WIRE_HEADER(operation),
    WIRE_HEADER(reserved),
    WIRE_HEADER(length),
    WIRE_HEADER(request),
};
#define WIRE_HEADER_FIELDS (sizeof wire_header_fields / sizeof *wire_header_fields)

/* From client to daemon. */
static const struct wire_field wire_request_fields[] = {
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
    WIRE_FIELD(PROTO_RELEASE, proto_release, reserved),
    WIRE_FIELD(PROTO_RELEASE, proto_release, fence_value),
    WIRE_FIELD(PROTO_SPLIT, proto_release, lease),
    WIRE_FIELD(PROTO_SPLIT, proto_release, generation),
    WIRE_FIELD(PROTO_SPLIT, proto_release, offset_bytes),
    WIRE_FIELD(PROTO_SPLIT, proto_release, size_bytes),
    WIRE_FIELD(PROTO_SPLIT, proto_release, fence),
    WIRE_FIELD(PROTO_SPLIT, proto_release, reserved),
    WIRE_FIELD(PROTO_SPLIT, proto_release, fence_value),
    WIRE_FIELD(PROTO_MERGE, proto_merge, lease),
    WIRE_FIELD(PROTO_MERGE, proto_merge, generation),
    WIRE_FIELD(PROTO_MERGE, proto_merge, other_lease),
    WIRE_FIELD(PROTO_MERGE, proto_merge, other_generation),
    WIRE_FIELD(PROTO_SHARE, proto_share, lease),
    WIRE_FIELD(PROTO_SHARE, proto_share, generation),
    WIRE_FIELD(PROTO_SHARE, proto_share, size_bytes),
    WIRE_FIELD(PROTO_QUERY, proto_lease_name, lease),
    WIRE_FIELD(PROTO_QUERY, proto_lease_name, generation),
    WIRE_FIELD(PROTO_OPENED, proto_opened, segment),
    WIRE_FIELD(PROTO_IDLE, proto_idle, pool),
    WIRE_FIELD(PROTO_IDLE, proto_idle, flags),
    WIRE_FIELD(PROTO_IDLE, proto_idle, size_bytes),
    WIRE_FIELD(PROTO_CLOSED, proto_closed, segment),
    WIRE_FIELD(PROTO_CLOSED, proto_closed, time_ns),
};
#define WIRE_REQUEST_FIELDS (sizeof wire_request_fields / sizeof *wire_request_fields)

/* From daemon to client. Of arrays, the first member. */
static const struct wire_field wire_reply_fields[] = {
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, magic),
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, version),
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, gpu),
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, session),
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, daemon_pid),
    WIRE_FIELD(PROTO_HELLO_REPLY, proto_hello_reply, flags),
    WIRE_FIELD(PROTO_POOLS, proto_pools, count),
    WIRE_FIELD(PROTO_POOLS, proto_pools, reserved),
    WIRE_FIELD(PROTO_POOLS, proto_pools, pools[0].id),
    WIRE_FIELD(PROTO_POOLS, proto_pools, pools[0].kind),
    WIRE_FIELD(PROTO_POOLS, proto_pools, pools[0].device),
    WIRE_FIELD(PROTO_POOLS, proto_pools, pools[0].numa_node),
    WIRE_FIELD(PROTO_POOLS, proto_pools, pools[0].limit_bytes),
    WIRE_FIELD(PROTO_POOLS, proto_pools, pools[0].reserved_bytes),
    WIRE_FIELD(PROTO_POOLS, proto_pools, pools[0].leased_bytes),
    WIRE_FIELD(PROTO_POOLS, proto_pools, pools[0].free_bytes),
    WIRE_FIELD(PROTO_POOLS, proto_pools, pools[0].quarantined_bytes),
    WIRE_FIELD(PROTO_POOLS, proto_pools, pools[0].largest_free_bytes),
    WIRE_FIELD(PROTO_LEASE, proto_lease, lease),
    WIRE_FIELD(PROTO_LEASE, proto_lease, generation),
    WIRE_FIELD(PROTO_LEASE, proto_lease, segment),
    WIRE_FIELD(PROTO_LEASE, proto_lease, offset_bytes),
    WIRE_FIELD(PROTO_LEASE, proto_lease, size_bytes),
    WIRE_FIELD(PROTO_LEASE, proto_lease, capacity_bytes),
    WIRE_FIELD(PROTO_LEASE, proto_lease, pool),
    WIRE_FIELD(PROTO_LEASE, proto_lease, reserved),
    WIRE_FIELD(PROTO_LEASE, proto_lease, description.id),
    WIRE_FIELD(PROTO_LEASE, proto_lease, description.size_bytes),
    WIRE_FIELD(PROTO_LEASE, proto_lease, description.pool),
    WIRE_FIELD(PROTO_LEASE, proto_lease, description.kind),
    WIRE_FIELD(PROTO_INFO, proto_info, segment),
    WIRE_FIELD(PROTO_INFO, proto_info, offset_bytes),
    WIRE_FIELD(PROTO_INFO, proto_info, size_bytes),
    WIRE_FIELD(PROTO_INFO, proto_info, capacity_bytes),
    WIRE_FIELD(PROTO_INFO, proto_info, pool),
    WIRE_FIELD(PROTO_INFO, proto_info, holders),
    WIRE_FIELD(PROTO_INFO, proto_info, shared),
    WIRE_FIELD(PROTO_INFO, proto_info, reserved),
    WIRE_FIELD(PROTO_PAGE, proto_page_reply, size_bytes),
    WIRE_FIELD(PROTO_PAGE, proto_page_reply, reserved),
    WIRE_FIELD(PROTO_SEGMENTS, proto_segments, count),
    WIRE_FIELD(PROTO_SEGMENTS, proto_segments, reserved),
    WIRE_FIELD(PROTO_SEGMENTS, proto_segments, ids[0]),
    WIRE_FIELD(PROTO_ERROR, proto_failure, error),
    WIRE_FIELD(PROTO_ERROR, proto_failure, text_length),
};
#define WIRE_REPLY_FIELDS (sizeof wire_reply_fields / sizeof *wire_reply_fields)

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
    PROTO_TEXT_MAX,
    PROTO_TEXT_MAX + 1,
    PROTO_PACKET_MAX,
    PROTO_PACKET_MAX + 1,
    PROTO_PAGE_BYTES,
    PROTO_PAGE_BYTES + 1,
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
