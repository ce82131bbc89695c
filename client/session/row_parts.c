/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/row_parts.h"

#include <string.h>

#include "base/cleanup.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/lease.h"
#include "client/session/session.h"

/* Asks for all parts of a row. */
static int ask_parts(struct session *session, const struct proto_lease *lease, struct proto_part *parts) {
    uint32_t have = 0;

    while (have < lease->parts) {
        _cleanup_(request_recyclep) struct request *request =
            connection_request(&session->connection, PROTO_ASK_PARTS);
        if (request == NULL)
            return GPUPOOL_E_NO_MEMORY;
        request->message.ask_parts =
            (struct proto_part_name){.lease = lease->lease, .generation = lease->generation, .part = have};
        int r = connection_exchange(&session->connection, &request,
                                    connection_deadline_ns(&session->connection, 0));
        if (r < 0)
            return r;
        const struct proto_parts *reply = &request->message.parts;
        uint32_t left = lease->parts - have, count = left < PROTO_PARTS_MAX ? left : PROTO_PARTS_MAX;
        if (reply->total != lease->parts || reply->count != count)
            return connection_refuse(&session->connection, "PARTS of another number than the row has");
        memcpy(&parts[have], reply->parts, count * sizeof *parts);
        have += count;
    }
    return 0;
}

/* Returns the fault of a row's parts, or NULL. Each part ends in its segment: proto/check.c saw to that. */
static const char *parts_flaw(const struct proto_lease *lease, const struct proto_part *parts) {
    uint64_t bytes = 0;

    if (parts[0].segment != lease->segment || parts[0].offset_bytes != lease->offset_bytes)
        return "the first part of a row is not where the row begins";
    for (uint32_t i = 0; i < lease->parts; i++) {
        const struct proto_part *part = &parts[i];
        bool is_last = i + 1 == lease->parts;
        if ((i > 0 && part->offset_bytes != 0) ||
            (!is_last && part->offset_bytes + part->size_bytes != part->segment_bytes))
            return "the parts of a row have a gap";
        if (part->size_bytes > lease->capacity_bytes - bytes)
            return "the parts of a row are longer than the row";
        bytes += part->size_bytes;
    }
    return bytes == lease->capacity_bytes ? NULL : "the parts of a row are shorter than the row";
}

/* Has the daemon describe the segment of a part. The thread that reads the answer enters the description. */
static int describe(struct session *session, const struct proto_lease *lease, uint32_t number,
                    const struct proto_part *part) {
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&session->connection, PROTO_DESCRIBE);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.describe =
        (struct proto_part_name){.lease = lease->lease, .generation = lease->generation, .part = number};
    int r =
        connection_exchange(&session->connection, &request, connection_deadline_ns(&session->connection, 0));
    if (r < 0)
        return r;
    const struct proto_lease *reply = &request->message.lease;
    if (reply->lease != lease->lease || reply->generation != lease->generation || reply->parts != 0 ||
        reply->segment != part->segment || reply->offset_bytes != part->offset_bytes ||
        reply->capacity_bytes != part->size_bytes)
        return connection_refuse(&session->connection, "a description of another part than asked for");
    return 0;
}

static int describe_unseen(struct session *session, const struct proto_lease *lease,
                           const struct proto_part *parts) {
    int r = 0;

    for (uint32_t i = 0; i < lease->parts && r == 0; i++)
        if (segments_find(&session->segments, parts[i].segment) == NULL)
            r = describe(session, lease, i, &parts[i]);
    return r;
}

int row_parts_list(struct session *session, const struct proto_lease *lease, const struct segment *segment,
                   struct proto_part *parts) {
    if (lease->parts == 0) {
        parts[0] = (struct proto_part){.segment = segment->id,
                                       .segment_bytes = segment->size_bytes,
                                       .offset_bytes = lease->offset_bytes,
                                       .size_bytes = lease->capacity_bytes};
        return 0;
    }
    int r = ask_parts(session, lease, parts);
    if (r < 0)
        return r;
    const char *flaw = parts_flaw(lease, parts);
    return flaw != NULL ? connection_refuse(&session->connection, flaw)
                        : describe_unseen(session, lease, parts);
}

int row_parts_import(struct session *session, const struct proto_lease *lease, const struct proto_part *parts,
                     uint32_t count, const uint8_t uuid[PROTO_UUID_BYTES], struct mapped_part *mapped) {
    int r = 0;

    for (uint32_t i = 0; i < count; i++) {
        struct segment *segment = segments_find(&session->segments, parts[i].segment);
        if (segment == NULL || segment->pool != lease->pool || !segment_is_movable(segment) ||
            segment->size_bytes != parts[i].segment_bytes)
            return connection_refuse(&session->connection,
                                     "a part of a row in another segment than was described");
        mapped[i] = (struct mapped_part){.segment = segment, .number = i};
    }
    for (uint32_t i = 0; i < count && r == 0; i++)
        r = lease_bring(session, &(struct lease_part){lease->lease, lease->generation, i}, mapped[i].segment,
                        uuid, true);
    return r;
}
