/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_PURGER_H
#define CLIENT_CACHE_PURGER_H
/*
 * The purger of a client's cache: sees to it that idle memory goes back to the daemon, after a time without
 * use and at once when the daemon asks because others wait. Either a thread of the library does it, or, in a
 * client that was opened with GPUPOOL_OPEN_NO_THREAD, the application's own loop, which watches gpupool_fd()
 * and calls gpupool_dispatch(). There a thread that waits for memory answers the daemon, too: it may be the
 * thread of the loop.
 *
 * Each cache has one purger, from its start to its stop.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct cache;

struct purger {
    uint64_t decay_ns;
    int reclaim_fd; /* the daemon's: readable when it asks; -1: it never does */
    /* The program's, called when the daemon asks; set before purger_start(). NULL: none. */
    void (*reclaim)(void *argument);
    void *reclaim_argument;
    /* the thread's */
    bool runs;
    pthread_t thread;
    int stop_fd; /* an eventfd that ends it; -1: none */
    /* the loop's */
    int loop_fd;  /* an epoll over the daemon's and the timer; -1: none */
    int decay_fd; /* a timerfd; -1: memory does not decay */
    int owed_fd;  /* an eventfd: readable when the program's callback is owed a call; -1: there is none */
    pthread_mutex_t look_lock; /* one thread at a time looks whether the daemon has asked */
    bool is_over; /* the connection has ended, and its end is not watched any more */
};

void purger_init(struct purger *purger);
/* Closes what is open. The thread has stopped. */
void purger_deinit(struct purger *purger);

/* Starts to keep. reclaim_fd is taken. 0 or NO_MEMORY. */
int purger_start(struct cache *cache, uint64_t decay_ns, int reclaim_fd, bool with_thread);
/* For a client without the thread: does what is due, if anything is. 0, or what cache_give_back() says. */
int purger_dispatch(struct cache *cache);
/* For a client without the thread, in a thread that waits for memory: answers, if the daemon has asked. Where
 * the program has a callback, only gives back what the library keeps: the program may hold a lock that its
 * callback takes. The next purger_dispatch() calls it and answers. owner: the cache. Returns whether to look
 * again in the same call. */
bool purger_answer_waiting(void *owner);
/* Has the program's loop watch a descriptor for reading, or no longer. For a client without the thread. 0 or
 * a negative errno. */
int purger_watch(const struct purger *purger, int fd);
void purger_unwatch(const struct purger *purger, int fd);
/* Ends the thread. */
void purger_stop(struct purger *purger);

#endif
