/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONNECTION_H
#define DAEMON_CONNECTION_H
/*
 * A connection: one client's data socket, and after that what is known of its process until its memory is
 * safe.
 *
 *   GREETING --HELLO--> OPEN --BYE--> CLOSING (the last reply is on its way) --> gone
 *   GREETING --anything else--> gone
 *   OPEN --end of file, error, exit, and it was never given a segment--> gone
 *   OPEN --end of file, error, exit--> LOST (session in quarantine) --safe, or forced--> gone
 *
 * What is safe is for the rule of daemon/pool/death.h to say; the reaper finds out the facts. A lost
 * connection keeps its socket where its process ended and a child still has the other end.
 *
 * It reads a bounded number of packets a turn and writes at once where it can. Replies that the client does
 * not read are kept, up to CONNECTION_QUEUE_MAX; while some are kept nothing more is read, and beyond the
 * maximum the connection ends. After a message with a segment's descriptor nothing is sent until the client
 * says OPENED.
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
#include "daemon/page.h"
#include "daemon/pool/core.h"
#include "daemon/reaper.h"

struct daemon;

/* One turn's packets of one client: a few round trips' worth, so that a flood of one delays others by little.
 */
#define CONNECTION_PACKETS_PER_TURN 16u
/* How long a client in which a second packet was looked for in vain is read packet by packet: the look costs
 * it a system call before its answer, and one that has begun to send many loses little. */
#define CONNECTION_SINGLE_TURNS 64u
/* Kept replies: what all threads of a large process may be waiting for at once. */
#define CONNECTION_QUEUE_MAX 4352u

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
    unsigned handles;  /* uv handles that are not closed yet */
    int watching;      /* the poll's mask */
    bool process_over; /* the pidfd said so */
    bool freeing;
    bool stalled; /* the kernel takes no reply for now, for a reason that the socket does not tell of */
    struct list replies; /* struct reply.link, kept for a client that does not read */
    unsigned n_replies;
    /* How many packets are looked for a turn. A client that waits for each answer has just one, and looking
     * for a second in vain would cost it a system call a request; one that has many under way is read faster
     * and faster. */
    unsigned packets_a_turn;
    unsigned single_turns;    /* turns of one packet before it is tried again whether there are more */
    uint64_t awaited_segment; /* its descriptor was sent, OPENED has not come; 0: none */
    uint64_t accepted_ns;
    bool no_gpu;      /* the client said that its process uses no GPU */
    bool device_lent; /* it was given device memory all the same */
    struct reaping reaping;
    char reason[DEATH_TEXT_SIZE]; /* LOST: why the session's memory is held; the session refers to it */
    struct list link;             /* in daemon->connections */
};

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

/* By which rule the session's memory is judged once it is lost, or is now; and whether the driver lists its
 * process as a client of MPS. */
enum death_rule connection_death_rule(const struct connection *connection);
bool connection_under_mps(const struct connection *connection);

/* Gives a lost session's memory back although it is not known to be safe: what an operator decided. */
void connection_force(struct connection *connection);

/* Frees everything at once, whatever is still leased: for the daemon's own end. */
void connection_discard(struct connection *connection);

#endif
