/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_RECLAIM_H
#define CLIENT_PRELOAD_RECLAIM_H
/*
 * When the daemon asks for idle memory, the process has its framework's caches emptied, and tells the daemon
 * what became of the request.
 *
 * The reclaimer is a thread of this library, which runs while there is a request to answer. It goes through
 * rounds:
 *
 * 1. While a stream is being captured it waits, because to free memory would invalidate the capture. The
 *    daemon is told CAPTURING. It repeats its requests; one that is older than a second lapses.
 *    A thread that waits for device memory in lend() for longer than some milliseconds ends the round:
 *    PyTorch holds its allocator's lock there, and the request of the daemon may be for this very memory. The
 *    daemon is told WAITS, and asks again if it has to.
 * 2. It has Python empty the caches (python.h). The memory that PyTorch frees is collected: cuMemFree() in the
 *    thread that empties puts it into a list. If that takes long, the daemon is told BUSY, or WAITS.
 * 3. It waits for the device once, frees the list, and tells the daemon DONE or NOTHING. If a capture has
 *    begun meanwhile, the list is freed when that has ended.
 *
 * A request that comes while a round runs has a round of its own afterwards. A forked child begins without a
 * reclaimer and with an empty list. Thread-safe.
 */
#include <stdbool.h>

#include <gpupool/gpupool.h>

/* For gpupool_options.reclaim: the daemon asks. On the library's thread; does not wait. */
void reclaim_asked(void *argument);

/* A capture has ended, or Python's work is over. */
void reclaim_changed(void);

/* Around a wait for device memory. */
void reclaim_before_wait(void);
void reclaim_after_wait(void);

/* Around the work that empties caches. own_thread: the thread is this library's, and the work may have any
 * current device of the process. */
struct reclaim_collecting {
    bool exchanged;
    int mode;
};
struct reclaim_collecting reclaim_collect_begin(bool own_thread);
void reclaim_collect_end(struct reclaim_collecting collecting);

/* Takes memory that is freed, if the calling thread empties caches. False: it does not, or there is no memory
 * to note it. */
bool reclaim_collect(const struct gpupool_buffer *buffer);

/* Starts a detached thread in which no signal is handled. */
bool reclaim_start_thread(void *(*function)(void *));

void reclaim_after_fork(void);

#endif
