/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model: which buffers have which bytes. It knows the programs' buffers from the public calls, the
 * mappings from the GPU, and the leases from the daemon's core. It knows nothing of heaps.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/core/core.h"
#include "daemon/core/session.h"
#include "daemon/core/types.h"
#include "tests/joint/world.h"

#define STREAM_HEAP_SMALL_MAX_BYTES                                                                          \
    (4 * MIB) /* as client/core/stream_heap.h has it, which does not go with the daemon's */

/* --- what the daemon lends --- */

static unsigned segment_number(const struct segment *segment) {
    for (unsigned i = 0; i < world.n_segments; i++)
        if (!world.segments[i].is_retired && world.segments[i].id == segment->id)
            return i;
    return JOINT_SEGMENTS;
}

/* Takes from the part what a range of a lease has of it, from the front. */
static bool take_front(struct part *part, const struct heap_range *range) {
    uint64_t end = range->offset + range->size;
    if (segment_number(range->span->user) != part->segment || range->offset > part->offset_bytes ||
        end <= part->offset_bytes)
        return false;
    uint64_t taken = end - part->offset_bytes < part->size_bytes ? end - part->offset_bytes : part->size_bytes;
    part->offset_bytes += taken;
    part->size_bytes -= taken;
    return taken > 0;
}

static bool is_lent(const struct session *session, struct part part) {
    bool any = true;

    while (part.size_bytes > 0 && any) {
        any = false;
        list_for_each_entry(const struct lease, lease, &session->leases, session_link) {
            if (lease->fence != NULL)
                continue;
            list_for_each_entry(const struct heap_range, range, &lease->block->ranges, user_link) {
                any = take_front(&part, range) || any;
            }
        }
    }
    return part.size_bytes == 0;
}

static void check_lent(const struct joint_client *client, const struct parts *parts) {
    const struct session *session = daemon_session(client->number);

    if (client->is_broken || session == NULL)
        return;
    for (unsigned i = 0; i < parts->count; i++)
        must(is_lent(session, parts->list[i]), "a buffer has bytes that the daemon lends its client");
}

/* --- buffers --- */

static void check_alone(const struct held *own) {
    for (unsigned c = 0; c < world.n_clients; c++) {
        const struct joint_client *client = &world.clients[c];
        if (client->is_killed)
            continue;
        for (unsigned b = 0; b < JOINT_BUFFERS; b++) {
            const struct held *held = &client->buffers[b];
            must(!held->is_used || held == own || held->instance == own->instance ||
                     !parts_meet(&held->parts, &own->parts),
                 "no two buffers have the same bytes");
        }
    }
}

void model_resize(struct joint_client *client, struct held *held) {
    must(gpu_resolve(held->buffer.data, held->buffer.capacity_bytes, &held->parts),
         "all addresses of a buffer map memory");
    check_lent(client, &held->parts);
    check_alone(held);
}

static void begin_use(struct held *held, const struct gpupool_buffer *buffer, void *stream) {
    held->is_used = true;
    held->is_of_capture = held->was_elsewhere = held->is_shared = held->is_rewritten = false;
    held->loan = ++world.next_instance;
    held->behind_loan = held->behind_order = 0;
    held->buffer = *buffer;
    held->origin = held->stream = stream;
}

void model_attach(struct joint_client *client, struct held *held, const struct gpupool_buffer *buffer,
                  const struct joint_token *token, void *stream) {
    must(buffer->pool == token->pool && buffer->size_bytes == token->size_bytes &&
             buffer->capacity_bytes == token->capacity_bytes,
         "a buffer that is attached is as large as the one that was shared");
    begin_use(held, buffer, stream);
    held->is_shared = true;
    held->instance = token->instance;
    held->behind_loan = token->loan;
    held->behind_order = token->order;
    model_resize(client, held);
    must(parts_are_same(&held->parts, &token->parts),
         "a buffer that is attached has the bytes that were shared");
    if (stream == GPUPOOL_NO_STREAM)
        must(gpu_is_past(token->loan, token->order), "the writer's work is done when no stream waits for it");
}

void model_reuse(struct held *held) {
    held->instance = ++world.next_instance;
    check_alone(held);
}

