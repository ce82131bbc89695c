/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/lease.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/call_time.h"
#include "client/session/error.h"
#include "client/session/segment_kind.h"
#include "client/session/session.h"

void lease_give_back(struct session *session, const struct proto_lease *lease) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    (void)lease_release(session, lease->lease, lease->generation, 0, 0, FENCE_NONE);
    error_restore(text);
}

static int refuse_access(const struct segment *segment, struct lease_access access) {
    bool is_of_host = segment_kind(segment->kind)->pool_kind == PROTO_POOL_HOST;
    bool is_read = access.access == GPU_ACCESS_READ;

    return error_set(GPUPOOL_E_INVALID, "%s cannot be mapped %s: attach without %s%s",
                     is_of_host ? "host memory" : "memory by legacy handles",
                     is_read ? "for reading alone" : "at addresses of the buffer's own",
                     is_read ? "GPUPOOL_READ_ONLY" : "GPUPOOL_CAN_SLEEP",
                     is_of_host ? "" : ", or have the pool configured with export = vmm");
}

/* Has the daemon describe the segment of a lease's part again. */
static int describe_again(struct session *session, const struct lease_part *part,
                          const struct segment *segment) {
    struct connection *connection = &session->connection;
    _cleanup_(request_recyclep) struct request *request = connection_request(connection, PROTO_DESCRIBE);

    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.describe = (struct proto_part_name){.lease = part->lease,
                                                         .generation = part->generation,
                                                         .part = part->part,
                                                         .flags = PROTO_DESCRIBE_AGAIN};
    int r = connection_exchange(connection, &request, connection_deadline_ns(connection, 0));
    if (r < 0)
        return r;
    return request->message.lease.segment == segment->id
               ? 0
               : connection_refuse(connection, "a description of another segment than asked for");
}

int lease_bring(struct session *session, const struct lease_part *part, struct segment *segment,
                const uint8_t uuid[PROTO_UUID_BYTES], bool imports) {
    int (*bring)(struct segments *, struct segment *, struct devices *, const uint8_t *) =
        imports ? segments_import : segments_open;
    int r = bring(&session->segments, segment, &session->devices, uuid);

    if (r == SEGMENT_IS_LOST)
        r = describe_again(session, part, segment);
    else if (r == 0)
        return 0;
    if (r == 0)
        r = bring(&session->segments, segment, &session->devices, uuid);
    if (r < 0 && error_lacks_descriptors()) /* the driver does not say why it failed */
        return error_prefix(r, "no descriptor is free (EMFILE%s)", error_advice(EMFILE));
    return r == SEGMENT_IS_LOST ? error_lost_descriptor("mapping a segment") : r;
}

/* Makes the memory of a lease accessible: *ret_memory. A row is mapped apart, and so is memory that is for
 * reading, or is to have addresses of its own. */
static int open_memory(struct session *session, const struct proto_lease *lease, struct segment *segment,
                       const struct pool *pool, struct lease_access access, char **ret_memory) {
    bool is_apart = lease->parts != 0 || access.access == GPU_ACCESS_READ || access.is_own;

    if (is_apart && !segment_is_movable(segment))
        return refuse_access(segment, access);
    int r = lease_bring(session, &(struct lease_part){lease->lease, lease->generation, 0}, segment,
                        pool->uuid, is_apart);
    if (r < 0)
        return r;
    if (is_apart)
        return rows_open(session, lease, segment, pool->uuid, access, ret_memory);
    *ret_memory = (char *)segment->memory + lease->offset_bytes;
    return 0;
}

int lease_accept(struct session *session, const struct request *reply, struct lease_access access,
                 struct grant *ret_grant) {
    struct pool pool;
    char *memory;

    const struct proto_lease *lease = &reply->message.lease;
    struct segment *segment = reply->segment;
    if (lease->parts != 0 && reply->operation != PROTO_ATTACH)
        return connection_refuse(&session->connection,
                                 "a lease in several segments, which was not asked for");
    int r = pools_find(session, lease->pool, &pool);
    if (r == 0 && segment_kind(segment->kind)->pool_kind != pool.kind)
        return connection_refuse(&session->connection, "a segment of another kind than its pool");
    if (r == 0)
        r = open_memory(session, lease, segment, &pool, access, &memory);
    if (r < 0) {
        lease_give_back(session, lease);
        return r;
    }
    fences_show(&session->fences);
    *ret_grant =
        (struct grant){.lease = *lease, .segment = segment, .memory = memory, .pool_kind = pool.kind};
    return 0;
}

