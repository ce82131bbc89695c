/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_RECORDED_H
#define CLIENT_API_RECORDED_H
/*
 * The recorded streams of buffers: streams that use a buffer besides the one that it is released on, noted by
 * gpupool_record_stream(). The release leaves a fence on each of them, and the memory goes back behind them
 * all.
 *
 * A client owns one set. A stream is noted under the buffer's key: its piece, or its lease where it has no
 * piece. A piece says by `recorded` that it has some, so that the fast paths need not look here. The streams
 * of one key form a list, which the release takes out of the set as a whole. A release that fails puts it
 * back.
 *
 * Invariant: no key has the same stream twice.
 *
 * Locking: the lock is a leaf. It is not held over calls of the driver.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "client/session/fence.h"

struct gpupool_buffer;
struct gpupool_client;
struct piece;

#define RECORDED_BUCKETS 256u

/* Names a buffer, from its acquire to its release. */
struct recorded_key {
    struct piece *piece;        /* NULL: a lease of its own */
    uint64_t lease, generation; /* the piece's generation, where there is a piece, and no lease */
};

struct recorded_stream {
    struct recorded_stream *next; /* in its bucket, or in the list that was taken */
    struct recorded_key key;
    unsigned device;
    void *handle;
    uint64_t thread; /* of a per-thread default stream; else 0 */
};

struct recorded {
    pthread_mutex_t lock;
    _Atomic uint64_t count; /* of all streams: none, and no lock is taken */
    struct recorded_stream *buckets[RECORDED_BUCKETS];
};

void recorded_deinit(struct recorded *recorded);

/* As recorded_deinit in a forked child: takes no lock. */
void recorded_forget(struct recorded *recorded);

/* The key of a buffer and of its piece (NULL: it has none). */
struct recorded_key recorded_key_of(const struct gpupool_buffer *buffer, struct piece *piece);

/* Notes a stream, unless it is noted already. 0 or NO_MEMORY. */
int recorded_add(struct recorded *recorded, struct recorded_key key, unsigned device, void *stream);

/* Takes the streams of a key out: an owned list, NULL if there are none. Back into the set, or freed, whole.
 */
struct recorded_stream *recorded_take(struct recorded *recorded, struct recorded_key key);
void recorded_put_back(struct recorded *recorded, struct recorded_stream *list);
void recorded_free(struct recorded_stream *list);

/* Leaves a fence on each stream of a list, and joins them with *fence, behind which the buffer would go back
 * without them. Does not wait for the GPU, but as fences_enqueue() and fences_join(); and where a stream is
 * the per-thread default stream of another thread, which has no name in this one: then the CPU waits for its
 * device. 0; CAPTURING, DRIVER, TIMED_OUT, NO_MEMORY: *fence is as it was. */
int recorded_fence(struct gpupool_client *client, const struct recorded_stream *list, struct fence *fence);

#endif
