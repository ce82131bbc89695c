/* SPDX-License-Identifier: Apache-2.0 */
/* The table is one of buckets by address. Its lock is held for the table alone, never for a call of the
 * client or a wait for the device. */
#include <pthread.h>
#include <stdlib.h>

#include <gpupool/gpupool.h>

#include "client/plugins/any_stream.h"

#define BUCKETS 256u

/* A piece that the caller has. */
struct held {
    struct held *next;
    struct gpupool_buffer buffer;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct held *held[BUCKETS]; /* under the lock */

/* Segments of frameworks begin at multiples of 2 MiB, other pieces at multiples of 512 bytes. */
static struct held **bucket_of(const void *memory) {
    uintptr_t address = (uintptr_t)memory;
    return &held[(address >> 21 ^ address >> 9) % BUCKETS];
}

static void *held_put(struct held *piece) {
    void *memory = piece->buffer.data;

    pthread_mutex_lock(&lock);
    struct held **bucket = bucket_of(memory);
    piece->next = *bucket;
    *bucket = piece;
    pthread_mutex_unlock(&lock);
    return memory;
}

/* Takes a piece out. NULL: it is not in the table. */
static struct held *held_take(const void *memory) {
    pthread_mutex_lock(&lock);
    struct held **link = bucket_of(memory);
    while (*link != NULL && (*link)->buffer.data != memory)
        link = &(*link)->next;
    struct held *piece = *link;
    if (piece != NULL)
        *link = piece->next;
    pthread_mutex_unlock(&lock);
    return piece;
}

void *any_stream_acquire(uint32_t pool, uint64_t size_bytes, uint64_t wait_ns) {
    struct gpupool_client *client;
    struct held *piece = calloc(1, sizeof *piece);

    if (piece == NULL)
        return NULL;
    if (gpupool_default(&client) < 0 ||
        gpupool_acquire(client, pool, size_bytes, GPUPOOL_NO_STREAM, wait_ns, 0, &piece->buffer) < 0) {
        free(piece);
        return NULL;
    }
    return held_put(piece);
}

void *any_stream_alloc(uint32_t pool, uint64_t size_bytes) {
    struct held *piece = calloc(1, sizeof *piece);

    if (piece == NULL)
        return NULL;
    void *memory = gpupool_alloc(NULL, pool, size_bytes, GPUPOOL_NO_STREAM);
    if (memory == NULL || gpupool_lookup(memory, NULL, &piece->buffer) < 0) {
        free(piece);
        return NULL;
    }
    return held_put(piece);
}

bool any_stream_release(const void *memory) {
    struct gpupool_client *client;
    struct held *piece = memory == NULL ? NULL : held_take(memory);

    if (piece == NULL)
        return false;
    /* Where the client was closed meanwhile, this is another one, which refuses the buffer. */
    if (gpupool_default(&client) == 0 && gpupool_device_synchronize(client, piece->buffer.device) == 0)
        (void)gpupool_release(client, &piece->buffer, GPUPOOL_NO_STREAM);
    free(piece);
    return true;
}
