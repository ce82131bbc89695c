/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PROPERTY_SPY_H
#define TESTS_PROPERTY_SPY_H
/*
 * A driver table that stands between a client and its driver, the simulated one or CUDA: it counts what the
 * library enqueues, makes a planned call fail, and holds a stream up before a copy, so that work which ought
 * to wait for that copy and does not is seen. It looks only while a step is watched, and only at the thread
 * that watches: the library's own threads and the test's own copies are let through. At any time and on any
 * thread, a call that names a destroyed stream ends the program.
 *
 * There is one in a process, for the calls of a table know no object.
 */
#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu.h"

struct spy_sight {
    uint64_t copies, copied_bytes; /* that were enqueued */
    uint64_t sets, set_bytes;
    uint64_t calls; /* of the driver, of any kind */
    bool failed;    /* the planned call came, and failed */
};

/* Calls that can be made to fail. */
enum spy_call {
    SPY_COPY,
    SPY_SET,
    SPY_WRITE64,
    SPY_WAIT64,
    SPY_STREAM_SYNCHRONIZE,
    SPY_DEVICE_SYNCHRONIZE,
    SPY_IS_CAPTURING,
    SPY_OPEN,
    SPY_ANY, /* of those above */
};

/* Stands before driver from now on. delay is called before a watched copy is enqueued, and may enqueue
 * something. */
const struct gpu *spy_before(const struct gpu *driver, void (*delay)(unsigned device, void *stream));

/* Watches what the calling thread does until spy_end(). nth (from 1) of the calls fails, and if it lasts all
 * after it; 0: none does. */
void spy_begin(enum spy_call call, unsigned nth, bool lasts);
void spy_end(struct spy_sight *ret_sight);

#endif
