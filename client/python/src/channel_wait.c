/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/channel_wait.h"

#include <poll.h>

#include "base/clock.h"
#include "client/python/src/arguments.h"
#include "client/python/src/error.h"
#include "client/python/src/frame.h"

/* Between two looks for signals, and two turns, of a call that waits. It cannot be broken off. */
#define SLICE_NS (NS_PER_S / 4)

uint64_t channel_slice_ns(uint64_t deadline_ns) {
    uint64_t left_ns = clock_left_ns(deadline_ns);
    return left_ns > SLICE_NS ? SLICE_NS : left_ns;
}

bool channel_goes_on(uint64_t deadline_ns) {
    return clock_left_ns(deadline_ns) > 0 && PyErr_CheckSignals() == 0;
}

/* A call that waits for a slot or a frame. */
struct waiting {
    struct stream stream;
    uint64_t deadline_ns;
    bool is_look;      /* nothing is no error */
    bool is_iteration; /* ENDED is no error */
};

#define TEXT_BYTES 1536 /* of the library's texts */

/* The outcome of a call of the library. */
struct outcome {
    int error;             /* 0; an error of the library */
    bool is_nothing;       /* it had nothing, and may have something later */
    char text[TEXT_BYTES]; /* of an error */
};

/* The arguments of loan() and receive(). The stream is held on success alone. -1 with an exception. */
static int read_waiting(struct channel_object *self, const struct signature *signature,
                        PyObject *const *given, Py_ssize_t count, PyObject *names,
                        struct waiting *ret_waiting) {
    struct waiting waiting = {{pool_default_stream(self->pool), NULL}, NS_FOREVER, false, false};
    PyObject *values[ARGUMENTS_MAX];
    uint64_t timeout_ns = GPUPOOL_FOREVER;

    if (count > 0 || names != NULL) {
        if (arguments_read(signature, given, count, names, values) < 0 ||
            arguments_read_seconds(values[1], "timeout", GPUPOOL_FOREVER, &timeout_ns) < 0 ||
            stream_read(self->client->state, values[0], waiting.stream.handle, &waiting.stream) < 0)
            return -1;
        waiting.deadline_ns = timeout_ns == 0 ? 0 : clock_deadline_ns(clock_now_ns(), timeout_ns);
    }
    *ret_waiting = waiting;
    return 0;
}

/* Whether a call had nothing, and may have something later. TIMED_OUT is also the error of a frame whose GPU work did
 * not end in the client's alloc_timeout: the caller is told of that. The call has the turn. */
static bool had_nothing(struct channel_object *self, int error) {
    struct gpupool_channel_info info;

    if (self->is_producer)
        return error == GPUPOOL_E_EXHAUSTED && self->capacities.policy == GPUPOOL_CHANNEL_WAIT;
    if (error == GPUPOOL_E_VACANT)
        return self->waits_for_producer;
    return error == GPUPOOL_E_TIMED_OUT && gpupool_channel_look(self->handle, &info) == 0 &&
           info.has_waiting == 0;
}

/* One call of the library, with the turn. -1 with an exception: there is no turn. */
static int call_once(struct channel_object *self, const struct waiting *waiting,
                     struct gpupool_frame *ret_frame, struct outcome *ret_outcome) {
    uint64_t wait_ns = waiting->deadline_ns == 0 ? GPUPOOL_NOW : channel_slice_ns(waiting->deadline_ns);
    int r;

    if (turn_take(&self->turn) < 0)
        return -1;
    if (self->is_producer)
        WITHOUT_LOCK(r = gpupool_channel_loan(self->handle, waiting->stream.handle, wait_ns, ret_frame));
    else
        WITHOUT_LOCK(r = gpupool_channel_receive(self->handle, waiting->stream.handle, wait_ns, ret_frame));
    if (r < 0) /* before other calls of the library */
        PyOS_snprintf(ret_outcome->text, sizeof ret_outcome->text, "%s", gpupool_error_text());
    ret_outcome->error = r;
    ret_outcome->is_nothing = had_nothing(self, r);
    turn_pass(&self->turn);
    return 0;
}

/* The descriptor, which the first call makes. Negative: an error of the library; -1 with an exception (no error is
 * -1). */
