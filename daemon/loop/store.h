/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_STORE_H
#define DAEMON_LOOP_STORE_H
/*
 * The store: descriptors that outlive the daemon. The service manager holds them (systemd, or gpupoold
 * --keeper), and passes them to the next daemon by name. $FDSTORE says how many it holds at most. Without the
 * variable there is no store: nothing is stored then, and all calls succeed.
 *
 * A name is a letter for the kind and a number in base 64, four characters at most: all names reach the next
 * daemon in one string of its environment, which the kernel limits to 128 KiB.
 *
 * The protocol has no answer: store_wait() tells that all was heard, not that all was stored. The loop does
 * not wait for the manager: once the notifier runs, it sends the store's messages.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

struct notifier;

/* The most that the daemon stores. With names of four characters and their colons, that is 120,000 bytes of the
 * 128 KiB. */
#define STORE_SLOTS     24000u
#define STORE_NAME_SIZE 5u
/* As long as systemd's own tools wait for a barrier. */
#define STORE_WAIT_NS (5 * NS_PER_S)

enum store_manager {
    STORE_HELD,   /* the manager has all that is stored */
    STORE_ADRIFT, /* it is gone. Names are given and taken back as ever, and nothing is sent */
    STORE_MOVING, /* another one is there, and gets all of it anew */
};

/* The first letter of a name. */
enum store_kind {
    STORE_LISTENER = 'L', /* found again by its path */
    STORE_ESTATE = 'E',
    STORE_SEGMENT = 'S',
    STORE_SOCKET = 'C',  /* of a session */
    STORE_PROCESS = 'D', /* its pidfd */
    STORE_PAGE = 'P',
    STORE_RECLAIM = 'R',
    STORE_BOARD = 'B',
    STORE_CHANNEL = 'H', /* a page of one */
};

struct store_inherited {
    char *name;
    int fd;
    bool is_taken;
};

struct store {
    struct notifier *notifier;         /* borrowed; sends once it was started */
    size_t limit, count;               /* of stored descriptors. limit 0: there is no store */
    size_t segments_limit, n_segments; /* among them: segments leave sessions room */
    struct store_inherited *inherited; /* by name, and by number where names are equal */
    size_t n_inherited;
    enum store_manager manager;
    bool is_private; /* the daemon is, so there is no store */
    bool complained; /* that no more can be stored */
    bool complained_of_segments;
    size_t next;                      /* where the search for a free slot begins */
    char (*leaving)[STORE_NAME_SIZE]; /* store_leave() */
    size_t n_leaving, leaving_room;
    bool is_let_go;          /* nothing but listeners is stored any more */
    char kinds[STORE_SLOTS]; /* enum store_kind of what has the slot; 0: it is free; or see store.c */
    size_t n_fading;
};

/* Takes what the service manager passed. is_private: the manager is that of another program, so there is no
 * store. Returns 0 or a negative errno. */
int store_open(struct store *store, struct notifier *notifier, bool is_private);

/* Closes what was inherited and not taken, without a word to the manager. Accepts a zeroed store. */
void store_close(struct store *store);

/* store: NULL: there is none. */
static inline bool store_is_there(const struct store *store) {
    return store != NULL && store->limit > 0;
}

/* How many segments may be stored; before the first call, as many as anything else. */
void store_bound_segments(struct store *store, size_t limit);

/* Takes an inherited descriptor out by its name: of several with that name, the one with the lowest number.
 * Returns it, or -1: it is missing, and nothing that is stored from now on has its place. Taken descriptors close on
 * exec: sd_listen_fds() saw to that. */
int store_take(struct store *store, const char *name);

/* Takes the listening Unix socket of this type and path out, which an earlier daemon stored. The socket need
 * not be the one that the path leads to now. Returns the descriptor and the name that it is stored under, or
 * -1. store: NULL: there is none. */
int store_take_listener(struct store *store, const char *path, int type, char ret_name[STORE_NAME_SIZE]);

/* Takes the only inherited descriptor of a kind out. Returns it and its name, or -1. */
int store_take_kind(struct store *store, enum store_kind kind, char ret_name[STORE_NAME_SIZE]);

/* Stores a descriptor, which stays the caller's. Returns the name, "" where it is not stored: then the log says
 * why, unless there is no store. store: NULL: there is none. */
void store_put(struct store *store, enum store_kind kind, int fd, char ret_name[STORE_NAME_SIZE]);

/* Removes a descriptor from the store. name "": does nothing. */
void store_remove(struct store *store, const char *name);

/* Removes a descriptor with the next store_remove_leaving(): when no record names it any more. Without memory for
 * that, it stays until the daemon restarts. The name is "" then; one that is "" already does nothing. */
void store_leave(struct store *store, char *name);
void store_remove_leaving(struct store *store);

/* Removes everything but the listening sockets, and stores nothing else from now on. Returns how many that were. */
size_t store_let_go(struct store *store);

/* Closes and removes all that was inherited and not taken: an earlier configuration's, or an unknown version's.
 */
void store_settle(struct store *store);

/* The manager is gone. */
void store_lose_manager(struct store *store);

/* There is another manager, which the notifier sends to, and which holds up to `limit`. It has nothing yet:
 * the caller sends it each descriptor that has a name, and says when it has all of them. */
void store_begin_move(struct store *store, size_t limit);

/* The slot that a name has; STORE_SLOTS: it is no name of this daemon's. */
size_t store_slot(const char *name);

/* The name of what has the slot. Returns false where it is free. */
bool store_name(const struct store *store, size_t slot, char ret_name[STORE_NAME_SIZE]);

/* Writes the message that stores a descriptor of this name. */
#define STORE_MESSAGE_SIZE 64u
void store_write_message(const char *name, char text[STORE_MESSAGE_SIZE]);

/* The other manager has all of them. */
void store_note_held(struct store *store);

/* Before the notifier runs: waits until the manager has read all messages. Returns 0, -ETIMEDOUT or another
 * negative errno. */
int store_wait(const struct store *store, uint64_t timeout_ns);

#endif
