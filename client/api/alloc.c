/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory by plain pointers, for allocator plug-ins, over a client's cache. Where the caller names no client,
 * it is the default one.
 */
#include <assert.h>
#include <stdatomic.h>

#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/cache/pointer_map.h"
#include "client/session/error.h"

/* Notes that a piece is known by its pointer, once for as long as it keeps its memory. */
static int note_pointer(struct piece *piece) {
    if (__builtin_expect(!piece->mapped, 0)) {
        int r = pointer_map_set(piece->memory, piece);
        if (r < 0)
            return r;
        piece->mapped = true;
    }
    piece->pointer_generation = piece->generation;
    return 0;
}

/* A piece that was taken for a pointer, with no buffer of it. NULL without memory. */
static __attribute__((noinline)) void *alloc_noted(struct gpupool_client *client, struct piece *piece,
                                                   void *stream) {
    struct gpupool_buffer buffer;

    if (note_pointer(piece) == 0)
        return piece->memory;
    void *memory = piece->memory;
    cache_describe(piece, piece->capacity_bytes, &buffer);
    (void)gpupool_release(client, &buffer, stream);
    error_set(GPUPOOL_E_NO_MEMORY, "gpupool_alloc: no memory to note the address %p", memory);
    return NULL;
}

static void *alloc_acquired(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                            uint64_t timeout_ns, uint32_t flags) {
    struct gpupool_buffer buffer;

    if (!client->cache.enabled && client_enter(client) == 0) {
        error_set(GPUPOOL_E_INVALID,
                  "gpupool_alloc: the client was opened without a cache (GPUPOOL_OPEN_NO_CACHE)");
        return NULL;
    }
    if (gpupool_acquire(client, pool, size_bytes, stream, timeout_ns, flags, &buffer) < 0)
        return NULL;
    return alloc_noted(client, cache_piece(&buffer), stream);
}

/* Allocates where there is no hit. */
static __attribute__((noinline)) void *alloc_slowly(struct gpupool_client *client, uint32_t pool,
                                                    uint64_t size_bytes, void *stream) {
    if (client == NULL && gpupool_default(&client) < 0)
        return NULL;
    return alloc_acquired(client, pool, size_bytes, stream, client->alloc_timeout_ns, 0);
}

void *gpupool_alloc_within(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                           uint64_t timeout_ns, uint32_t flags) {
    if (client == NULL && gpupool_default(&client) < 0)
        return NULL;
    if ((flags & GPUPOOL_CAN_SLEEP) != 0) { /* no piece, which frees the pointer */
        buffer_refuse_sleep("gpupool_alloc_within");
        return NULL;
    }
    return alloc_acquired(client, pool, size_bytes, stream, timeout_ns, flags);
}

void *gpupool_alloc(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream) {
    if (client == NULL)
        client = atomic_load_explicit(&client_default, memory_order_acquire);
    if (!client_may_hit(client))
        return alloc_slowly(client, pool, size_bytes, stream);
    struct piece *piece = cache_hit(&client->cache, pool, size_bytes, stream);
    if (__builtin_expect(piece == NULL, 0))
        return alloc_slowly(client, pool, size_bytes, stream);
    if (__builtin_expect(!piece->mapped, 0))
        return alloc_noted(client, piece, stream);
    piece->pointer_generation = piece->generation;
    return piece->memory;
}

/* The piece that was handed out under the pointer. The generations tell what became of it: even, it was freed
 * and lies in the cache; another one, it went out as a buffer. */
static int find_pointer(const void *memory, struct piece **ret_piece) {
    struct piece *piece = pointer_map_find(memory);

    if (__builtin_expect(piece == NULL, 0))
        return error_set(GPUPOOL_E_INVALID, "%p is not from gpupool_alloc(), or was freed before", memory);
    if (__builtin_expect(piece->generation != piece->pointer_generation, 0))
        return error_set(GPUPOOL_E_STALE, "%p was freed before", memory);
    *ret_piece = piece;
    return 0;
}

/* As find_pointer(), also for an address inside of what was handed out. */
static int find_around(const void *memory, struct piece **ret_piece) {
    struct piece *piece = pointer_map_find_below(memory);

    if (piece == NULL || (uintptr_t)memory - (uintptr_t)piece->memory >= piece->capacity_bytes)
        return error_set(GPUPOOL_E_INVALID,
                         "%p is not in memory from gpupool_alloc(), or that was freed before", memory);
    return find_pointer(piece->memory, ret_piece);
}

/* Frees memory that does not go back into the thread's cache. */
static __attribute__((noinline)) int free_slowly(const void *memory, void *stream) {
    struct gpupool_buffer buffer;
    struct piece *piece = NULL;

    int r = find_pointer(memory, &piece);
    if (r < 0)
        return error_prefix(r, "gpupool_free");
    assert(piece != NULL);
    cache_describe(piece, piece->capacity_bytes, &buffer);
    return gpupool_release(client_of(piece->stream_heap), &buffer, stream);
}

int gpupool_free(void *memory, void *stream) {
    if (memory == NULL)
        return error_end(0);
    struct piece *piece = pointer_map_find(memory);
    if (piece != NULL && stream == GPUPOOL_OWN_STREAM)
        stream = piece->stream_heap->stream;
    if (__builtin_expect(piece != NULL && cache_may_put(piece, piece->pointer_generation, stream) &&
                             fork_guard_is_at_home(&client_of(piece->stream_heap)->session.guard) &&
                             cache_put_fast(piece->stream_heap->owner, piece),
                         1))
        return 0;
    return free_slowly(memory, stream);
}

int gpupool_lookup(const void *memory, struct gpupool_client **ret_client,
                   struct gpupool_buffer *ret_buffer) {
    struct piece *piece = NULL;

    if (ret_buffer == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_lookup: ret_buffer is NULL");
    int r = find_around(memory, &piece);
    if (r < 0)
        return error_prefix(r, "gpupool_lookup");
    assert(piece != NULL);
    r = client_enter(client_of(piece->stream_heap));
    if (r < 0)
        return error_prefix(r, "gpupool_lookup");
    cache_describe(piece, piece->capacity_bytes, ret_buffer);
    if (ret_client != NULL)
        *ret_client = client_of(piece->stream_heap);
    return error_end(0);
}