static int find_fd(struct channel_object *self) {
    int fd;

    if (turn_take(&self->turn) < 0)
        return -1;
    WITHOUT_LOCK(fd = gpupool_channel_fd(self->handle));
    turn_pass(&self->turn);
    return fd;
}

/* Waits for a change of the producer's place, after VACANT. -1 with an exception. */
static int await_producer(struct channel_object *self, uint64_t deadline_ns) {
    struct pollfd changed = {.fd = find_fd(self), .events = POLLIN};
    uint64_t wait_ns = channel_slice_ns(deadline_ns);

    if (changed.fd < 0) {
        if (PyErr_Occurred() == NULL)
            error_raise(self->client->state, changed.fd);
        return -1;
    }
    WITHOUT_LOCK((void)poll(&changed, 1, (int)(wait_ns / NS_PER_MS) + 1));
    return 0;
}

/* Loans or receives, in slices. -1 with an exception, which is not that of the outcome. */
static int wait_for_frame(struct channel_object *self, const struct waiting *waiting,
                          struct gpupool_frame *ret_frame, struct outcome *ret_outcome) {
    for (;;) {
        if (call_once(self, waiting, ret_frame, ret_outcome) < 0)
            return -1;
        if (!ret_outcome->is_nothing || waiting->is_look)
            return 0;
        if (!channel_goes_on(waiting->deadline_ns))
            return PyErr_Occurred() != NULL ? -1 : 0;
        if (ret_outcome->error == GPUPOOL_E_VACANT && await_producer(self, waiting->deadline_ns) < 0)
            return -1;
    }
}

/* The Frame that a call gets. Ends the stream's use. None: a look had nothing. NULL with an exception. */
static PyObject *get_frame(struct channel_object *self, const struct waiting *waiting) {
    struct module_state *state = self->client->state;
    struct gpupool_frame got = {0};
    struct outcome outcome;

    if (!channel_use(self)) {
        stream_drop(state, waiting->stream.object);
        return NULL;
    }
    struct frame_object *frame = frame_new(self, waiting->stream);
    if (frame == NULL) {
        channel_unuse(self);
        return NULL;
    }
    int r = wait_for_frame(self, waiting, &got, &outcome);
    channel_unuse(self);
    if (r == 0 && outcome.error == 0) {
        frame_open(frame, &got);
        return (PyObject *)frame;
    }
    Py_DECREF((PyObject *)frame);
    if (r < 0 || (outcome.error == GPUPOOL_E_ENDED && waiting->is_iteration))
        return NULL;
    return waiting->is_look && outcome.is_nothing ? Py_NewRef(Py_None)
                                                  : error_raise_text(state, outcome.error, outcome.text);
}

PyObject *channel_loan(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"loan", 0, 2, {"stream", "timeout", NULL}};
    struct channel_object *self = (struct channel_object *)object;
    struct waiting waiting;

    return read_waiting(self, &signature, given, count, names, &waiting) < 0 ? NULL
                                                                             : get_frame(self, &waiting);
}

PyObject *channel_receive(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"receive", 0, 2, {"stream", "timeout", NULL}};
    struct channel_object *self = (struct channel_object *)object;
    struct waiting waiting;

    return read_waiting(self, &signature, given, count, names, &waiting) < 0 ? NULL
                                                                             : get_frame(self, &waiting);
}

PyObject *channel_poll(PyObject *object, PyObject *const *given, Py_ssize_t count) {
    struct channel_object *self = (struct channel_object *)object;
    struct waiting waiting = {.is_look = true};

    return stream_read(self->client->state, count > 0 ? given[0] : NULL, pool_default_stream(self->pool),
                       &waiting.stream) < 0
               ? NULL
               : get_frame(self, &waiting);
}

PyObject *channel_next(PyObject *object) {
    struct channel_object *self = (struct channel_object *)object;
    struct waiting waiting = {{pool_default_stream(self->pool), NULL}, NS_FOREVER, false, true};

    return get_frame(self, &waiting);
}

PyObject *channel_fileno(PyObject *object, PyObject *none) {
    struct channel_object *self = (struct channel_object *)object;

    (void)none;
    if (!channel_use(self))
        return NULL;
    int fd = find_fd(self);
    channel_unuse(self);
    if (fd < 0)
        return PyErr_Occurred() != NULL ? NULL : error_raise(self->client->state, fd);
    return PyLong_FromLong(fd);
}
