/* SPDX-License-Identifier: Apache-2.0 */
#include "client/objects/staging/block.h"

#include "base/clock.h"
#include "base/units.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/session/error.h"

/* Below that what the driver takes for each chunk is more than the copying. */
#define BLOCK_MIN_BYTES (64 * KIB)

/* A pool that only has to grow has a block within this time, far more than it takes (180 ms a GiB on H200).
 * After it the pool is taken to be short of room. */
#define WHOLE_BLOCK_NS NS_PER_S

/* A refusal is followed by another request, or the job does without the block. */
static int probe(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, uint64_t timeout_ns,
                 struct gpupool_buffer *ret_block) {
    return buffer_acquire(client, pool, size_bytes, GPUPOOL_NO_STREAM, timeout_ns, PROTO_ACQUIRE_PROBES,
                          ret_block);
}

static bool is_short_of_room(int error) {
    return error == GPUPOOL_E_EXHAUSTED || error == GPUPOOL_E_TOO_LARGE || error == GPUPOOL_E_LIMIT;
}

/* Halves the size until the pool may hold it, as far as the client remembers the pool's limit. */
static int fit_into_pool(struct gpupool_client *client, uint32_t pool_id, uint64_t *size_bytes) {
    struct pool pool;

    int r = pools_find(&client->session, pool_id, &pool);
    while (r == 0 && *size_bytes > pool.limit_bytes && *size_bytes > BLOCK_MIN_BYTES)
        *size_bytes /= 2;
    return r;
}

int block_acquire(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes,
                  struct gpupool_buffer *ret_block) {
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), client->alloc_timeout_ns);
    uint64_t patience_ns = client->alloc_timeout_ns / 2;

    int r = fit_into_pool(client, pool, &size_bytes);
    if (r == 0)
        r = probe(client, pool, size_bytes, patience_ns < WHOLE_BLOCK_NS ? patience_ns : WHOLE_BLOCK_NS,
                  ret_block);
    while (is_short_of_room(r) && size_bytes > BLOCK_MIN_BYTES) {
        size_bytes /= 2;
        r = probe(client, pool, size_bytes, GPUPOOL_NOW, ret_block);
    }
    if (is_short_of_room(r))
        r = gpupool_acquire(client, pool, size_bytes, GPUPOOL_NO_STREAM, clock_left_ns(deadline_ns), 0,
                            ret_block);
    return r;
}

bool block_acquire_more(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes,
                        struct gpupool_buffer *ret_block) {
    char text[ERROR_TEXT_SIZE];

    error_save(text); /* the job has less to work with, and does not fail */
    int r = probe(client, pool, size_bytes, GPUPOOL_NOW, ret_block);
    if (r < 0)
        error_restore(text);
    return r == 0;
}

void block_release(struct gpupool_client *client, const struct gpupool_buffer *block, struct fence fence) {
    struct gpupool_buffer buffer = *block;
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    int r = buffer_release_behind(client, &buffer, fence);
    /* There was no memory to note what it waits for. */
    if (r == GPUPOOL_E_NO_MEMORY &&
        fence_wait(&client->session, fence, -1, connection_deadline_ns(&client->session.connection, 0)) == 0)
        (void)buffer_release_behind(client, &buffer, FENCE_NONE);
    error_restore(text);
}