void model_hand_out(struct joint_client *client, struct held *held, const struct gpupool_buffer *buffer,
                    void *stream) {
    must(buffer->capacity_bytes >= buffer->size_bytes && (uintptr_t)buffer->data % 512 == 0,
         "a buffer is as large as was asked");
    begin_use(held, buffer, stream);
    held->instance = ++world.next_instance;
    model_resize(client, held);
    if (buffer->kind == GPUPOOL_POOL_HOST || stream == GPUPOOL_NO_STREAM)
        must(gpu_is_done_with(&held->parts), "the GPU is done with memory that no stream orders");
}

/* --- sums --- */

uint64_t model_leased(unsigned client, unsigned pool) {
    const struct session *session = daemon_session(client);
    return session != NULL ? session->pools[pool].leased_bytes : 0;
}

uint64_t model_live(unsigned client, unsigned pool) {
    uint64_t bytes = 0;
    for (unsigned b = 0; b < JOINT_BUFFERS; b++) {
        const struct held *held = &world.clients[client].buffers[b];
        if (held->is_used && held->buffer.pool == pool + 1)
            bytes += held->buffer.capacity_bytes;
    }
    return bytes;
}

/* A range of a segment that is taken. */
struct taken {
    uint64_t start, end;
    bool any;
};

/* Notes a range if it is the first one that ends above an offset. */
static void note_taken(struct taken *taken, uint64_t offset, uint64_t start, uint64_t size) {
    if (start + size > offset && (!taken->any || start < taken->start))
        *taken = (struct taken){start, start + size, true};
}

static void note_buffers(struct taken *taken, const struct joint_client *client, unsigned segment,
                         uint64_t offset) {
    for (unsigned b = 0; b < JOINT_BUFFERS; b++) {
        const struct held *held = &client->buffers[b];
        for (unsigned i = 0; held->is_used && i < held->parts.count; i++)
            if (held->parts.list[i].segment == segment)
                note_taken(taken, offset, held->parts.list[i].offset_bytes, held->parts.list[i].size_bytes);
    }
}

static void note_leases(struct taken *taken, const struct session *session, unsigned segment,
                        uint64_t offset) {
    list_for_each_entry(const struct lease, lease, &session->leases, session_link) {
        list_for_each_entry(const struct heap_range, range, &lease->block->ranges, user_link) {
            if (segment_number(range->span->user) == segment)
                note_taken(taken, offset, range->offset, range->size);
        }
    }
}

/* A block that is on its way by a token may be in no buffer. */
static void note_parcels(struct taken *taken, unsigned segment, uint64_t offset) {
    for (size_t i = 0; i < world.core->parcels.count; i++) {
        list_for_each_entry(const struct heap_range, range, &world.core->parcels.entries[i]->block->ranges,
                            user_link) {
            if (segment_number(range->span->user) == segment)
                note_taken(taken, offset, range->offset, range->size);
        }
    }
}

/* The first range from an offset on that is taken: by a buffer; or, in the eyes of one client, by a buffer of
 * its own or by a lease of another one. */
static struct taken next_taken(const struct joint_client *alone, unsigned segment, uint64_t offset) {
    struct taken taken = {0};

    note_parcels(&taken, segment, offset);
    for (unsigned c = 0; c < world.n_clients; c++) {
        const struct joint_client *client = &world.clients[c];
        const struct session *session = daemon_session(c);
        if (client->is_killed)
            continue;
        if (alone == NULL || alone == client)
            note_buffers(&taken, client, segment, offset);
        else if (session != NULL)
            note_leases(&taken, session, segment, offset);
    }
    return taken;
}

static uint64_t largest_range(const struct joint_client *alone, unsigned segment) {
    uint64_t offset = 0, most = 0, size = world.segments[segment].size_bytes;
    struct taken taken;

    while ((taken = next_taken(alone, segment, offset)).any) {
        if (taken.start > offset && taken.start - offset > most)
            most = taken.start - offset;
        offset = taken.end;
    }
    return size - offset > most ? size - offset : most;
}

