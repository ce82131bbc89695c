/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/waiting.h"

#include <poll.h>
#include <unistd.h>

#include "client/api/binding.h"
#include "client/python/src/error.h"

/* Between two looks for signals. A signal of this thread ends poll(). A look finds one that came just before
 * poll(), that another thread took, or that _thread.interrupt_main() simulates. */
#define LOOK_MS 50
#define LOOK_NS (LOOK_MS * UINT64_C(1000000))

/* So many times is an answer to a cancelled request waited for, each time until a signal comes at most. A
 * daemon that works answers in some 0.1 ms. */
#define CANCEL_LOOKS 20

/* A request of the library. */
struct waiting {
    struct gpupool_client *handle;
    uint64_t number;
    int fd;     /* negative: there is nothing to watch */
    int result; /* what its end returned */
    struct gpupool_buffer buffer;
};

/* Waits for a while, and ends the request if it is complete. Returns whether it was. Without the
 * interpreter's lock. */
static bool end_if_complete(struct waiting *waiting) {
    struct pollfd ready = {.fd = waiting->fd, .events = POLLIN};

    if (waiting->fd >= 0 && poll(&ready, 1, LOOK_MS) <= 0)
        return false;
    waiting->result = gpupool_acquire_end(waiting->handle, waiting->number, &waiting->buffer);
    return true;
}

/* Cancels the request. If the daemon does not answer, the request stays open: the library gives back what it
 * gets, and frees it when the client closes. */
static void give_up(struct waiting *waiting, void *stream) {
    bool is_ended = false;

    Py_BEGIN_ALLOW_THREADS;
    (void)gpupool_request_cancel(waiting->handle, waiting->number);
    for (int i = 0; !is_ended && i < CANCEL_LOOKS; i++)
        is_ended = end_if_complete(waiting);
    if (is_ended && waiting->result == 0)
        (void)gpupool_release(waiting->handle, &waiting->buffer, stream);
    Py_END_ALLOW_THREADS;
}

/* As gpupool_acquire(), and looks for signals meanwhile. CANCELLED: with the exception of a handler. */
static int acquire_looking(struct gpupool_client *handle, uint32_t pool, uint64_t size_bytes, void *stream,
                           uint64_t timeout_ns, uint32_t flags, struct gpupool_buffer *ret_buffer) {
    struct waiting waiting = {.handle = handle};
    pid_t process = getpid();
    bool is_ended = false;
    int r;

    Py_BEGIN_ALLOW_THREADS;
    r = gpupool_acquire_begin(handle, pool, size_bytes, stream, timeout_ns, flags, &waiting.number);
    if (r == 0) {
        bool is_complete = gpupool_internal_request_is_complete(handle, waiting.number);
        waiting.fd = is_complete ? -1 : gpupool_request_fd(handle, waiting.number);
        is_ended = end_if_complete(&waiting);
    }
    Py_END_ALLOW_THREADS;
    if (r < 0)
        return r;
    while (!is_ended) {
        if (PyErr_CheckSignals() < 0) {
            give_up(&waiting, stream);
            return GPUPOOL_E_CANCELLED;
        }
        if (getpid() != process) /* a handler has forked: the request is the parent's, and its end says so */
            waiting.fd = -1;
        Py_BEGIN_ALLOW_THREADS;
        is_ended = end_if_complete(&waiting);
        Py_END_ALLOW_THREADS;
    }
    if (waiting.result == 0)
        *ret_buffer = waiting.buffer;
    return waiting.result;
}

int waiting_acquire(struct client_object *client, const struct gpupool_pool *pool, uint64_t size_bytes,
                    void *stream, uint64_t timeout_ns, uint32_t flags, struct gpupool_buffer *ret_buffer) {
    struct gpupool_client *handle = client->handle;
    int r;

    if (!client_use(client)) /* also while handlers run */
        return -1;
    if (timeout_ns == WAITING_AS_CLIENT)
        timeout_ns = gpupool_internal_alloc_timeout_ns(handle);
    if (getpid() == gettid() && timeout_ns > LOOK_NS && (flags & GPUPOOL_CAN_SLEEP) == 0) {
        r = acquire_looking(handle, pool->id, size_bytes, stream, timeout_ns, flags, ret_buffer);
    } else {
        WITHOUT_LOCK(
            r = gpupool_acquire(handle, pool->id, size_bytes, stream, timeout_ns, flags, ret_buffer));
    }
    client_unuse(client);
    if (r < 0 && PyErr_Occurred() == NULL)
        error_raise_of_pool(client->state, r, pool);
    return r < 0 ? -1 : 0;
}
