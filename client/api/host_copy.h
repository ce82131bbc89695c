/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_HOST_COPY_H
#define CLIENT_API_HOST_COPY_H
/*
 * The contents of a device buffer, kept in pinned memory of a host pool while the buffer sleeps. It is in chunks,
 * each an ordinary buffer of the client, so that a host pool needs no range as long as the whole.
 *
 * A copy owns its chunks. It is one thread's at a time.
 */
#include <stdint.h>

#include "client/include/gpupool/gpupool.h"

/* A copy of 256 MiB takes some 5 ms, a thousand times what its enqueueing takes. */
#define HOST_COPY_CHUNK_BYTES (UINT64_C(256) << 20)

struct host_copy {
    unsigned device; /* whose memory is copied */
    uint32_t count;
    struct gpupool_buffer chunks[];
};

/* Acquires the memory, in the host pool near the device, and waits until a time for it. Where it fails, the
 * chunks that were acquired go back. 0, EXHAUSTED and the like, NO_POOL (the daemon has no host pool). */
int host_copy_new(struct gpupool_client *client, unsigned device, uint64_t bytes, uint64_t deadline_ns,
                  struct host_copy **ret_copy);

/* Gives the memory back behind the work on a stream of the device; GPUPOOL_NO_STREAM: nothing on the GPU uses it.
 * Accepts NULL. The caller's error text stays. A chunk that cannot go back stays the client's until it closes. */
void host_copy_release(struct gpupool_client *client, struct host_copy *copy, void *stream);

/* Copies memory of the device to the copy, or the other way, in stream order. The stream is not being captured. 0
 * or DRIVER: a part may be under way. */
int host_copy_out(struct gpupool_client *client, const struct host_copy *copy, const char *memory,
                  void *stream);
int host_copy_in(struct gpupool_client *client, const struct host_copy *copy, char *memory, void *stream);

#endif