int lease_take(struct session *session, struct request *request, uint64_t deadline_ns,
               struct lease_access access, struct grant *ret_grant) {
    _cleanup_(request_recyclep) struct request *reply = request;

    int r = connection_exchange(&session->connection, &reply, deadline_ns);
    return r < 0 ? r : lease_accept(session, reply, access, ret_grant);
}

void lease_give_back_segments(struct session *session, const struct segment_grant *grants, uint32_t count) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (uint32_t i = 0; i + 1 < count; i++)
        (void)lease_release_one_way(session, grants[i].lease, grants[i].generation, 0, 0, FENCE_NONE);
    if (count > 0)
        (void)lease_release(session, grants[count - 1].lease, grants[count - 1].generation, 0, 0, FENCE_NONE);
    error_restore(text);
}

/* Ends the exchange of a CLOSED. One that the daemon took is as good as answered. */
static int end_closed(struct closing *closing, int r) {
    if (r == 0) {
        request_recycle(take_ptr(&closing->closed));
    } else if (closing->closed != NULL && closing->closed->is_sent) {
        connection_let_go(&closing->closed);
    }
    return r;
}

/* Closes a segment and tells the daemon. A segment that the driver would not close stays the session's until
 * its end. */
static int close_segment(struct session *session, uint32_t pool_id, uint64_t segment) {
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&session->connection, PROTO_CLOSED);
    uint64_t start_ns = clock_now_ns();

    if (request == NULL) {
        (void)segments_name(&session->segments, segment);
        return GPUPOOL_E_NO_MEMORY;
    }
    int r = rows_remove_segment(session, segment, pool_id);
    if (r == -EBADMSG)
        return connection_refuse(&session->connection, "it has a segment closed that is not there");
    if (r < 0)
        return 0;
    request->message.closed = (struct proto_closed){.segment = segment, .time_ns = clock_now_ns() - start_ns};
    session->closing.closed = take_ptr(&request);
    r = connection_exchange_kept(&session->connection, &session->closing.closed,
                                 connection_deadline_ns(&session->connection, 0));
    return end_closed(&session->closing, r);
}

static int close_all_named(struct session *session) {
    struct closing *closing = &session->closing;
    uint64_t id;
    uint32_t pool;
    int r = 0;

    if (closing->closed != NULL)
        r = end_closed(closing, connection_go_on(&session->connection, &closing->closed,
                                                 connection_deadline_ns(&session->connection, 0)));
    while (r == 0 && segments_take_named(&session->segments, &id, &pool))
        r = close_segment(session, pool, id);
    return r;
}

int lease_close_named(struct session *session) {
    struct closing *closing = &session->closing;

    if (!call_time_lock(&closing->lock))
        return error_set(GPUPOOL_E_TIMED_OUT, "another thread closes segments, and waits for the daemon");
    int r = close_all_named(session);
    pthread_mutex_unlock(&closing->lock);
    return r;
}

/* Closes the segments of a reply. The rest, if the daemon does not answer, is closed later. The reply is
 * recycled before, so that there is memory for the first CLOSED: a client without a cache would try it again
 * with its next shortage only. */
static int close_named(struct session *session, struct request *reply) {
    struct proto_segments segments = reply->message.segments;

    request_recycle(reply);
    for (uint32_t i = 0; i < segments.count; i++)
        if (!segments_name(&session->segments, segments.ids[i]))
            return connection_refuse(&session->connection, "it has a segment closed that is not there");
    return lease_close_named(session);
}

/* As many as one message has room for. */
static int close_some_offered(struct session *session, const struct proto_offer *offer, uint64_t *ids) {
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&session->connection, PROTO_OFFER);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.offer = *offer;
    int r =
        connection_exchange(&session->connection, &request, connection_deadline_ns(&session->connection, 0));
    if (r < 0)
        return r;
    const struct proto_segments *segments = &request->message.segments;
    for (uint32_t i = 0; i < offer->count; i++)
        for (uint32_t j = 0; j < segments->count; j++)
            if (segments->ids[j] == offer->ids[i])
                ids[i] = 0;
    return close_named(session, take_ptr(&request));
}

int lease_close_offered(struct session *session, uint32_t pool_id, uint64_t *ids, size_t count) {
    int r = 0;

    for (size_t done = 0, n; r == 0 && done < count; done += n) {
        struct proto_offer offer = {.pool = pool_id};
        n = count - done < PROTO_CLOSE_MAX ? count - done : PROTO_CLOSE_MAX;
        offer.count = (uint32_t)n;
        memcpy(offer.ids, ids + done, n * sizeof *ids);
        r = close_some_offered(session, &offer, ids + done);
    }
    return r;
}

