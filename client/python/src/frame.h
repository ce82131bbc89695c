/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_FRAME_H
#define CLIENT_PYTHON_FRAME_H
/*
 * A Frame: a slot of a channel that was loaned, or that holds a frame that was received. To the protocols of Python it
 * is memory as a Buffer is (buffer.h), which it begins with.
 *
 *   open --send(), release(), close of the place, its own end--> closed
 *   open --the end of its with statement, with exports--> closing --the last export ends--> closed
 *
 * A closing Frame is closed to the program (memory.is_closed), and its slot is still held: what an array shows does not
 * change. An open or closing Frame is in the list of its place.
 *
 * The slot goes back behind the Frame's stream and all further ones. These come before that stream on the GPU, by
 * fences.
 */
#include "client/python/src/buffer.h"
#include "client/python/src/channel.h"

/* A stream that was recorded. Each device has its own stream NULL. */
struct further_stream {
    void *handle;
    int device;
};

struct frame_object {
    struct buffer_object memory; /* first: a frame is a buffer to array.c, dlpack.c and numpy.c */
    struct channel_object *channel;
    struct gpupool_frame frame;
    struct frame_object *previous, *next; /* in the place's list */
    struct further_stream *further;
    uint32_t n_further;
    bool is_closing;
    PyObject *metadata; /* bytes, once it was asked for */
};

extern PyType_Spec frame_spec;

/* A closed Frame of a place in use. Takes stream.object, also on failure. NULL with an exception. */
struct frame_object *frame_new(struct channel_object *channel, struct stream stream);

/* Opens a Frame with what was loaned or received. */
void frame_open(struct frame_object *self, const struct gpupool_frame *frame);

/* Gives the slot of an open Frame without exports back behind its streams, and closes it. 0, or an error of the
 * library: it stays open. */
int frame_end(struct frame_object *self);

#endif
