/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_PURGER_H
#define CLIENT_CACHE_PURGER_H
/*
 * The purger of a client's cache: sees to it that idle memory goes back to the daemon, after a time without
 * use and at once when the daemon asks because others wait. One descriptor is readable when there is something
 * to do, and purger_step() does it. A thread of the library makes the steps. In a client that was opened with
 * GPUPOOL_OPEN_NO_THREAD it is the application's own loop, which watches gpupool_fd() and calls
 * gpupool_dispatch(). There a thread that waits for memory answers the daemon, too: it may be the thread of the
 * loop.
 *
 * Each cache has one purger, from its start to its stop.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/include/gpupool/gpupool.h"
#include "client/session/connection.h"

struct cache;

/* For what the connection is read, in a thread that waits for the epoll. */
#define PURGER_READS_REQUESTS 1u /* submitted requests, in a client without the thread */
#define PURGER_READS_ALIVE    2u /* news of the daemon */

struct purger {
    uint64_t decay_ns;
    int reclaim_fd; /* the daemon's: readable when it asks; -1: it never does */
    /* The program's, called when the daemon asks; set before purger_start(). NULL: none. */
    void (*reclaim)(void *argument);
    void *reclaim_argument;
    /* The program's, called when the connection's state has changed. As reclaim. */
    void (*connection_changed)(void *argument, enum gpupool_connection_state state);
    void *connection_argument;
    enum connection_state state; /* that the program knows; and the pauses; under look_lock */
    unsigned n_pauses;
    unsigned reads; /* PURGER_READS_…; under look_lock */
    bool is_put_off; /* a question, until the daemon is there; under look_lock */
    int state_fd;   /* an eventfd: readable when the daemon has ended or is back; -1: as the others */
    int watch_fd; /* an epoll over the daemon's, the timer and others; -1: the client has no cache */
    int decay_fd; /* a timerfd; -1: memory does not decay */
    /* the thread's */
    bool runs; /* set before the thread begins */
    pthread_t thread;
    atomic_bool stops;
    int stop_fd; /* an eventfd that ends it; -1: none */
    /* the loop's */
    int owed_fd;  /* an eventfd: readable when the program's callback is owed a call; -1: there is none */
    pthread_mutex_t look_lock; /* one thread at a time looks whether the daemon has asked */
    bool is_over; /* the connection has ended, and its end is not watched any more */
};

void purger_init(struct purger *purger);
/* Closes what is open. The thread has stopped. */
void purger_deinit(struct purger *purger);

/* Starts to keep. reclaim_fd is taken. 0 or NO_MEMORY. */
int purger_start(struct cache *cache, uint64_t decay_ns, int reclaim_fd, bool with_thread);
/* Does what is due, if anything is, and waits for nothing but the daemon. 0, or what cache_give_back() says. */
int purger_step(struct cache *cache);

/* Whether the program's loop makes the steps. */
static inline bool purger_has_loop(const struct purger *purger) {
    return purger->watch_fd >= 0 && !purger->runs;
}

/* For a client without the thread, in a thread that waits for memory: answers, if the daemon has asked. Where
 * the program has a callback, only gives back what the library keeps: the program may hold a lock that its
 * callback takes. The next purger_step() calls it and answers. owner: the cache. Returns whether to look
 * again in the same call. */
bool purger_answer_waiting(void *owner);
/* Has the program's loop watch a descriptor for reading. For a client without the thread. 0 or a negative errno. */
int purger_watch(const struct purger *purger, int fd);
/* Has the connection watched for reading for one of PURGER_READS_…, or no longer. 0 or a negative errno. */
int purger_watch_connection(struct purger *purger, int fd, unsigned for_what, bool reads);
/* Ends the thread. */
void purger_stop(struct purger *purger);

#endif
