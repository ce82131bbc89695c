/* SPDX-License-Identifier: Apache-2.0 */
/* The validators of the clients and of the daemon, at moments when no thread is inside of a client. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/api/client.h"
#include "client/core/pool.h"
#include "tests/joint/world.h"

static bool client_is_valid(struct gpupool_client *client) {
    for (unsigned p = 0; p < world.n_pools; p++)
        if (!core_pool_is_valid(cache_pool(&client->cache, p + 1)))
            return false;
    return true;
}

void validate_all(void) {
    daemon_check();
    for (unsigned c = 0; c < world.n_clients; c++) {
        struct joint_client *client = &world.clients[c];
        if (client->is_open && !client->is_killed && client->n_inside == 0)
            must(client_is_valid(client->client), "the core of a client is valid");
    }
}

static void tell_heap(const struct stream_heap *heap) {
    fprintf(stderr,
            "  stream %p: free %" PRIu64 "+%" PRIu64 ", taken %" PRIu64 "+%" PRIu64 ", absent %" PRIu64
            ", deferred %" PRIu64 ", gate %d, ordering %u, arena %d\n",
            heap->stream, heap->heaps[0].free_bytes, heap->heaps[1].free_bytes, heap->heaps[0].taken_bytes,
            heap->heaps[1].taken_bytes, heap->absent_bytes, heap->deferred_bytes, heap->gate_is_closed,
            heap->ordering, heap->arena != NULL);
    list_for_each_entry(const struct extent, extent, &heap->extents, link) {
        fprintf(stderr, "    extent of %" PRIu64 ", absent %" PRIu64 ", arena %d:", extent->size_bytes,
                extent->absent_bytes, extent->is_arena);
        for (const struct heap_range *range = extent->span->lowest; range != NULL; range = range->upper)
            fprintf(stderr, " %" PRIu64 "%s", range->size,
                    range->free           ? "f"
                    : range->user != NULL ? "t"
                                          : "a");
        fprintf(stderr, "\n");
    }
}

void validate_tell(unsigned c, unsigned p) {
    struct gpupool_client *client = world.clients[c].client;
    struct core_pool *pool = cache_pool(&client->cache, p + 1);

    if (getenv("JOINT_ABORT") == NULL)
        return;
    fprintf(stderr,
            "client %u, pool %u: waiting %u, marks tight %" PRIx64 " short %" PRIx64 ", pending %zu\n", c, p,
            pool->n_waiting, client->cache.shortage.tight_pools, client->cache.shortage.short_pools,
            client->cache.pending_count);
    list_for_each_entry(const struct acquire, waiter, &pool->waiting, link) {
        fprintf(stderr, "  waits for %" PRIu64 ", segments %d, passes %u, offered %" PRIu64 "\n",
                waiter->size_bytes, waiter->is_of_segments, waiter->passes, waiter->offered_ns);
    }
    list_for_each_entry(const struct stream_heap, heap, &pool->stream_heaps, pool_link) {
        tell_heap(heap);
    }
}