/* As many as one message names. Returns 0, and whether there may be more. */
static int close_some(struct session *session, const struct proto_idle *idle, bool *ret_more, bool *ret_any) {
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&session->connection, PROTO_IDLE);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.idle = *idle;
    int r =
        connection_exchange(&session->connection, &request, connection_deadline_ns(&session->connection, 0));
    if (r < 0)
        return r;
    uint32_t count = request->message.segments.count;
    *ret_more = count == PROTO_CLOSE_MAX;
    *ret_any = *ret_any || count > 0;
    return close_named(session, take_ptr(&request));
}

int lease_close_idle(struct session *session, uint32_t pool_id, uint64_t size_bytes, bool is_busy,
                     bool *ret_any) {
    const struct proto_idle idle = {
        .pool = pool_id, .flags = is_busy ? PROTO_IDLE_BUSY : 0, .size_bytes = size_bytes};
    bool more = true;
    int r = 0;

    *ret_any = false;
    while (r == 0 && more)
        r = close_some(session, &idle, &more, ret_any);
    return r;
}

static struct proto_release release_of(struct session *session, uint64_t lease, uint64_t generation,
                                       uint64_t offset_bytes, uint64_t size_bytes, struct fence fence) {
    bool is_ready = fence_is_ready(session, fence);
    return (struct proto_release){
        .lease = lease,
        .generation = generation,
        .offset_bytes = offset_bytes,
        .size_bytes = size_bytes,
        .fence = is_ready ? 0 : fence.word,
        .fence_value = is_ready ? 0 : fence.value,
    };
}

int lease_release_one_way(struct session *session, uint64_t lease, uint64_t generation, uint64_t offset_bytes,
                          uint64_t size_bytes, struct fence fence) {
    struct proto_message message = {
        .header.operation = PROTO_RELEASE,
        .release = release_of(session, lease, generation, offset_bytes, size_bytes, fence)};
    return connection_tell(&session->connection, &message, connection_deadline_ns(&session->connection, 0));
}

/* Exchanges a request of which it is enough that the daemon has taken it: it reads its messages in order, and
 * does as this one says. */
static int exchange_or_trust(struct session *session, struct request *request) {
    int r = connection_exchange_kept(&session->connection, &request,
                                     connection_deadline_ns(&session->connection, 0));
    bool is_taken =
        (r == GPUPOOL_E_TIMED_OUT || r == GPUPOOL_E_CANCELLED) && request != NULL && request->is_sent;

    if (r == 0)
        request_recycle(request);
    else
        connection_let_go(&request);
    return is_taken ? 0 : r;
}

int lease_release(struct session *session, uint64_t lease, uint64_t generation, uint64_t offset_bytes,
                  uint64_t size_bytes, struct fence fence) {
    struct request *request = connection_request(&session->connection, PROTO_RELEASE);

    if (request == NULL)
        return size_bytes == 0 && fence.word == 0
                   ? lease_release_one_way(session, lease, generation, 0, 0, FENCE_NONE)
                   : GPUPOOL_E_NO_MEMORY;
    request->message.release = release_of(session, lease, generation, offset_bytes, size_bytes, fence);
    return exchange_or_trust(session, request);
}

int lease_release_kept(struct session *session, uint64_t lease, uint64_t generation, uint64_t offset_bytes,
                       uint64_t size_bytes, struct fence fence, struct request **ret_kept) {
    struct request *request = connection_request(&session->connection, PROTO_RELEASE);

    *ret_kept = NULL;
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.release = release_of(session, lease, generation, offset_bytes, size_bytes, fence);
    int r = connection_exchange_kept(&session->connection, &request,
                                     connection_deadline_ns(&session->connection, 0));
    if (r == 0)
        request_recycle(request);
    else if (request != NULL && request->is_sent)
        *ret_kept = request;
    else
        connection_let_go(&request);
    return r;
}

/* At the daemon's limit of what waits for fences: releases when the fence is ready. */
static int release_later(struct session *session, uint64_t lease, uint64_t generation, uint64_t offset_bytes,
                         uint64_t size_bytes, struct fence fence) {
    int r = fence_wait(session, fence, -1, connection_deadline_ns(&session->connection, 0));
    if (r < 0)
        return error_prefix(r,
                            "the daemon keeps as much that waits for its fence as it does for one session");
    return lease_release(session, lease, generation, offset_bytes, size_bytes, FENCE_NONE);
}

