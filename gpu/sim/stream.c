/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the simulated GPU. Each is a queue of operations and a thread that does them in order; the
 * caller that enqueues goes on at once. A stream is created (open), takes operations, and is destroyed: it
 * leaves the registry, its thread does what is queued and ends. The default streams, one a device (NULL and
 * 0x1) and one a device and thread (0x2), are made when first used; those of a thread end with it.
 *
 * The legacy default stream (NULL and 0x1) and the blocking streams of its device come behind each other, as
 * CUDA has it: an operation of the one comes behind what the others were given before. Blocking are the
 * threads' default streams, and those that a program makes without cudaStreamNonBlocking. To wait for the
 * legacy stream is to wait for the blocking ones, too. While one of these is captured, no use of the legacy
 * stream is valid.
 *
 * Copies that touch host memory which is not registered are done before the call returns, in stream order.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "base/lock.h"
#include "base/thread.h"
#include "gpu/sim/operation.h"

#define STREAM_LEGACY     ((void *)0x1) /* cudaStreamLegacy */
#define STREAM_PER_THREAD ((void *)0x2) /* cudaStreamPerThread */

#define ERROR_CAPTURE_UNSUPPORTED 900 /* cudaErrorStreamCaptureUnsupported */
#define ERROR_CAPTURE_INVALIDATED 901 /* cudaErrorStreamCaptureInvalidated */
#define ERROR_CAPTURE_IMPLICIT    906 /* cudaErrorStreamCaptureImplicit */

struct sim_stream {
    unsigned physical;
    uint64_t id;
    bool is_blocking; /* ordered with the legacy default stream, as all but cudaStreamNonBlocking ones are */
    unsigned references; /* its opener's, those of calls and of orders; under streams.lock */
    struct list link;    /* in streams.open; in id order */

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct list queue;
    uint64_t given, done; /* operations */
    bool closing;
    bool capturing, spoilt; /* spoilt: somebody waited for it meanwhile, or asked whether it is busy */
    unsigned captured;      /* operations */
};

/* An operation comes behind what another stream had been given when it was enqueued. So orders point to what
 * is older, and streams never wait for each other in a circle. */
struct sim_order {
    struct sim_order *next;
    struct sim_stream *stream; /* a reference */
    uint64_t ticket;           /* that it has to have done */
};

static struct {
    pthread_mutex_t lock;
    struct list open;
    uint64_t last_id;
    struct sim_stream *defaults[GPU_SIM_DEVICES_MAX];
    bool has_key;
    pthread_key_t per_thread; /* struct thread_streams */
} streams = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .open = {&streams.open, &streams.open},
};

struct thread_streams {
    struct sim_stream *streams[GPU_SIM_DEVICES_MAX];
};

/* --- a stream --- */

static void stream_put(struct sim_stream *stream) {
    pthread_mutex_lock(&streams.lock);
    bool is_last = --stream->references == 0;
    pthread_mutex_unlock(&streams.lock);
    if (!is_last)
        return;
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->changed);
    free(stream);
}

