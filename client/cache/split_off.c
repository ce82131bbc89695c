/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/split_off.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "client/cache/cache.h"
#include "client/core/arena.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/reader.h"
#include "client/session/session.h"

/* A part of a piece, in one lease. */
struct part {
    struct lending *lending;           /* of which it is a part */
    uint64_t offset_bytes, size_bytes; /* in the lease */
    uint64_t segment;                  /* that it lies in */
    bool is_all;                       /* that the lease has */
    bool is_rest;                      /* of what the lease has: it ends when the part is split off */
    struct proto_lease lease;          /* its own */
};

/* A SPLIT, SHARE or SEND of which nothing was heard yet. */
struct pending_split {
    struct list link; /* in cache->splits, under the split lock */
    struct piece *piece;
    struct request *request;
    struct part part;
    unsigned count;        /* parts of the piece */
    const struct lending *first; /* of the first of them */
    bool is_given;         /* the buffer was released, behind the fence */
    struct fence fence;
};

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* How many slots of an arena a piece is in. */
static unsigned count_parts(const struct piece *piece) {
    const struct arena *arena = arena_of(piece->extent);
    uint64_t offset = (uint64_t)(piece->memory - piece->extent->memory);
    unsigned count = 1;

    if (arena == NULL)
        return 1;
    uint32_t last = arena_slot_at(arena, offset + piece->capacity_bytes - 1);
    for (uint32_t i = arena_slot_at(arena, offset); i < last; i = arena_slot_after(arena, i))
        count++;
    return count;
}

static void list_parts_locked(const struct piece *piece, struct part *parts, unsigned count) {
    struct arena *arena = arena_of(piece->extent);
    uint64_t offset = (uint64_t)(piece->memory - piece->extent->memory), end = offset + piece->capacity_bytes;

    if (arena == NULL) {
        parts[0] = (struct part){.lending = &piece->extent->lending,
                                 .offset_bytes = offset,
                                 .size_bytes = piece->capacity_bytes,
                                 .segment = ((const struct segment *)piece->extent->segment.segment)->id,
                                 .is_all = piece->capacity_bytes == piece->extent->size_bytes};
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        uint32_t number = arena_slot_at(arena, offset);
        uint64_t start = arena_slot_start(arena, number), slot_bytes = arena_slot_bytes(arena, number),
                 to = smaller(start + slot_bytes, end);
        parts[i] = (struct part){.lending = &arena->slots[number].lending,
                                 .offset_bytes = offset - start,
                                 .size_bytes = to - offset,
                                 .segment = arena->slots[number].segment.id,
                                 .is_all = to - offset == slot_bytes,
                                 .is_rest = arena->slots[number].n_out == 0 &&
                                            to - offset + arena->slots[number].absent_bytes == slot_bytes};
        offset = to;
    }
}

/* The answer to a SHARE or SEND says which lease the part became. */
static void note_name(struct part *part, const struct request *request) {
    const struct proto_token_reply *reply = &request->message.token;
    part->lease = (struct proto_lease){.lease = reply->lease, .generation = reply->generation};
}

/* Gives the lease of a part back to the one that it was split from. first: that of the piece's first part. */
static void undo_part(struct cache *cache, struct piece *piece, const struct part *part,
                      const struct lending *first) {
    struct lending *lending = part->lending;

    if (!part->is_rest) {
        (void)lease_merge_one_way(cache->session, lending->lease, lending->generation, &part->lease);
        return;
    }
    pthread_mutex_lock(&piece->stream_heap->lock); /* that lease is no more */
    lending->lease = part->lease.lease;
    lending->generation = part->lease.generation;
    piece->lease = first->lease;
    piece->lease_generation = first->generation;
    pthread_mutex_unlock(&piece->stream_heap->lock);
}

static void undo(struct cache *cache, struct piece *piece, const struct part *parts, unsigned count) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (unsigned i = 0; i < count; i++)
        if (!parts[i].is_all)
            undo_part(cache, piece, &parts[i], parts[0].lending);
    error_restore(text);
}

/* Makes one lease of those of the parts. Of a row that was begun nothing can be taken back. */
static int append(struct cache *cache, const struct part *parts, unsigned count) {
    int r = 0;

    for (unsigned i = 1; i < count && r == 0; i++)
        r = lease_append(cache->session, &parts[0].lease, &parts[i].lease, i % LEASE_ONE_WAY_MAX == 0);
    if (r < 0)
        connection_break(&cache->session->connection, GPUPOOL_E_DISCONNECTED,
                         "the daemon took no more messages while a buffer in %u segments was made one lease",
                         count);
    return r;
}

