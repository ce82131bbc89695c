/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CHANNEL_PAGES_H
#define TESTS_CHANNEL_PAGES_H
/*
 * The pages and the frames of a channel for tests of several processes: memfds, as the daemon makes them. The
 * process that made the pages plays the daemon, and writes the roll.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/core/channel.h"

struct channel_pages {
    struct proto_channel_capacities capacities;
    bool has_threads; /* the places are for threads of one process, which share one mapping of each page */
    int roll_fd, frames_fd, fds[PROTO_CHANNEL_PLACES];
    struct proto_channel_roll *roll;             /* of the daemon */
    void *frames, *memory[PROTO_CHANNEL_PLACES]; /* of threads */
};

/* The memory that a process in a place has mapped: its own page to be written, the others to read only. */
struct channel_mapped {
    struct channel_view view;
    struct proto_channel_producer *producer; /* the own page, of a producer */
    struct proto_channel_consumer *consumer; /* and of a consumer */
    char *frames;                            /* slot_bytes for each slot; only the producer writes there */
};

/* Makes the pages. Ends the program when that fails; so do the functions below. */
void channel_pages_make(struct channel_pages *pages, const struct proto_channel_capacities *capacities,
                        bool has_threads);

/* Maps the pages for the process, or the thread, in a place. */
void channel_pages_map(const struct channel_pages *pages, unsigned place, struct channel_mapped *mapped);

/* Changes a place in the roll, and wakes the sleepers. One thread at a time. A process that comes to a place
 * that was left gets a new queue. */
void channel_pages_set(struct channel_pages *pages, unsigned place, enum proto_channel_state state);

#endif
