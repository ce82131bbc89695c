/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_JOIN_H
#define CLIENT_API_JOIN_H
/*
 * Joins: one fence behind several. Memory that several streams use goes back behind one fence, because all
 * that follows (deferred pieces, the daemon's RELEASE) knows one. The program's streams must not wait for
 * each other for that. So streams of the library's own wait for the fences, on the GPU, and leave a fence of
 * theirs.
 *
 * A client owns up to JOIN_STREAMS such streams for each device, made when they are needed. A join takes one
 * that is idle. While all are busy, it takes them in turn, and its fence then comes after those of the
 * earlier joins of that stream.
 *
 * Invariant: a join's stream has nothing enqueued but waits and fences. So it is idle when its last fence is
 * ready.
 *
 * Locks: the joins' own, which is held over the driver's enqueueing. The fences' locks are taken inside.
 */
#include <pthread.h>
#include <stdint.h>

#include "client/session/device.h"
#include "client/session/fence.h"

/* More than most programs have memory of at once that waits for different streams. Each is a stream of the
 * device. */
#define JOIN_STREAMS 4u

struct gpupool_client;

struct join_stream {
    void *handle; /* NULL: not made yet */
    struct fence last;
};

struct joins {
    pthread_mutex_t lock;
    struct join_stream streams[DEVICES_MAX][JOIN_STREAMS];
    unsigned next[DEVICES_MAX]; /* whose turn it is while all are busy */
};

/* Destroys the streams. The devices are idle, or this process will never say that they are. */
void joins_close(struct joins *joins, const struct gpu *gpu);

/* Makes a fence that is ready when all of the fences are. Those that are ready already cost nothing, and a
 * single one that is not is the answer. Does not wait for the GPU, except where a device gives no stream or
 * cannot wait for words: then the CPU waits for the fences, as long as an answer may take. Thread-safe. 0;
 * TIMED_OUT: not all are ready yet. */
int fences_join(struct gpupool_client *client, unsigned device, const struct fence *fences, unsigned count,
                struct fence *ret_fence);

#endif
