/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_CHANNEL_WAIT_H
#define CLIENT_PYTHON_CHANNEL_WAIT_H
/*
 * The calls of a place that get a Frame, and may wait for it (channel.h). The library allows one thread at a time to
 * loan, and one to receive: that thread has the turn. A call that waits does so in slices, between which the turn is
 * passed on and handlers of signals run.
 */
#include "client/python/src/channel.h"

/* The time of the next call of the library, of a call that waits until a deadline. */
uint64_t channel_slice_ns(uint64_t deadline_ns);

/* Whether a call that had nothing in its slice is made again. False with an exception of a handler, or without. */
bool channel_goes_on(uint64_t deadline_ns);

/* Producer.loan() */
PyObject *channel_loan(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* Consumer.receive() */
PyObject *channel_receive(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* _look(stream): as the two above for the present moment. None: nothing is there, and something may come. */
PyObject *channel_poll(PyObject *object, PyObject *const *given, Py_ssize_t count);

/* Consumer.__next__() */
PyObject *channel_next(PyObject *object);

/* fileno() */
PyObject *channel_fileno(PyObject *object, PyObject *none);

#endif
