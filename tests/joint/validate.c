/* SPDX-License-Identifier: Apache-2.0 */
/* The validators of the clients and of the daemon, at moments when no thread of a client holds a lock. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/api/client.h"
#include "client/core/arena.h"
#include "client/core/pool.h"
#include "tests/joint/world.h"

/* Whether no slot is claimed: no thread fills or empties one. */
static bool arena_is_at_rest(const struct arena *arena) {
    for (uint32_t i = 0; i < arena->n_slots; i = arena_slot_after(arena, i))
        if (arena->slots[i].state == ARENA_SLOT_BUSY)
            return false;
    return true;
}

/* Whether a pool is short for the client if the daemon marks it so, and the client's own thread has answered
 * the newest question about it: from then on it keeps nothing that others wait for. */
static bool is_short_as_asked(const struct cache *cache, uint32_t pool) {
    const struct proto_page *page = cache->session->page.memory;

    return !cache->purger.runs || page == NULL || (page->shortage.pools & shortage_bit(pool)) == 0 ||
           cache->answering.pools[pool - 1].by_library != page->shortage.asked ||
           shortage_is_on(&cache->shortage, pool);
}

static bool client_is_valid(struct gpupool_client *client, bool is_at_rest) {
    for (unsigned p = 0; p < world.n_pools; p++) {
        struct core_pool *pool = cache_pool(&client->cache, p + 1);
        if (!core_pool_is_valid(pool))
            return false;
        list_for_each_entry(const struct stream_heap, heap, &pool->stream_heaps, pool_link) {
            if (heap->arena != NULL &&
                (!arena_is_valid(heap->arena) || (is_at_rest && !arena_is_at_rest(heap->arena))))
                return false;
        }
    }
    return true;
}

/* A thread of the library may hold a lock. Then others run while this thread waits for it, and the client is
 * not at rest any more: the answer counts for nothing. */
static bool look_at(struct joint_client *client) {
    uint64_t step = world.step;
    bool is_valid = client_is_valid(client->client, client->n_inside == 0);

    return is_valid || world.step != step;
}

void validate_all(void) {
    unsigned yields = world.yields;

    daemon_check();
    world.yields = 0; /* the validators take locks */
    for (unsigned c = 0; c < world.n_clients; c++) {
        struct joint_client *client = &world.clients[c];
        if (client->is_open && !client->is_killed && !client->is_closing && baton_has_no_locks(c))
            must(look_at(client), "the core of a client is valid");
    }
    world.yields = yields;
}

/* A request for segments that its own stream heap has room for is served, and goes on. */
void validate_turns(unsigned c, unsigned p) {
    struct gpupool_client *client = world.clients[c].client;

    must(is_short_as_asked(&client->cache, p + 1), "a client that was asked for a pool has it as short");
    list_for_each_entry(const struct acquire, waiter, &cache_pool(&client->cache, p + 1)->waiting, link) {
        must(waiter->piece == NULL, "a request that was served goes on");
        must(!waiter->is_of_segments || waiter->stream_heap == NULL ||
                 !stream_heap_has_locked(waiter->stream_heap, waiter->size_bytes),
             "a request for segments waits, and its stream heap has no range for it");
    }
}

bool validate_has_deferred_slots(unsigned c, unsigned p) {
    list_for_each_entry(const struct stream_heap, heap,
                        &cache_pool(&world.clients[c].client->cache, p + 1)->stream_heaps, pool_link) {
        if (heap->arena != NULL && heap->arena->extent.deferred_bytes > 0)
            return true;
    }
    return false;
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