int lease_release_shared(struct session *session, uint64_t lease, uint64_t generation, struct fence fence,
                         const struct proto_board_fence *board_fence) {
    const struct proto_release release = {.lease = lease,
                                          .generation = generation,
                                          .fence = fence.word,
                                          .fence_value = fence.value,
                                          .board_word = board_fence->word + 1,
                                          .board_value = board_fence->value};

    if (connection_unheard(&session->connection) < PROTO_UNHEARD_MAX) {
        const struct proto_message message = {.header.operation = PROTO_RELEASE, .release = release};
        return connection_tell(&session->connection, &message,
                               connection_deadline_ns(&session->connection, 0));
    }
    struct request *request = connection_request(&session->connection, PROTO_RELEASE);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.release = release;
    return exchange_or_trust(session, request);
}

int lease_release_patiently(struct session *session, uint64_t lease, uint64_t generation,
                            uint64_t offset_bytes, uint64_t size_bytes, struct fence fence) {
    int r = lease_release(session, lease, generation, offset_bytes, size_bytes, fence);
    return r == GPUPOOL_E_LIMIT && fence.word != 0
               ? release_later(session, lease, generation, offset_bytes, size_bytes, fence)
               : r;
}

/* Ends the exchange of a SPLIT: r, and the request as connection_exchange_kept() left it. */
static int end_split(struct session *session, int r, struct request *request, uint64_t size_bytes,
                     struct proto_lease *ret_lease, struct request **ret_kept) {
    if (r < 0) {
        if (request != NULL && request->is_sent)
            *ret_kept = request;
        else
            connection_let_go(&request);
        return r;
    }
    bool fits = request->message.lease.capacity_bytes == size_bytes && request->message.lease.parts == 0;
    *ret_lease = request->message.lease;
    request_recycle(request);
    return fits ? 0 : connection_refuse(&session->connection, "a lease of another part than asked for");
}

int lease_split(struct session *session, uint64_t lease, uint64_t generation, uint64_t offset_bytes,
                uint64_t size_bytes, struct proto_lease *ret_lease, struct request **ret_kept) {
    struct request *request = connection_request(&session->connection, PROTO_SPLIT);

    *ret_kept = NULL;
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.split = (struct proto_release){
        .lease = lease,
        .generation = generation,
        .offset_bytes = offset_bytes,
        .size_bytes = size_bytes,
    };
    /* The memory is in use and mapped: nothing is to be opened, and nothing may be given back. */
    int r = connection_exchange_kept(&session->connection, &request,
                                     connection_deadline_ns(&session->connection, 0));
    return end_split(session, r, request, size_bytes, ret_lease, ret_kept);
}

int lease_split_go_on(struct session *session, struct request **kept, uint64_t size_bytes,
                      uint64_t deadline_ns, struct proto_lease *ret_lease) {
    int r = connection_go_on(&session->connection, kept, deadline_ns);
    return end_split(session, r, take_ptr(kept), size_bytes, ret_lease, kept);
}

static struct proto_merge merge_of(uint64_t lease, uint64_t generation, const struct proto_lease *other) {
    return (struct proto_merge){.lease = lease,
                                .generation = generation,
                                .other_lease = other->lease,
                                .other_generation = other->generation};
}

bool lease_merge_put(struct session *session, uint64_t lease, uint64_t generation,
                     const struct proto_lease *other) {
    const struct proto_message message = {.header.operation = PROTO_MERGE,
                                          .merge = merge_of(lease, generation, other)};
    return connection_put(&session->connection, &message);
}

int lease_merge_one_way(struct session *session, uint64_t lease, uint64_t generation,
                        const struct proto_lease *other) {
    const struct proto_message message = {.header.operation = PROTO_MERGE,
                                          .merge = merge_of(lease, generation, other)};
    return connection_tell(&session->connection, &message, connection_deadline_ns(&session->connection, 0));
}

int lease_append(struct session *session, const struct proto_lease *lease, const struct proto_lease *other,
                 bool is_answered) {
    if (!is_answered)
        return lease_merge_one_way(session, lease->lease, lease->generation, other);
    struct request *request = connection_request(&session->connection, PROTO_MERGE);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.merge = merge_of(lease->lease, lease->generation, other);
    return exchange_or_trust(session, request);
}
