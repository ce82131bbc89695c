/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_CHANNELS_H
#define DAEMON_DATA_CHANNELS_H
/*
 * The pages of channels (proto/channel.h): the roll, and a page for each place. The daemon makes them, hands them to the
 * sessions that are in the channel, and writes the roll alone. A page that is a place's own is handed out for writing;
 * for all others by a descriptor that can only be read.
 *
 * The roll says what the core knows (daemon/core/channel.h) once that is in the estate. A successor writes it again.
 * `changes` goes on from the value that is there.
 *
 * Invariant: each channel of the core has pages, from core_channel_made() on.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "daemon/loop/store.h"
#include "proto/channel.h"

struct channel;
struct core;
struct desk;

#define CHANNEL_PAGES_MAX (PROTO_CHANNEL_PLACES + 1)

struct channel_page {
    int fd;         /* for its place */
    int reading_fd; /* for the others */
    uint64_t size_bytes;
    char stored[STORE_NAME_SIZE];
};

struct channel_pages {
    struct list gone_link; /* in core->channels_gone when the channel is gone */
    struct list link;      /* in channels->all */
    uint64_t channel;      /* its id */
    unsigned n_pages;
    struct channel_page pages[CHANNEL_PAGES_MAX]; /* the roll, then those of the places */
    struct proto_channel_roll *roll;
    uint32_t record; /* kept_data.h */
};

struct channels {
    struct list all;   /* struct channel_pages.link */
    struct core *core; /* borrowed */
    struct desk *desk;
    struct store *store;
};

void channels_init(struct channels *channels, struct core *core, struct desk *desk, struct store *store);

/* Makes the pages of a channel that was just made. Returns 0 or a negative errno; -ENOBUFS: they cannot be stored. */
int channels_make(struct channels *channels, struct channel *channel);

/* A page of a channel, by its number in ASK_CHANNEL_MEMORY. NULL: there is none. */
const struct channel_page *channels_page(const struct channels *channels, uint64_t channel, uint32_t number);

/* The words that the processes in a channel write about themselves. They are for people alone: nothing is decided by them. */
struct channel_account {
    uint64_t sent;
    struct {
        uint64_t received;                    /* the sequence that it received last */
        uint64_t behind;                      /* elements that it can receive still */
        uint64_t held;                        /* that it received, and did not release */
    } consumers[PROTO_CHANNEL_CONSUMERS_MAX]; /* by place - 1 */
};

/* Reads it: the daemon maps no page that a client writes. Returns whether all pages could be read. */
bool channels_read_account(const struct channels *channels, const struct channel *channel,
                           struct channel_account *ret_account);

/* The step has ended: writes the rolls of channels that have changed, and wakes those that sleep there. Frees the
 * pages of channels that are gone. */
void channels_settle(struct channels *channels);

/* Takes the pages that a predecessor made, of their records. A channel without pages ends. Returns 0 or -ENOMEM. */
int channels_inherit(struct channels *channels);

/* The next daemon has the channels by now: this one writes no roll any more. */
void channels_leave(struct channels *channels);

#endif