uint64_t model_room(const struct joint_client *client, const struct wanting *wanting, bool alone) {
    unsigned p = wanting->pool - 1;
    const struct pool *pool = world.core->pools[p];
    const struct session *session = daemon_session(client->number);
    uint64_t growth = pool->limit_bytes > pool->reserved_bytes ? pool->limit_bytes - pool->reserved_bytes : 0;
    uint64_t slots = 0, range = 0;

    if (pool->growth.retry_ns > world.now_ns || pool->retiring_bytes > 0)
        growth = 0; /* the driver has refused memory a while ago */

    list_for_each_entry(const struct segment, segment, &pool->segments, link) {
        unsigned number = segment_number(segment);
        uint64_t most = number < JOINT_SEGMENTS ? largest_range(alone ? client : NULL, number) : 0;
        bool is_own = segment->owner != NULL && session != NULL && segment->owner->tenant == session->tenant;
        if (!is_own && segment->owner != NULL)
            continue; /* another user's: it would have to go to the driver and come back */
        if (segment->is_orphan)
            continue; /* nothing more is lent of it */
        if (most > range)
            range = most;
        if (most == segment->size_bytes && most == JOINT_SLOT)
            slots += most;
    }
    uint64_t apart = slots + growth, side_by_side = range > growth ? range : growth;
    bool has_arenas = p == JOINT_VMM && (client->flags & GPUPOOL_OPEN_NO_CACHE) == 0;
    if (!has_arenas || wanting->size_bytes <= STREAM_HEAP_SMALL_MAX_BYTES / 8 * 7)
        return side_by_side;
    /* Large pieces lie in arenas, of which whole slots alone count: a request that waits for slots takes no
     * range. Those that are rounded up to a large one, or are not, may be of either kind; so may all where an
     * arena found no memory. */
    bool is_of_slots = wanting->size_bytes > STREAM_HEAP_SMALL_MAX_BYTES && world.memory_fails == 0;
    return apart < side_by_side || is_of_slots ? apart : side_by_side;
}

bool model_has_segment(const struct joint_client *client, const struct wanting *wanting) {
    const struct session *session = daemon_session(client->number);
    uint64_t held[JOINT_SEGMENTS] = {0};

    if (session == NULL)
        return false;
    list_for_each_entry(const struct lease, lease, &session->leases, session_link) {
        list_for_each_entry(const struct heap_range, range, &lease->block->ranges, user_link) {
            if (lease->fence == NULL && !lease->block->shared)
                held[segment_number(range->span->user)] += range->size;
        }
    }
    for (unsigned i = 0; i < world.n_segments; i++)
        if (world.segments[i].pool == wanting->pool - 1 &&
            world.segments[i].size_bytes >= wanting->size_bytes && held[i] == world.segments[i].size_bytes &&
            session->pools[wanting->pool - 1].leased_bytes > held[i])
            return true;
    return false;
}

void model_tell(unsigned p) {
    const struct pool *pool = world.core->pools[p];

    if (getenv("JOINT_ABORT") == NULL)
        return;
    daemon_tell();
    fprintf(stderr,
            "pool %u: limit %" PRIu64 ", reserved %" PRIu64 ", leased %" PRIu64 ", closing %" PRIu64
            ", requests %zu, growth.bytes %" PRIu64 "\n",
            p, pool->limit_bytes, pool->reserved_bytes, pool->leased_bytes, pool->closing_bytes,
            (size_t)pool->waiters.count, pool->growth.bytes);
    list_for_each_entry(const struct segment, segment, &pool->segments, link) {
        fprintf(stderr, "  segment %" PRIu64 " of %" PRIu64 ", state %d, mappers %u (deaf %u):", segment->id,
                segment->size_bytes, segment->state, segment->mappers, segment->deaf_mappers);
        for (const struct heap_range *range = segment->span != NULL ? segment->span->lowest : NULL;
             range != NULL; range = range->upper)
            fprintf(stderr, " %" PRIu64 "%s", range->size, range->free ? "f" : "t");
        for (unsigned c = 0; c < world.n_clients; c++) {
            const struct session *session = daemon_session(c);
            if (session != NULL && session_has_mapped(session, segment))
                fprintf(stderr, " client %u%s", c, session_was_told(session, segment) ? " (told)" : "");
        }
        fprintf(stderr, "\n");
    }
}
