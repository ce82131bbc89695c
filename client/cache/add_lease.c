/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/add_lease.h"

#include "client/cache/cache.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/session.h"

/* Takes what the request needs. In a target only this finds what was leased for it. NULL: there is none. */
static struct piece *take_leased_locked(struct extent *extent, const char *memory, uint64_t needed) {
    struct piece *piece;
    int r = extent->span->is_closed
                ? stream_heap_take_at_locked(extent, (uint64_t)(memory - extent->memory), needed, &piece)
                : stream_heap_take_locked(extent->stream_heap, needed, true, &piece);

    return r < 0 ? NULL : piece;
}

int stream_heap_add_lease(struct cache *cache, struct stream_heap *stream_heap, const struct grant *grant,
                          uint64_t needed, struct piece **ret_piece) {
    enum stream_heap_half heap = stream_heap_half_of(needed);
    const struct segment_view segment = segment_view_of(grant->segment);
    const struct proto_lease *lease = &grant->lease;
    char *memory = grant->memory;
    uint64_t target_bytes;
    int r = 0;

    pthread_mutex_lock(&stream_heap->core_pool->lock);
    pthread_mutex_lock(&stream_heap->lock);
    bool is_kept = target_find_locked(stream_heap->core_pool, memory, &target_bytes);
    struct extent *extent =
        stream_heap_neighbour_locked(stream_heap, heap, grant->segment, memory, lease->capacity_bytes);
    /* The MERGE is in the outbox before another thread can release a part of what was merged. It is sent when
     * the lock is free: a daemon that reads slowly does not keep other threads from the stream heap. */
    if (extent != NULL &&
        lease_merge_put(cache->session, extent->lending.lease, extent->lending.generation, lease)) {
        stream_heap_fill_locked(extent, memory, lease->capacity_bytes);
    } else {
        r = stream_heap_add_extent_locked(stream_heap, heap, &segment, lease->lease, lease->generation,
                                          memory, lease->capacity_bytes);
        extent = r == 0 ? list_last(&stream_heap->extents, struct extent, link) : NULL;
    }
    if (r == 0 && ret_piece != NULL)
        *ret_piece = take_leased_locked(extent, memory, needed);
    if (r == 0 && is_kept)
        heap_close_span(extent->span);
    pthread_mutex_unlock(&stream_heap->lock);
    pthread_mutex_unlock(&stream_heap->core_pool->lock);
    connection_send_rest(&cache->session->connection);
    if (r == 0)
        return 0;
    lease_give_back(cache->session, lease);
    return error_no_memory();
}
