/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the simulated GPU. Each is a queue of operations and a thread that does them in order; whoever
 * enqueues goes on at once. A stream is created (open), takes operations, and is destroyed: it leaves the
 * registry, its thread does what is queued and ends. The default streams, one a device (NULL and 0x1) and one
 * a device and thread (0x2), are made when first used; those of a thread end with it.
 *
 * Copies that touch host memory which is not registered are done before the call returns, in stream order.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "base/list.h"
#include "base/thread.h"
#include "gpu/sim.h"
#include "gpu/sim_operation.h"

#define STREAM_LEGACY     ((void *)0x1) /* cudaStreamLegacy */
#define STREAM_PER_THREAD ((void *)0x2) /* cudaStreamPerThread */

#define ERROR_CAPTURE_UNSUPPORTED 900 /* cudaErrorStreamCaptureUnsupported */
#define ERROR_CAPTURE_INVALIDATED 901 /* cudaErrorStreamCaptureInvalidated */

struct sim_stream {
    unsigned physical;
    uint64_t id;
    unsigned users;   /* calls that are using it; under streams.lock */
    struct list link; /* in streams.open; in id order */

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct list queue;
    uint64_t given, done; /* operations */
    bool closing;
    bool capturing, spoilt; /* spoilt: somebody waited for it meanwhile, or asked whether it is busy */
    unsigned captured;      /* operations */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t unused; /* some stream has lost its last user */
    struct list open;
    uint64_t last_id;
    struct sim_stream *defaults[GPU_SIM_DEVICES_MAX];
    bool has_key;
    pthread_key_t per_thread; /* struct thread_streams */
} streams = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .unused = PTHREAD_COND_INITIALIZER,
    .open = {&streams.open, &streams.open},
};

struct thread_streams {
    struct sim_stream *streams[GPU_SIM_DEVICES_MAX];
};

/* --- a stream --- */

static void *stream_work(void *user) {
    struct sim_stream *stream = user;

    prctl(PR_SET_NAME, "gpupool-stream");
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        struct operation *operation = list_first(&stream->queue, struct operation, link);

        if (operation == NULL && stream->closing)
            break;
        if (operation == NULL) {
            pthread_cond_wait(&stream->changed, &stream->lock);
            continue;
        }
        list_remove(&operation->link);
        pthread_mutex_unlock(&stream->lock);
        operation_do(operation);
        operation_free(operation);
        pthread_mutex_lock(&stream->lock);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* Makes a stream and adds it to the registry, which is locked. */
static int stream_open(unsigned physical, struct sim_stream **ret_stream) {
    struct sim_stream *stream = calloc(1, sizeof(*stream));
    int r;

    if (stream == NULL)
        return GPU_ERROR_MEMORY_ALLOCATION;
    stream->physical = physical;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    list_init(&stream->queue);
    r = thread_create(&stream->thread, NULL, stream_work, stream);
    if (r != 0) {
        free(stream);
        return GPU_ERROR_MEMORY_ALLOCATION;
    }
    stream->id = ++streams.last_id;
    list_append(&streams.open, &stream->link);
    *ret_stream = stream;
    return 0;
}

/* Ends a stream that has left the registry, when it has done its work and nobody uses it any more. */
static void stream_close(struct sim_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    stream->closing = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&streams.lock);
    while (stream->users > 0)
        pthread_cond_wait(&streams.unused, &streams.lock);
    pthread_mutex_unlock(&streams.lock);
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->changed);
    free(stream);
}

static void thread_streams_close(void *user) {
    struct thread_streams *own = user;

    for (unsigned i = 0; i < GPU_SIM_DEVICES_MAX; i++) {
        if (own->streams[i] == NULL)
            continue;
        pthread_mutex_lock(&streams.lock);
        list_remove(&own->streams[i]->link);
        pthread_mutex_unlock(&streams.lock);
        stream_close(own->streams[i]);
    }
    free(own);
}

/* The slot of the calling thread's own stream of a device. Locked. */
static int thread_slot(unsigned physical, struct sim_stream ***ret_slot) {
    struct thread_streams *own;

    if (!streams.has_key) {
        if (pthread_key_create(&streams.per_thread, thread_streams_close) != 0)
            return GPU_ERROR_MEMORY_ALLOCATION;
        streams.has_key = true;
    }
    own = pthread_getspecific(streams.per_thread);
    if (own == NULL) {
        own = calloc(1, sizeof(*own));
        if (own == NULL || pthread_setspecific(streams.per_thread, own) != 0) {
            free(own);
            return GPU_ERROR_MEMORY_ALLOCATION;
        }
    }
    *ret_slot = &own->streams[physical];
    return 0;
}