/* Waits until a stream has done so many operations. */
static void stream_wait(struct sim_stream *stream, uint64_t ticket) {
    pthread_mutex_lock(&stream->lock);
    while (stream->done < ticket)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

static void orders_wait(const struct sim_order *orders) {
    for (; orders != NULL; orders = orders->next)
        stream_wait(orders->stream, orders->ticket);
}

static void orders_free(struct sim_order *orders) {
    while (orders != NULL) {
        struct sim_order *next = orders->next;
        stream_put(orders->stream);
        free(orders);
        orders = next;
    }
}

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
        orders_wait(operation->behind);
        orders_free(operation->behind);
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
static int stream_open(unsigned physical, bool is_blocking, struct sim_stream **ret_stream) {
    struct sim_stream *stream = calloc(1, sizeof(*stream));
    int r;

    if (stream == NULL)
        return GPU_ERROR_MEMORY_ALLOCATION;
    stream->physical = physical;
    stream->is_blocking = is_blocking;
    stream->references = 1;
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

/* Ends a stream that has left the registry, when it has done its work. The object stays while there are
 * references. */
static void stream_close(struct sim_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    stream->closing = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    stream_put(stream);
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
        list_for_each_entry(struct sim_stream, stream, &streams.open, link) {
            if (stream == handle && stream->physical == physical) {
                *ret_stream = stream;
                return 0;
            }
        }
        return GPU_ERROR_INVALID_RESOURCE_HANDLE;
    }
    r = *slot == NULL ? stream_open(physical, handle == STREAM_PER_THREAD, slot) : 0;
    if (r == 0)
        *ret_stream = *slot;
    return r;
}

/* As stream_find(), and the caller has a reference to the stream until stream_put(). */
static int stream_get(unsigned device, void *handle, struct sim_stream **ret_stream) {
    unsigned physical;
    int r = sim_context(device, &physical);

    if (r != 0)
        return r;
    LOCKED(&streams.lock);
    r = stream_find(physical, handle, ret_stream);
    if (r == 0)
        (*ret_stream)->references++;
    return r;
}

/* As stream_get(), at the beginning of a call of the table. */
static int stream_enter(enum sim_call call, unsigned device, void *handle, struct sim_stream **ret_stream) {
    unsigned physical;
    int r = sim_enter_on(call, device, &physical);
    return r != 0 ? r : stream_get(device, handle, ret_stream);
}

static bool stream_is_capturing(struct sim_stream *stream) {
    LOCKED(&stream->lock);
    return stream->capturing;
}

/* Whether the stream is captured, by somebody who must not ask what it does then: the capture comes to
 * nothing. */
static bool stream_spoils_capture(struct sim_stream *stream) {
    LOCKED(&stream->lock);
    stream->spoilt = stream->capturing;
    return stream->capturing;
}

/* Waits until a stream has done what it was given up to now. */
static void stream_drain(struct sim_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    uint64_t given = stream->given;
    pthread_mutex_unlock(&stream->lock);
    stream_wait(stream, given);
}

/* --- the legacy default stream --- */

/* Adds to a list what another stream has been given and has not done. Locked. */
static int order_add(struct sim_stream *other, struct sim_order **orders) {
    pthread_mutex_lock(&other->lock);
    uint64_t ticket = other->given;
    bool is_busy = other->done < ticket;
    pthread_mutex_unlock(&other->lock);
    if (!is_busy)
        return 0;
    struct sim_order *order = malloc(sizeof *order);
    if (order == NULL)
        return GPU_ERROR_MEMORY_ALLOCATION;
    *order = (struct sim_order){.next = *orders, .stream = other, .ticket = ticket};
    other->references++;
    *orders = order;
    return 0;
}

/* The streams whose work a stream's work comes behind, besides its own: on the legacy default stream all
 * blocking streams of the device, and on a blocking stream the legacy one. Locked. */
static int orders_of(const struct sim_stream *stream, struct sim_order **ret_orders) {
    struct sim_stream *legacy = streams.defaults[stream->physical];
    int r = 0;

    *ret_orders = NULL;
    if (stream->is_blocking && legacy != NULL)
        return order_add(legacy, ret_orders);
    if (stream != legacy)
        return 0;
    list_for_each_entry(struct sim_stream, other, &streams.open, link) {
        if (r == 0 && other->is_blocking && other->physical == stream->physical)
            r = order_add(other, ret_orders);
    }
    return r;
}

/* Whether a handle's stream is the legacy one while a blocking stream of the device is captured: no use of it
 * is valid then. spoils: the captures come to nothing, as by all uses but the question whether it is
 * captured. Locked. */
static bool is_implicit_capture(const struct sim_stream *stream, bool spoils) {
    bool captures = false;

    if (stream != streams.defaults[stream->physical])
        return false;
    list_for_each_entry(struct sim_stream, other, &streams.open, link) {
        if (other->is_blocking && other->physical == stream->physical)
            captures = (spoils ? stream_spoils_capture(other) : stream_is_capturing(other)) || captures;
    }
    return captures;
}

/* Puts an operation into the queue of a stream, behind what comes before it. *ret_ticket: 0 if the stream is
 * captured. Locked: so the order of two operations of different threads is the same for both. */
static int stream_append(struct sim_stream *stream, struct operation *operation, uint64_t *ret_ticket) {
    if (is_implicit_capture(stream, true))
        return ERROR_CAPTURE_IMPLICIT;
    *ret_ticket = 0;
    int r = stream_is_capturing(stream) ? 0 : orders_of(stream, &operation->behind);
    if (r != 0)
        return r;
    pthread_mutex_lock(&stream->lock);
    if (stream->capturing) {
        stream->captured++;
    } else {
        list_append(&stream->queue, &operation->link);
        *ret_ticket = ++stream->given;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return 0;
}

/* Enqueues an operation on the stream that a handle names; takes the operation. is_synchronous: waits until
 * it is done. */
static int stream_give(unsigned device, void *handle, struct operation *operation, bool is_synchronous) {
    struct sim_stream *stream;
    uint64_t ticket = 0;
    int r = stream_get(device, handle, &stream);

    if (r != 0) {
        operation_free(operation);
        return r;
    }
    pthread_mutex_lock(&streams.lock);
    r = stream_append(stream, operation, &ticket);
    pthread_mutex_unlock(&streams.lock);
    if (ticket == 0) {
        orders_free(operation->behind);
        operation_free(operation);
        if (r == 0 && is_synchronous)
            r = ERROR_CAPTURE_UNSUPPORTED;
    } else if (is_synchronous) {
        stream_wait(stream, ticket);
    }
    stream_put(stream);
    return r;
}

void sim_streams_drain(unsigned physical) {
    uint64_t seen = 0, newest = 0;

    for (;;) {
        struct sim_stream *next = NULL;

        pthread_mutex_lock(&streams.lock);
        if (seen == 0)
            newest = streams.last_id;
        list_for_each_entry(struct sim_stream, stream, &streams.open, link) {
            if (stream->id > seen && stream->id <= newest &&
                (physical == SIM_ALL_DEVICES || stream->physical == physical)) {
                next = stream;
                next->references++;
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

    LOCKED(&streams.lock);
    list_for_each_entry(struct sim_stream, stream, &streams.open, link) {
        captures = (stream->physical == physical && stream_spoils_capture(stream)) || captures;
    }
    return captures;
}

/* --- the table's calls --- */

int sim_device_synchronize(unsigned device) {
    unsigned physical;
    int r = sim_enter_context(SIM_DEVICE_SYNCHRONIZE, device, &physical);

    if (r != 0)
        return r;
    if (device_spoils_captures(physical))
        return ERROR_CAPTURE_UNSUPPORTED;
    sim_streams_drain(physical);
    return 0;
}

static int stream_create(unsigned device, bool is_blocking, void **ret_stream) {
    struct sim_stream *stream;
    unsigned physical;
    int r = sim_context(device, &physical);

    if (r != 0)
        return r;
    LOCKED(&streams.lock);
    r = stream_open(physical, is_blocking, &stream);
    if (r == 0)
        *ret_stream = stream;
    return r;
}

int sim_stream_create(unsigned device, void **ret_stream) {
    unsigned physical;
    int r = sim_enter_on(SIM_STREAM_CREATE, device, &physical);

    return r != 0 ? r : stream_create(device, false, ret_stream);
}

int gpu_sim_stream_create_blocking(unsigned device, void **ret_stream) {
    return stream_create(device, true, ret_stream);
}

int sim_stream_destroy(unsigned device, void *handle) {
    struct sim_stream *stream;
    unsigned physical;
    int r = sim_enter_context(SIM_STREAM_DESTROY, device, &physical);

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

/* The streams that a call looks at which waits for a stream, or asks whether it is busy: the legacy default
 * stream encompasses the blocking ones. The caller has a reference to the stream. */
static int stream_begin_wait(struct sim_stream *stream, struct sim_order **ret_orders) {
    LOCKED(&streams.lock);
    *ret_orders = NULL;
    if (is_implicit_capture(stream, true))
        return ERROR_CAPTURE_IMPLICIT;
    if (stream_spoils_capture(stream))
        return ERROR_CAPTURE_UNSUPPORTED;
    return stream->is_blocking ? 0 : orders_of(stream, ret_orders);
}

int sim_stream_synchronize(unsigned device, void *handle) {
    struct sim_stream *stream;
    struct sim_order *orders;
    int r = stream_enter(SIM_STREAM_SYNCHRONIZE, device, handle, &stream);

    if (r != 0)
        return r;
    r = stream_begin_wait(stream, &orders);
    if (r == 0) {
        orders_wait(orders);
        stream_drain(stream);
    }
    orders_free(orders);
    stream_put(stream);
    return r;
}

int sim_stream_query(unsigned device, void *handle) {
    struct sim_stream *stream;
    struct sim_order *orders;
    int r = stream_enter(SIM_STREAM_QUERY, device, handle, &stream);

    if (r != 0)
        return r;
    r = stream_begin_wait(stream, &orders);
    pthread_mutex_lock(&stream->lock);
    if (r == 0 && (orders != NULL || stream->done < stream->given))
        r = GPU_ERROR_NOT_READY;
    pthread_mutex_unlock(&stream->lock);
    orders_free(orders);
    stream_put(stream);
    return r;
}

int sim_stream_is_capturing(unsigned device, void *handle, bool *ret_capturing) {
    struct sim_stream *stream;
    int r = stream_enter(SIM_STREAM_IS_CAPTURING, device, handle, &stream);

    if (r != 0)
        return r;
    pthread_mutex_lock(&streams.lock);
    if (is_implicit_capture(stream, false))
        r = ERROR_CAPTURE_IMPLICIT;
    else
        *ret_capturing = stream_is_capturing(stream);
    pthread_mutex_unlock(&streams.lock);
    stream_put(stream);
    return r;
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

static int give_word(enum sim_call call, enum operation_kind kind, unsigned device, void *stream,
                     uint64_t *word, uint64_t value) {
    struct operation *operation;
    unsigned physical;
    int r = sim_enter_on(call, device, &physical);

    if (r == 0)
        r = operation_make_word(kind, physical, word, value, &operation);
    return r != 0 ? r : stream_give(device, stream, operation, false);
}

int sim_stream_write64(unsigned device, void *stream, uint64_t *word, uint64_t value) {
    return give_word(SIM_STREAM_WRITE64, OPERATION_WRITE64, device, stream, word, value);
}

int sim_stream_wait64(unsigned device, void *stream, uint64_t *word, uint64_t value) {
    return give_word(SIM_STREAM_WAIT64, OPERATION_WAIT64, device, stream, word, value);
}

int sim_memory_set(unsigned device, void *memory, uint8_t byte, uint64_t size_bytes, void *stream) {
    struct operation *operation;
    unsigned physical;
    int r = sim_enter_context(SIM_MEMORY_SET, device, &physical);

    if (r != 0 || size_bytes == 0)
        return r;
    r = operation_make_set(physical, memory, byte, size_bytes, &operation);
    return r != 0 ? r : stream_give(device, stream, operation, false);
}

int sim_memory_copy(unsigned device, void *to, const void *from, uint64_t size_bytes, void *stream) {
    struct operation *operation;
    unsigned physical;
    int r = sim_enter_context(SIM_MEMORY_COPY, device, &physical);

    if (r != 0 || size_bytes == 0)
        return r;
    r = operation_make_copy(physical, to, from, size_bytes, &operation);
    if (r != 0)
        return r;
    bool is_synchronous = operation->to_range == NULL || operation->from_range == NULL;
    return stream_give(device, stream, operation, is_synchronous);
}
