/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/waiting.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/python/src/error.h"

#define SECOND_NS UINT64_C(1000000000)

/* So long the calling thread waits by itself: growth of a pool takes less. */
#define FIRST_WAIT_NS (SECOND_NS / 10)

/* Between two looks for signals. */
#define LOOK_NS (SECOND_NS / 20)

/* A wait that was handed to a thread. The two threads share it under the lock; the one that is through last
 * frees it. */
struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t ended; /* on the monotonic clock */
    bool is_done;         /* result and text are there */
    bool is_abandoned;    /* the thread gives back what it gets, ends the call of the client, and frees */
    struct client_object *client; /* a reference of the thread's, if it is abandoned */
    uint32_t pool, flags;
    uint64_t size_bytes, timeout_ns;
    void *stream;
    int result;
    char *text; /* of the error; NULL: no memory for it */
    struct gpupool_buffer buffer;
};

static struct waiting *waiting_free(struct waiting *waiting) {
    if (waiting == NULL)
        return NULL;
    pthread_cond_destroy(&waiting->ended);
    pthread_mutex_destroy(&waiting->lock);
    free(waiting->text);
    free(waiting);
    return NULL;
}

static struct waiting *waiting_new(void) {
    struct waiting *waiting = calloc(1, sizeof *waiting);
    pthread_condattr_t attributes;

    if (waiting == NULL)
        return NULL;
    pthread_mutex_init(&waiting->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&waiting->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    return waiting;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

/* --- the thread --- */

/* No other thread looks at the wait any more. When the interpreter is being taken down, this thread ends
 * here, and the memory goes back with the process. */
static void end_abandoned(struct waiting *waiting) {
    if (waiting->result == 0)
        (void)gpupool_release(waiting->client->handle, &waiting->buffer, GPUPOOL_NO_STREAM);
    PyGILState_STATE state = PyGILState_Ensure();
    waiting->client->calls--;
    Py_DECREF((PyObject *)waiting->client);
    PyGILState_Release(state);
    waiting_free(waiting);
}

static void *run(void *argument) {
    struct waiting *waiting = argument;
    int r = gpupool_acquire(waiting->client->handle, waiting->pool, waiting->size_bytes, waiting->stream,
                            waiting->timeout_ns, waiting->flags, &waiting->buffer);

    pthread_mutex_lock(&waiting->lock);
    waiting->result = r;
    if (r < 0)
        waiting->text = strdup(gpupool_error_text());
    waiting->is_done = true;
    bool is_abandoned = waiting->is_abandoned;
    pthread_cond_signal(&waiting->ended);
    pthread_mutex_unlock(&waiting->lock); /* if it is not abandoned, the other thread may free it now */
    if (is_abandoned)
        end_abandoned(waiting);
    return NULL;
}

/* Signals are for the program's threads. Returns 0, or an error of the system: no thread was made. */
static int start(struct waiting *waiting, pthread_t *ret_thread) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(ret_thread, NULL, run, waiting);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* --- the caller --- */

/* Waits for the thread for a while. Returns whether it is done. */
static bool look(struct waiting *waiting) {
    uint64_t until_ns = now_ns() + LOOK_NS;
    struct timespec until = {(time_t)(until_ns / SECOND_NS), (long)(until_ns % SECOND_NS)};

    pthread_mutex_lock(&waiting->lock);
    while (!waiting->is_done && pthread_cond_timedwait(&waiting->ended, &waiting->lock, &until) == 0)
        continue;
    bool is_done = waiting->is_done;
    pthread_mutex_unlock(&waiting->lock);
    return is_done;
}

/* Leaves the wait to its thread, unless that is done. */
static bool abandon(struct waiting *waiting) {
    pthread_mutex_lock(&waiting->lock);
    waiting->is_abandoned = !waiting->is_done;
    bool is_abandoned = waiting->is_abandoned;
    if (is_abandoned)
        Py_INCREF((PyObject *)waiting->client);
    pthread_mutex_unlock(&waiting->lock);
    return is_abandoned;
}

/* Watches the thread. The call of the client was counted. -1 with an exception. */
static int watch(struct waiting *waiting, pthread_t thread, struct gpupool_buffer *ret_buffer) {
    struct client_object *client = waiting->client;
    bool is_done;

    do {
        Py_BEGIN_ALLOW_THREADS;
        is_done = look(waiting);
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals() < 0 && abandon(waiting)) {
            pthread_detach(thread);
            return -1;
        }
    } while (!is_done && PyErr_Occurred() == NULL);
    pthread_join(thread, NULL);
    client->calls--;
    if (waiting->result < 0 && PyErr_Occurred() == NULL)
        error_raise_text(client->state, waiting->result, waiting->text != NULL ? waiting->text : "");
    if (waiting->result == 0 && PyErr_Occurred() != NULL)
        WITHOUT_LOCK(client->calls,
                     (void)gpupool_release(client->handle, &waiting->buffer, GPUPOOL_NO_STREAM));
    *ret_buffer = waiting->buffer;
    waiting_free(waiting);
    return PyErr_Occurred() == NULL ? 0 : -1;
}

/* Has a thread wait. Returns false if there can be none; else *ret_result is 0, or -1 with an exception. */
static bool wait_by_thread(struct client_object *client, uint32_t pool, uint64_t size_bytes, void *stream,
                           uint64_t timeout_ns, uint32_t flags, struct gpupool_buffer *ret_buffer,
                           int *ret_result) {
    struct waiting *waiting = waiting_new();
    pthread_t thread;

    if (waiting == NULL)
        return false;
    waiting->client = client;
    waiting->pool = pool;
    waiting->size_bytes = size_bytes;
    waiting->stream = stream;
    waiting->timeout_ns = timeout_ns;
    waiting->flags = flags;
    if (start(waiting, &thread) != 0) {
        waiting_free(waiting);
        return false;
    }
    client->calls++;
    *ret_result = watch(waiting, thread, ret_buffer);
    return true;
}

int waiting_acquire(struct client_object *client, uint32_t pool, uint64_t size_bytes, void *stream,
                    uint64_t timeout_ns, uint32_t flags, struct gpupool_buffer *ret_buffer) {
    /* Another thread has another per-thread default stream, which does not order the zeroing for this one. */
    bool may_hand_over =
        getpid() == gettid() && timeout_ns > FIRST_WAIT_NS && !(flags != 0 && stream == GPUPOOL_PER_THREAD);
    uint64_t first_ns = may_hand_over ? FIRST_WAIT_NS : timeout_ns, begin_ns = now_ns();
    int r;

    WITHOUT_LOCK(client->calls,
                 r = gpupool_acquire(client->handle, pool, size_bytes, stream, first_ns, flags, ret_buffer));
    if (r == GPUPOOL_E_EXHAUSTED && may_hand_over) {
        if (PyErr_CheckSignals() < 0 || !client_is_open(client))
            return -1;
        if (timeout_ns != GPUPOOL_FOREVER) {
            uint64_t waited_ns = now_ns() - begin_ns;
            timeout_ns -= waited_ns < timeout_ns ? waited_ns : timeout_ns;
        }
        if (wait_by_thread(client, pool, size_bytes, stream, timeout_ns, flags, ret_buffer, &r))
            return r;
        WITHOUT_LOCK(client->calls, r = gpupool_acquire(client->handle, pool, size_bytes, stream, timeout_ns,
                                                        flags, ret_buffer));
    }
    if (r < 0)
        error_raise(client->state, r);
    return r < 0 ? -1 : 0;
}