/* Finds the open stream that a caller's handle names. Locked. */
static int stream_find(unsigned physical, void *handle, struct sim_stream **ret_stream) {
    struct sim_stream **slot;
    int r;

    if (handle == NULL || handle == STREAM_LEGACY)
        slot = &streams.defaults[physical];
    else if (handle == STREAM_PER_THREAD) {
        r = thread_slot(physical, &slot);
        if (r != 0)
            return r;
    } else {
        list_for_each(position, &streams.open) {
            struct sim_stream *stream = container_of(position, struct sim_stream, link);

            if (stream == handle && stream->physical == physical) {
                *ret_stream = stream;
                return 0;
            }
        }
        return GPU_ERROR_INVALID_RESOURCE_HANDLE;
    }
    if (*slot == NULL) {
        r = stream_open(physical, slot);
        if (r != 0)
            return r;
    }
    *ret_stream = *slot;
    return 0;
}

/* As stream_find(), and the caller is a user of the stream until stream_put(). */
static int stream_get(unsigned device, void *handle, struct sim_stream **ret_stream) {
    unsigned physical;
    int r = sim_context(device, &physical);

    if (r != 0)
        return r;
    pthread_mutex_lock(&streams.lock);
    r = stream_find(physical, handle, ret_stream);
    if (r == 0)
        (*ret_stream)->users++;
    pthread_mutex_unlock(&streams.lock);
    return r;
}

static void stream_put(struct sim_stream *stream) {
    pthread_mutex_lock(&streams.lock);
    if (--stream->users == 0)
        pthread_cond_broadcast(&streams.unused);
    pthread_mutex_unlock(&streams.lock);
}

static bool stream_is_capturing(struct sim_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    bool capturing = stream->capturing;
    pthread_mutex_unlock(&stream->lock);
    return capturing;
}

/* Whether the stream is captured, by somebody who must not ask what it does then: the capture comes to
 * nothing. */
static bool stream_spoils_capture(struct sim_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    bool capturing = stream->capturing;
    stream->spoilt = capturing;
    pthread_mutex_unlock(&stream->lock);
    return capturing;
}

/* Waits until a stream has done what it was given up to now. */
static void stream_drain(struct sim_stream *stream) {
    uint64_t until;

    pthread_mutex_lock(&stream->lock);
    until = stream->given;
    while (stream->done < until)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

/* Enqueues an operation on the stream that a handle names; takes the operation. is_synchronous: waits until
 * it is done. */
static int stream_give(unsigned device, void *handle, struct operation *operation, bool is_synchronous) {
    struct sim_stream *stream;
    uint64_t ticket;
    int r = stream_get(device, handle, &stream);

    if (r != 0) {
        operation_free(operation);
        return r;
    }
    pthread_mutex_lock(&stream->lock);
    if (stream->capturing) {
        stream->captured++;
        pthread_mutex_unlock(&stream->lock);
        stream_put(stream);
        operation_free(operation);
        return is_synchronous ? ERROR_CAPTURE_UNSUPPORTED : 0;
    }
    list_append(&stream->queue, &operation->link);
    ticket = ++stream->given;
    pthread_cond_broadcast(&stream->changed);
    while (is_synchronous && stream->done < ticket)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    stream_put(stream);
    return 0;
}

void sim_streams_drain(unsigned physical) {
    uint64_t seen = 0, newest = 0;

    for (;;) {
        struct sim_stream *next = NULL;

        pthread_mutex_lock(&streams.lock);
        if (seen == 0)
            newest = streams.last_id;
        list_for_each(position, &streams.open) {
            struct sim_stream *stream = container_of(position, struct sim_stream, link);

            if (stream->id > seen && stream->id <= newest &&
                (physical == SIM_ALL_DEVICES || stream->physical == physical)) {
                next = stream;
                next->users++;
                seen = next->id;
                break;
            }
        }
        pthread_mutex_unlock(&streams.lock);
        if (next == NULL)
            return;
        stream_drain(next);
        stream_put(next);
    }
}

static bool device_spoils_captures(unsigned physical) {
    bool captures = false;

    pthread_mutex_lock(&streams.lock);
    list_for_each(position, &streams.open) {
        struct sim_stream *stream = container_of(position, struct sim_stream, link);
        captures = (stream->physical == physical && stream_spoils_capture(stream)) || captures;
    }
    pthread_mutex_unlock(&streams.lock);
    return captures;
}

/* --- the table's calls --- */

int sim_device_synchronize(unsigned device) {
    unsigned physical;
    int r = sim_enter_on(SIM_DEVICE_SYNCHRONIZE, device);

    if (r == 0)
        r = sim_context(device, &physical);
    if (r != 0)
        return r;
    if (device_spoils_captures(physical))
        return ERROR_CAPTURE_UNSUPPORTED;
    sim_streams_drain(physical);
    return 0;
}

int sim_stream_create(unsigned device, void **ret_stream) {
    struct sim_stream *stream;
    unsigned physical;
    int r = sim_enter_on(SIM_STREAM_CREATE, device);

    if (r == 0)
        r = sim_context(device, &physical);
    if (r != 0)
        return r;
    pthread_mutex_lock(&streams.lock);
    r = stream_open(physical, &stream);
    pthread_mutex_unlock(&streams.lock);
    if (r == 0)
        *ret_stream = stream;
    return r;
}

int sim_stream_destroy(unsigned device, void *handle) {
    struct sim_stream *stream;
    unsigned physical;
    int r = sim_enter_on(SIM_STREAM_DESTROY, device);

    if (r == 0)
        r = sim_context(device, &physical);
    if (r != 0)
        return r;
    if (handle == NULL || handle == STREAM_LEGACY || handle == STREAM_PER_THREAD)
        return GPU_ERROR_INVALID_RESOURCE_HANDLE;
    pthread_mutex_lock(&streams.lock);
    r = stream_find(physical, handle, &stream);
    /* A default stream's address is no handle. */
    if (r == 0 && stream == streams.defaults[physical])
        r = GPU_ERROR_INVALID_RESOURCE_HANDLE;
    if (r == 0)
        list_remove(&stream->link);
    pthread_mutex_unlock(&streams.lock);
    if (r == 0)
        stream_close(stream);
    return r;
}

int sim_stream_synchronize(unsigned device, void *handle) {
    struct sim_stream *stream;
    int r = sim_enter_on(SIM_STREAM_SYNCHRONIZE, device);

    if (r == 0)
        r = stream_get(device, handle, &stream);
    if (r != 0)
        return r;
    if (stream_spoils_capture(stream))
        r = ERROR_CAPTURE_UNSUPPORTED;
    else
        stream_drain(stream);
    stream_put(stream);
    return r;
}

int sim_stream_query(unsigned device, void *handle) {
    struct sim_stream *stream;
    int r = sim_enter_on(SIM_STREAM_QUERY, device);

    if (r == 0)
        r = stream_get(device, handle, &stream);
    if (r != 0)
        return r;
    if (stream_spoils_capture(stream))
        r = ERROR_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&stream->lock);
    if (r == 0 && stream->done < stream->given)
        r = GPU_ERROR_NOT_READY;
    pthread_mutex_unlock(&stream->lock);
    stream_put(stream);
    return r;
}

