/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/recorded.h"

#include <stdlib.h>

#include "client/api/client.h"
#include "client/session/error.h"

/* Streams of a buffer whose fences need no memory of the heap. */
#define FEW 8u

void recorded_free(struct recorded_stream *list) {
    while (list != NULL) {
        struct recorded_stream *next = list->next;
        free(list);
        list = next;
    }
}

void recorded_forget(struct recorded *recorded) {
    for (unsigned i = 0; i < RECORDED_BUCKETS; i++) {
        recorded_free(recorded->buckets[i]);
        recorded->buckets[i] = NULL;
    }
}

void recorded_deinit(struct recorded *recorded) {
    recorded_forget(recorded);
    pthread_mutex_destroy(&recorded->lock);
}

struct recorded_key recorded_key_of(const struct gpupool_buffer *buffer, struct piece *piece) {
    return (struct recorded_key){
        .piece = piece, .lease = piece == NULL ? buffer->lease : 0, .generation = buffer->generation};
}

static struct recorded_stream **bucket_of(struct recorded *recorded, const struct recorded_key *key) {
    uint64_t hash =
        ((uint64_t)(uintptr_t)key->piece ^ key->lease ^ key->generation << 32) * UINT64_C(0x9e3779b97f4a7c15);
    return &recorded->buckets[hash >> 32 & (RECORDED_BUCKETS - 1)];
}

static bool key_is(const struct recorded_key *a, const struct recorded_key *b) {
    return a->piece == b->piece && a->lease == b->lease && a->generation == b->generation;
}

static void insert_locked(struct recorded *recorded, struct recorded_stream *stream) {
    struct recorded_stream **bucket = bucket_of(recorded, &stream->key);
    stream->next = *bucket;
    *bucket = stream;
    atomic_fetch_add_explicit(&recorded->count, 1, memory_order_relaxed);
    if (stream->key.piece != NULL)
        stream->key.piece->recorded = true;
}

static bool is_noted_locked(struct recorded *recorded, const struct recorded_stream *stream) {
    for (const struct recorded_stream *other = *bucket_of(recorded, &stream->key); other != NULL;
         other = other->next)
        if (key_is(&other->key, &stream->key) && other->device == stream->device &&
            other->handle == stream->handle && other->thread == stream->thread)
            return true;
    return false;
}

int recorded_add(struct recorded *recorded, struct recorded_key key, unsigned device, void *stream) {
    struct recorded_stream *added = malloc(sizeof *added);
    if (added == NULL)
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory to note the stream that uses a buffer");
    *added = (struct recorded_stream){
        .key = key,
        .device = device,
        .handle = stream,
        .thread = stream == GPUPOOL_PER_THREAD ? fence_thread_number() : 0,
    };
    pthread_mutex_lock(&recorded->lock);
    bool is_new = !is_noted_locked(recorded, added);
    if (is_new)
        insert_locked(recorded, added);
    pthread_mutex_unlock(&recorded->lock);
    if (!is_new)
        free(added);
    return 0;
}

struct recorded_stream *recorded_take(struct recorded *recorded, struct recorded_key key) {
    struct recorded_stream *taken = NULL;

    if (key.piece != NULL ? !key.piece->recorded
                          : atomic_load_explicit(&recorded->count, memory_order_relaxed) == 0)
        return NULL;
    pthread_mutex_lock(&recorded->lock);
    for (struct recorded_stream **link = bucket_of(recorded, &key); *link != NULL;) {
        struct recorded_stream *stream = *link;
        if (!key_is(&stream->key, &key)) {
            link = &stream->next;
            continue;
        }
        *link = stream->next;
        stream->next = taken;
        taken = stream;
        atomic_fetch_sub_explicit(&recorded->count, 1, memory_order_relaxed);
    }
    if (key.piece != NULL)
        key.piece->recorded = false;
    pthread_mutex_unlock(&recorded->lock);
    return taken;
}

void recorded_put_back(struct recorded *recorded, struct recorded_stream *list) {
    if (list == NULL)
        return;
    pthread_mutex_lock(&recorded->lock);
    while (list != NULL) {
        struct recorded_stream *next = list->next;
        insert_locked(recorded, list);
        list = next;
    }
    pthread_mutex_unlock(&recorded->lock);
}

static int fence_stream(struct gpupool_client *client, const struct recorded_stream *stream,
                        struct fence *ret_fence) {
    if (stream->thread == 0 || stream->thread == fence_thread_number())
        return fences_enqueue(&client->session, stream->device, stream->handle, ret_fence);
    *ret_fence = FENCE_NONE;
    return devices_wait(client->session.devices.gpu, stream->device);
}

int recorded_fence(struct gpupool_client *client, const struct recorded_stream *list, struct fence *fence) {
    struct fence few[FEW], *fences = few;
    unsigned count = 1, filled = 1;
    int r = 0;

    for (const struct recorded_stream *stream = list; stream != NULL; stream = stream->next)
        count++;
    if (count > FEW)
        fences = calloc(count, sizeof *fences);
    if (fences == NULL)
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory for the fences of %u streams", count);
    fences[0] = *fence;
    for (const struct recorded_stream *stream = list; r == 0 && stream != NULL; stream = stream->next) {
        r = fence_stream(client, stream, &fences[filled]);
        filled++;
    }
    if (r < 0)
        r = error_prefix(r, "a stream that was recorded for the buffer");
    else if (list != NULL)
        r = fences_join(client, list->device, fences, count, fence);
    if (fences != few)
        free(fences);
    return r;
}
