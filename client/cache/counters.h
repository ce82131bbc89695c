/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_COUNTERS_H
#define CLIENT_CACHE_COUNTERS_H
/*
 * Where a client's threads count what they do: the lines of the page that it shares with the daemon
 * (proto/page.h says what they mean). A line is one thread's and one pool's at a time; when the thread ends,
 * the next one that uses the pool goes on with it, sums and all.
 *
 * There may be no page, or no line left: then there is no line to be had, the thread counts outside the page,
 * and the statistics miss it. A buffer that is taken there and given back elsewhere makes the sums of the
 * pool too small by it.
 *
 * Thread-safe, by a lock that is a leaf. The lines themselves are written without: each by its thread alone.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/page.h"

struct counters {
    pthread_mutex_t lock;
    struct proto_page *page; /* NULL: no thread counts; zero at first, and stays until the client closes */
    unsigned lines;          /* in use, the lowest; those of ended threads among them */
    bool taken[PROTO_PAGE_COUNTERS];
};

void counters_init(struct counters *counters);
void counters_deinit(struct counters *counters);

/* Takes a line for a pool. NULL when there is none. */
struct proto_counters *counters_take(struct counters *counters, uint32_t pool);

/* The thread that counted there ends. */
void counters_give(struct counters *counters, const struct proto_counters *line);

/* How many buffers the client's threads have taken from a pool, as far as they count in the page. Linear in
 * the lines in use. */
uint64_t counters_takes(struct counters *counters, uint32_t pool);

/* Adds to a counter that this thread alone writes: readers see each value whole, and no bus is locked. */
static inline void count_up(_Atomic uint64_t *counter, uint64_t value) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + value,
                          memory_order_relaxed);
}

#endif