int sim_stream_is_capturing(unsigned device, void *handle, bool *ret_capturing) {
    struct sim_stream *stream;
    int r = sim_enter_on(SIM_STREAM_IS_CAPTURING, device);

    if (r == 0)
        r = stream_get(device, handle, &stream);
    if (r != 0)
        return r;
    *ret_capturing = stream_is_capturing(stream);
    stream_put(stream);
    return 0;
}

static int capture_set(unsigned device, void *handle, bool capturing, unsigned *ret_operations) {
    struct sim_stream *stream;
    int r = stream_get(device, handle, &stream);

    if (r != 0)
        return r;
    pthread_mutex_lock(&stream->lock);
    if (stream->capturing == capturing)
        r = GPU_ERROR_INVALID_VALUE;
    else if (!capturing && stream->spoilt)
        r = ERROR_CAPTURE_INVALIDATED;
    else if (!capturing)
        *ret_operations = stream->captured;
    stream->capturing = capturing;
    stream->spoilt = false;
    stream->captured = 0;
    pthread_mutex_unlock(&stream->lock);
    stream_put(stream);
    return r;
}

int gpu_sim_capture_begin(unsigned device, void *stream) {
    return capture_set(device, stream, true, NULL);
}

int gpu_sim_capture_end(unsigned device, void *stream, unsigned *ret_operations) {
    return capture_set(device, stream, false, ret_operations);
}

int sim_stream_write64(unsigned device, void *stream, uint64_t *word, uint64_t value) {
    struct operation *operation;
    int r = sim_enter_on(SIM_STREAM_WRITE64, device);

    if (r == 0)
        r = operation_make_word(OPERATION_WRITE64, word, value, &operation);
    return r != 0 ? r : stream_give(device, stream, operation, false);
}

int sim_stream_wait64(unsigned device, void *stream, uint64_t *word, uint64_t value) {
    struct operation *operation;
    int r = sim_enter_on(SIM_STREAM_WAIT64, device);

    if (r == 0)
        r = operation_make_word(OPERATION_WAIT64, word, value, &operation);
    return r != 0 ? r : stream_give(device, stream, operation, false);
}

int sim_memory_set(unsigned device, void *memory, uint8_t byte, uint64_t size_bytes, void *stream) {
    struct operation *operation;
    unsigned physical;
    int r = sim_enter_on(SIM_MEMORY_SET, device);

    if (r == 0)
        r = sim_device(device, &physical);
    if (r != 0 || size_bytes == 0)
        return r;
    r = operation_make_set(memory, byte, size_bytes, &operation);
    return r != 0 ? r : stream_give(device, stream, operation, false);
}

int sim_memory_copy(unsigned device, void *to, const void *from, uint64_t size_bytes, void *stream) {
    struct operation *operation;
    unsigned physical;
    int r = sim_enter_on(SIM_MEMORY_COPY, device);

    if (r == 0)
        r = sim_device(device, &physical);
    if (r != 0 || size_bytes == 0)
        return r;
    r = operation_make_copy(to, from, size_bytes, &operation);
    if (r != 0)
        return r;
    bool is_synchronous = operation->to_range == NULL || operation->from_range == NULL;
    return stream_give(device, stream, operation, is_synchronous);
}
