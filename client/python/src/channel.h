/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_CHANNEL_H
#define CLIENT_PYTHON_CHANNEL_H
/*
 * Places of a channel (<gpupool/channel.h>), for gpupool/channels.py: the bases of its classes Producer and Consumer,
 * which differ in their methods alone.
 *
 * A place keeps its Client and its Pool. It is open, or closed: then handle is NULL. Frames that are open are in its
 * list, and keep it. uses counts the calls about the place and its frames, which may be without the interpreter's
 * lock; while there is one, or an export of a frame, close() is refused. channel_wait.h has the
 * calls that wait.
 */
#include <gpupool/channel.h>

#include "client/python/src/pool.h"
#include "client/python/src/turn.h"

struct frame_object;

struct channel_object {
    PyObject ob_base;
    struct client_object *client;
    struct pool_object *pool;
    struct gpupool_channel *handle;
    PyObject *name;
    struct gpupool_channel_options capacities;
    uint32_t place;
    bool is_producer;
    bool waits_for_producer; /* a consumer: VACANT is waited out */
    bool is_leaving;         /* it is closed to new calls */
    struct turn turn;
    uint32_t uses;
    struct frame_object *frames; /* open ones; borrowed */
};

extern PyType_Spec producer_spec, consumer_spec;

/* _make_channel(name, pool, slot_bytes, slots, consumers, metadata_bytes, policy, keep). policy: a number of enum
 * gpupool_channel_policy. */
PyObject *channel_make(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* Counts a call about an open place, and its client. False with an exception. */
bool channel_use(struct channel_object *self);
void channel_unuse(struct channel_object *self);

#endif
