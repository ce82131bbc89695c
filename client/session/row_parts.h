/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_ROW_PARTS_H
#define CLIENT_SESSION_ROW_PARTS_H
/*
 * The parts of a lease's block: what the daemon tells of them, and the segments that they lie in. A block in one
 * segment has one part. The row of a lease maps the segments of its parts side by side (row.h).
 *
 * The lease stays the caller's throughout, and so its segments stay in the session's table.
 */
#include <stdint.h>

#include "client/session/segment.h"
#include "proto/proto.h"

struct session;

/* How many parts a block has of which the daemon says parts. */
static inline uint32_t row_parts_count(uint32_t parts) {
    return parts == 0 ? 1 : parts;
}

/* Lists the parts of a lease: asks the daemon for them, and has it describe the segments that this session has
 * not seen. segment: the lease's. parts: room for row_parts_count() of them. 0, NO_MEMORY, PROTOCOL (what the
 * daemon said does not check out, and the connection is broken), or what the daemon and the connection say. */
int row_parts_list(struct session *session, const struct proto_lease *lease, const struct segment *segment,
                   struct proto_part *parts);

/* Imports the segments of parts that were listed. uuid names the pool's device. mapped: room for count of them;
 * each gets its segment, and the part's number. 0, PROTOCOL, or as segments_import(). */
int row_parts_import(struct session *session, const struct proto_lease *lease, const struct proto_part *parts,
                     uint32_t count, const uint8_t uuid[PROTO_UUID_BYTES], struct mapped_part *mapped);

#endif
