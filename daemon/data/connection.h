/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_CONNECTION_H
#define DAEMON_DATA_CONNECTION_H
/*
 * A connection: one client's data socket, and after that what is known of its process until its memory is
 * safe.
 *
 *   GREETING --HELLO--> OPEN --BYE--> CLOSING (the last reply is on its way) --> gone
 *   GREETING --anything else (answered by an ERROR)--> gone
 *   OPEN --end of file, error, exit, and it was never given a segment--> gone
 *   OPEN --end of file, error, exit--> LOST (session in quarantine) --safe, or forced--> gone
 *
 * What is safe is for the rule of daemon/core/death.h to say; the reaper finds out the facts. A lost
 * connection keeps its socket where its process ended and a child still has the other end.
 *
 * What its socket and its process have to say is noted, and dealt with when it is its turn
 * (daemon/loop/scheduler.h): one question, or a few messages that nobody waits for an answer to. Replies that
 * the client does not read are kept (daemon/data/outbox.h); while some are kept nothing more is read, and
 * beyond the maximum the connection ends.
 *
 * A connection costs little before it says HELLO: only then are its process's pidfd, name and groups asked
 * for, which the kernel keeps for us since connect() (where it does not, the pidfd is taken at once).
 *
 * A client that wants to be asked for idle memory gets a timerfd, which the daemon sets off. To the client it
 * reads as an eventfd would. It is none because all holders of a descriptor share its flags: a client could
 * take O_NONBLOCK away from an eventfd and fill it up, and the daemon's next write would block the loop.
 * Setting a timer never blocks, and a client that sets it harms itself alone.
 */
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/list.h"
#include "daemon/data/outbox.h"
#include "daemon/data/page.h"
#include "daemon/core/core.h"
#include "daemon/death/reaper.h"
#include "daemon/loop/scheduler.h"

struct daemon;

/* Messages without an answer that are dealt with in one turn: a client that gives back what it has in parts
 * sends many at once, and each costs a fraction of a question. */
#define CONNECTION_ONE_WAY_PER_TURN 8u
/* How often the loop may be told of a connection that waits for its turn before it stops asking: to be told
 * costs each time, not to be told costs once. Where many wait it is not to be told twice: all of them would
 * be reported with each turn. */
#define CONNECTION_REPORTS_MAX 4u
#define CONNECTION_CROWD       8u
/* Connections that may be about to say HELLO at once. */
#define CONNECTION_GREETING_MAX 256u
/* Packets of a process that has ended which are still dealt with. Its farewell is among them if it said one;
 * a child that has the socket may go on writing. */
#define CONNECTION_LAST_PACKETS_MAX 4352u

enum connection_state {
    CONNECTION_GREETING,
    CONNECTION_OPEN,
    CONNECTION_CLOSING,
    CONNECTION_LOST,
};

struct connection {
    struct daemon *daemon;
    enum connection_state state;
    struct peer peer;
    struct session *session; /* OPEN and LOST */
    int fd, pidfd;
    int reclaim_fd;   /* OPEN: asks the client for idle memory; -1: it did not want that */
    struct page page; /* until the session is gone */
    uv_poll_t poll, process_poll;
    unsigned handles; /* uv handles that are not closed yet */
    int watching;     /* the poll's mask */
    struct turn turn;
    bool parked;       /* the loop does not look at the socket: it waits for its turn until it is empty */
    bool hung_up;      /* the socket said so */
    bool process_over; /* the pidfd said so */
    bool freeing;
    unsigned n_reports; /* of the socket, since it began to wait for its turn */
    unsigned n_last;    /* packets that were read since its process ended */
    struct outbox outbox;
    uint64_t accepted_ns;
    bool no_gpu;      /* the client said that its process uses no GPU */
    bool device_lent; /* it was given device memory all the same */
    struct reaping reaping;
    char reason[DEATH_TEXT_SIZE]; /* LOST: why the session's memory is held; the session refers to it */
    struct list link;             /* in daemon->connections */
    struct list greeting_link;    /* GREETING: in daemon->greeting */
};

/* Ends a connection that has said nothing for long, where too many have for another to come. Returns whether
 * it did: closing a socket costs about as much as a question, so that is a turn. */
bool connection_make_room(struct daemon *daemon);

/* Takes an accepted socket. Closes it when it cannot be served. */
void connection_accept(struct daemon *daemon, int fd);

/* Sends the core's answer to an acquire. */
void connection_send_answer(struct connection *connection, const struct answer *answer);

/* Asks the client for what it keeps idle. */
void connection_ask_reclaim(struct connection *connection);

/* Sends what a stalled connection keeps, where the kernel takes it by now. May end the connection. */
void connection_retry(struct connection *connection);

/* Ends a connection that has not said HELLO. */
void connection_drop_unready(struct connection *connection);

/* Sends a message, or keeps it. fd goes along, -1: none; borrowed until it has gone. Returns 0, or a negative
 * errno that ends the connection. */
int connection_send(struct connection *connection, const struct proto_message *message, int fd);

/* Ends the session because of a packet that may not come, or not now. Tells the client by an ERROR with the
 * packet's request id (0: it has none) and the log, a few times between two rounds of housekeeping. reason
 * names the field. Returns -EPROTO for the caller to return, which ends the connection. */
int connection_reject(struct connection *connection, uint64_t request, enum proto_error error,
                      const char *reason);

/* For daemon/data/requests.c. Asks the kernel who the process is: returns 0, or a negative errno with which
 * it cannot be served (logged where an operator can do something about it). */
int connection_identify(struct connection *connection);
/* It has said HELLO and has a session. */
void connection_greeted(struct connection *connection);
/* It is being told of a segment for the first time. */
void connection_lend_segment(struct connection *connection, bool is_device);

/* By which rule the session's memory is judged once it is lost, or is now; and whether the driver lists its
 * process as a client of MPS. */
enum death_rule connection_death_rule(const struct connection *connection);
bool connection_under_mps(const struct connection *connection);

/* Gives a lost session's memory back although it is not known to be safe: what an operator decided. */
void connection_force(struct connection *connection);

/* Frees everything at once, whatever is still leased: for the daemon's own end. */
void connection_discard(struct connection *connection);

#endif
