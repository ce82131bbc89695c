/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_PYTHON_H
#define CLIENT_PRELOAD_PYTHON_H
/*
 * Memory in the caches of PyTorch, CuPy and Numba is in use for gpupool. They free it when they are told to:
 * PyTorch by torch.cuda.empty_cache(). That takes the interpreter's lock. Here a process that runs Python
 * with one of them is made to call it, once for each python_begin():
 *
 * 1. Python's main thread calls it between two instructions of the program, as it runs a signal's handler.
 * 2. A main thread that is inside a call (a read, a lock, a sleep) does not come to that. So python_press()
 *    starts a thread that waits for the interpreter's lock, and then calls it itself.
 *
 * The first of the two does the work; the other one finds nothing to do. A piece of work is IDLE, WANTED,
 * RUNNING, then OVER, then IDLE again. The memory that is freed meanwhile is collected (reclaim.h).
 *
 * While the interpreter ends, its exit handler waits for work that is under way, and no further work begins.
 * Work that waits for the lock of an interpreter that has ended is over without effect.
 *
 * One thread calls these functions at a time.
 */
#include <stdbool.h>
#include <stdint.h>

/* PyTorch's C10_COMPILE_TIME_MAX_GPUS is 120; this library serves fewer. */
#define PYTHON_DEVICES_MAX 64

/* Begins a piece of work. The last one is over. False: no interpreter runs in this process. */
bool python_begin(void);

/* Has a thread wait for the interpreter's lock, unless the work runs already or such a thread waits. */
void python_press(void);

/* Whether the work is over; if so, it is IDLE again. ret_kept_bytes: what stays idle in caches on each
 * device: free parts of segments that are in use elsewhere, and private pools. reclaim_changed() is called
 * when this changes. */
bool python_is_over(uint64_t ret_kept_bytes[PYTHON_DEVICES_MAX]);

void python_after_fork(void);

#endif