/* Enters a request that is not answered into *pending, which is taken. Takes the request. */
static void enter_pending(struct cache *cache, struct piece *piece, struct request *request,
                          const struct part *part, unsigned count, const struct lending *first,
                          struct pending_split **pending) {
    struct pending_split *entry = take_ptr(pending);

    *entry = (struct pending_split){
        .piece = piece, .request = request, .part = *part, .count = count, .first = first};
    list_init(&entry->link);
    list_append(&cache->splits, &entry->link);
}

/* Makes a lease of each part, and of all one. */
static int split(struct cache *cache, struct piece *piece, struct part *parts, unsigned count,
                 struct pending_split **pending) {
    struct request *kept;

    for (unsigned i = 0; i < count; i++) {
        const struct lending *lending = parts[i].lending;
        if (parts[i].is_all) { /* that lease itself */
            parts[i].lease = (struct proto_lease){.lease = lending->lease, .generation = lending->generation};
            continue;
        }
        int r = lease_split(cache->session, lending->lease, lending->generation, parts[i].offset_bytes,
                            parts[i].size_bytes, &parts[i].lease, &kept);
        if (r == 0)
            continue;
        undo(cache, piece, parts, i);
        if (kept != NULL)
            enter_pending(cache, piece, kept, &parts[i], count, parts[0].lending, pending);
        return r;
    }
    return append(cache, parts, count);
}

/* Has SHARE or SEND make a lease of the only part, in the same round trip. */
static int split_by_name(struct cache *cache, struct piece *piece, struct part *part,
                         struct request **request, struct pending_split **pending) {
    struct connection *connection = &cache->session->connection;
    struct proto_share *share = &(*request)->message.share; /* SEND begins with it */

    share->lease = part->lending->lease;
    share->generation = part->lending->generation;
    share->offset_bytes = part->offset_bytes;
    share->part_bytes = part->size_bytes;
    int r = connection_exchange_kept(connection, request, connection_deadline_ns(connection, 0));
    if (r == 0)
        note_name(part, *request);
    else if (*request != NULL && (*request)->is_sent)
        enter_pending(cache, piece, take_ptr(request), part, 1, part->lending, pending);
    return r;
}

static int split_off(struct cache *cache, struct piece *piece, struct request **request, bool *ret_is_named) {
    struct stream_heap *stream_heap = piece->stream_heap;
    unsigned count = count_parts(piece);
    _cleanup_(freep) struct part *parts = malloc(count * sizeof *parts);
    _cleanup_(freep) struct pending_split *pending = malloc(sizeof *pending);

    if (parts == NULL || pending == NULL)
        return error_no_memory();
    if (count > PROTO_ROW_PARTS_MAX)
        return error_set(GPUPOOL_E_LIMIT, "the buffer lies in %u segments, and a lease covers %u at most",
                         count, PROTO_ROW_PARTS_MAX);
    pthread_mutex_lock(&stream_heap->lock);
    list_parts_locked(piece, parts, count);
    stream_heap_begin_split_locked(piece);
    pthread_mutex_unlock(&stream_heap->lock);
    bool is_named = count == 1 && !parts[0].is_all;
    int r = is_named ? split_by_name(cache, piece, parts, request, &pending)
                     : split(cache, piece, parts, count, &pending);
    for (unsigned i = 0; r == 0 && i < count; i++)
        held_add(&cache->session->held, parts[0].lease.lease, parts[0].lease.generation, parts[i].segment);
    pthread_mutex_lock(&stream_heap->lock);
    if (r == 0)
        stream_heap_split_off_locked(piece, parts[0].lease.lease, parts[0].lease.generation);
    else if (pending == NULL)
        piece->splitting = true;
    else
        stream_heap_cancel_split_locked(piece);
    pthread_mutex_unlock(&stream_heap->lock);
    if (r < 0)
        return r;
    cache_count_given(cache, stream_heap, piece->capacity_bytes);
    *ret_is_named = is_named;
    return 0;
}

/* --- pending requests; the split lock is held --- */

/* The buffer was released while it was not known which lease its memory is of. */
static void give_late(struct cache *cache, const struct pending_split *pending) {
    struct piece *piece = pending->piece;

    if (!piece->split_off) {
        (void)cache_put_behind(cache, piece, pending->fence);
        return;
    }
    (void)lease_release_one_way(cache->session, piece->lease, piece->lease_generation, 0, 0, pending->fence);
    held_end(&cache->session->held, piece->lease, piece->lease_generation);
    pthread_mutex_lock(&piece->stream_heap->lock);
    piece->generation++;
    stream_heap_forget_piece_locked(piece->stream_heap, piece, pending->fence);
    pthread_mutex_unlock(&piece->stream_heap->lock);
}

