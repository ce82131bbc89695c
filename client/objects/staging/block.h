/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_STAGING_BLOCK_H
#define CLIENT_OBJECTS_STAGING_BLOCK_H
/*
 * The blocks that staging works with: buffers of the host pool, each of one chunk. They come out of what the
 * client keeps, nearly always, and go back behind the fence of the copy that used them last.
 *
 * Thread-safe.
 */
#include <stdint.h>

#include "client/include/gpupool/gpupool.h"
#include "client/session/fence.h"

/* Acquires a block without which nothing can be done, and waits for it as gpupool_alloc() does. Where the
 * pool is short of room it is smaller, down to a smallest size. 0 or what gpupool_acquire() says. */
int block_acquire(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes,
                  struct gpupool_buffer *ret_block);

/* Acquires one more, if that needs no waiting. Leaves the thread's error text alone. */
bool block_acquire_more(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes,
                        struct gpupool_buffer *ret_block);

/* Gives a block back, whose next user comes when the fence is ready. A block that cannot be given back (the
 * daemon is gone) is the client's until it closes. Leaves the thread's error text alone. */
void block_release(struct gpupool_client *client, const struct gpupool_buffer *block, struct fence fence);

#endif
