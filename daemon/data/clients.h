/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_CLIENTS_H
#define DAEMON_DATA_CLIENTS_H
/*
 * All clients of the data socket, and what serving them takes. The top of this folder: it calls serve.h,
 * which calls requests.h, which calls client.h, which calls connection.h; those see struct clients alone.
 *
 * Invariants: n_clients is the length of all, n_greeting that of greeting. n_users_greeting counts the users
 * who have clients in greeting.
 */
#include <stdbool.h>
#include <uv.h>

#include "base/list.h"
#include "daemon/data/alive.h"
#include "daemon/data/board.h"
#include "daemon/data/channels.h"
#include "daemon/data/lingering.h"
#include "daemon/data/session_log.h"

struct closer;
struct core;
struct desk;
struct identity;
struct listener;
struct machine;
struct scheduler;
struct store;
struct watcher;

/* All borrowed. */
struct clients_terms {
    uv_loop_t *loop;
    struct scheduler *scheduler;
    struct closer *closer; /* of sockets */
    struct core *core;
    struct watcher *watcher;
    struct listener *listener; /* complains where no descriptors are left */
    struct lingering *lingering;
    struct desk *desk;
    struct store *store;
    const struct machine *machine;
    const struct identity *identity;
    bool private; /* the daemon is a program's own: the log has no lines of sessions */
};

struct clients {
    struct clients_terms terms;
    struct list all;      /* struct client.link */
    struct list greeting; /* struct client.greeting_link: have not said HELLO, by arrival */
    struct boards boards;
    struct channels channels;
    struct alive alive;
    unsigned n_clients, n_greeting, n_users_greeting;
    unsigned n_complaints; /* of broken packets, in the log since the last clients_housekeep() */
    bool served;           /* a client has had a session */
    bool stopping;         /* no client gets a session any more */
    bool stall_reported;   /* that the kernel takes no replies, until it does */
    struct session_log log;
};

void clients_init(struct clients *clients, const struct clients_terms *terms);

/* The next daemon has the clients by now: what this one writes to their pages from now on, they do not see. */
void clients_leave(struct clients *clients);

/* Ends all clients, whatever is still leased, and all boards: for the daemon's own end. */
void clients_discard(struct clients *clients);

/* Takes a socket that was accepted in a scope. Closes it when it cannot be served. */
void clients_accept(struct clients *clients, int fd, uint32_t scope);

/* Ends a client that has said nothing for long, where there are too many of those to accept another. Returns
 * whether it did: closing a socket costs about as much as a request, so that is a turn. */
bool clients_make_room(struct clients *clients);

/* Ends clients that say nothing, tries refused calls again, ends boards of users who are gone, and begins a
 * new period of the log. To be called every few seconds. */
void clients_housekeep(struct clients *clients);

/* Whether a client has a session, or may be about to have one. */
bool clients_are_there(const struct clients *clients);

#endif