/* Waits for the answer, as lease_split_go_on(), and takes the part's lease from it. */
static int await_answer(struct cache *cache, struct pending_split *pending, uint64_t deadline_ns) {
    struct part *part = &pending->part;
    enum proto_operation operation = pending->request->operation;

    if (operation == PROTO_SPLIT)
        return lease_split_go_on(cache->session, &pending->request, part->size_bytes, deadline_ns,
                                 &part->lease);
    int r = connection_go_on(&cache->session->connection, &pending->request, deadline_ns);
    if (r < 0)
        return r;
    note_name(part, pending->request);
    if (operation == PROTO_SEND)
        reader_revoke(take_ptr(&pending->request));
    else
        request_recycle(take_ptr(&pending->request));
    return 0;
}

/* Goes on with a pending request. 0: it is over, and the entry is gone; TIMED_OUT: it is not; or what the
 * connection broke with. */
static int go_on(struct cache *cache, struct pending_split *pending, uint64_t deadline_ns) {
    struct piece *piece = pending->piece;
    struct part *part = &pending->part;

    int r = await_answer(cache, pending, deadline_ns);
    if (pending->request != NULL)
        return r;
    bool is_split_off = r == 0 && pending->count == 1;
    if (is_split_off)
        held_add(&cache->session->held, part->lease.lease, part->lease.generation, part->segment);
    pthread_mutex_lock(&piece->stream_heap->lock);
    piece->splitting = false;
    if (is_split_off)
        stream_heap_split_off_locked(piece, part->lease.lease, part->lease.generation);
    else
        stream_heap_cancel_split_locked(piece);
    pthread_mutex_unlock(&piece->stream_heap->lock);
    if (is_split_off)
        cache_count_given(cache, piece->stream_heap, piece->capacity_bytes);
    else if (r == 0)
        undo_part(cache, piece, part, pending->first);
    if (pending->is_given)
        give_late(cache, pending);
    list_remove(&pending->link);
    free(pending);
    return connection_check(&cache->session->connection); /* a refusal is told when the piece is split anew */
}

static struct pending_split *find_pending(struct cache *cache, const struct piece *piece) {
    list_for_each_entry(struct pending_split, pending, &cache->splits, link) {
        if (pending->piece == piece)
            return pending;
    }
    return NULL;
}

static int end_split(struct cache *cache, struct piece *piece, bool waits) {
    struct pending_split *pending = find_pending(cache, piece);

    if (pending == NULL)
        return 0;
    if (pending->is_given)
        return error_set(GPUPOOL_E_STALE, "the buffer was released before");
    return go_on(cache, pending, waits ? connection_deadline_ns(&cache->session->connection, 0) : 0);
}

int cache_end_split(struct cache *cache, struct piece *piece, bool waits) {
    pthread_mutex_lock(&cache->split_lock);
    int r = end_split(cache, piece, waits);
    pthread_mutex_unlock(&cache->split_lock);
    return r;
}

int cache_give_splitting(struct cache *cache, struct piece *piece, struct fence fence) {
    pthread_mutex_lock(&cache->split_lock);
    int r = end_split(cache, piece, false);
    struct pending_split *pending = r == GPUPOOL_E_TIMED_OUT ? find_pending(cache, piece) : NULL;
    if (pending != NULL) {
        pending->is_given = true;
        pending->fence = fence;
    }
    pthread_mutex_unlock(&cache->split_lock);
    return pending != NULL ? 0 : r == GPUPOOL_E_STALE ? r : GPUPOOL_E_TIMED_OUT;
}

void cache_end_splits(struct cache *cache) {
    char text[ERROR_TEXT_SIZE];
    int r = 0;

    if (pthread_mutex_trylock(&cache->split_lock) != 0)
        return; /* a thread splits, and does this first */
    error_save(text);
    list_for_each_entry_safe(struct pending_split, pending, &cache->splits, link) {
        if (r == 0)
            r = go_on(cache, pending, 0);
    }
    error_restore(text);
    pthread_mutex_unlock(&cache->split_lock);
}

void cache_forget_splits(struct cache *cache) {
    list_for_each_entry_safe(struct pending_split, pending, &cache->splits, link) {
        list_remove(&pending->link);
        free(pending);
    }
}

int cache_split_off(struct cache *cache, struct piece *piece, struct request **request, bool *ret_is_named) {
    *ret_is_named = false;
    pthread_mutex_lock(&cache->split_lock);
    int r = piece->splitting ? end_split(cache, piece, true) : 0;
    if (r == 0 && !piece->split_off)
        r = split_off(cache, piece, request, ret_is_named);
    pthread_mutex_unlock(&cache->split_lock);
    return r;
}
