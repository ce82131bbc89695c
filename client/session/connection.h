/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_CONNECTION_H
#define CLIENT_SESSION_CONNECTION_H
/*
 * The connection to the daemon: one SOCK_SEQPACKET socket over which any number of threads have requests
 * under way. A client owns one connection; the connection owns the socket and the request objects.
 *
 * There is no thread that reads. Of the threads that wait for a reply, one at a time is the reader: it takes
 * packets from the socket, hands replies to the requests that they belong to, and when it has its own it
 * passes the role on. The reader's work for others is short: it enters segment descriptions in order of
 * arrival and confirms descriptors; it never maps anything.
 *
 *     request:  fresh ──exchange──▶ WAITING ──reply──▶ its caller's, until request_recycle ──▶ spare
 *                                    │   └──timeout──▶ ABANDONED ──late reply──▶ spare
 *                                    └──timeout──▶ KEPT: WAITING until its reply comes, and its caller goes
 * on
 *
 * A request for which no thread waits is *submitted* (submit.h), and has its place in the same lists. When
 * its reply comes, or it fails, it is put into `completed`, and the thread that completes such requests is
 * woken.
 *
 * A request whose caller gave up stays known until its reply comes, so that a late reply spoils nothing. A
 * table in reader.c says for each operation what becomes of it: a lease is released, a parcel is revoked,
 * segments to close are noted. Where the caller's own state depends on the reply (PAGE, BOARD, SPLIT, a
 * RELEASE of a part), the caller keeps the request, and takes the reply later.
 *
 * Messages leave through the outbox (outbox.h), in one order for all threads. A thread waits until its message
 * has left, or, with a request, for the reply. It sends what other threads left there meanwhile. A message that
 * is still in the outbox when its caller gives up is withdrawn: the daemon never sees it. A MERGE stays.
 *
 * The connection is alive until it breaks, once and for good: end of file, or something that does not check
 * out. Then it is shut down (the daemon sees that at once) and every call, those under way and those to come,
 * returns the error it broke with. The descriptor is closed with the object, so that no thread can meet a
 * stranger under its number.
 *
 * A daemon that ends may be followed by another one that goes on with the connection (alive.h). Deadlines for answers
 * are put off meanwhile.
 *
 * Lock order: connection, then segments; connection, then outbox.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "client/session/alive.h"
#include "client/session/error.h"
#include "client/session/outbox.h"
#include "client/session/segment.h"
#include "proto/proto.h"

struct connection;

/* A lease on a whole segment. */
struct segment_grant {
    uint64_t lease, generation;
    struct segment *segment; /* the session's */
};

struct request {
    struct connection *connection;
    struct list link; /* in waiting, kept, completed, abandoned or spare */
    uint64_t id;
    enum proto_operation operation;
    bool done;   /* the reply is in message */
    bool asleep; /* its thread waits on wake */
    bool is_sent;   /* or in the outbox: the daemon reads it, unless it is withdrawn */
    uint64_t place; /* in the outbox */
    bool is_kept; /* its caller goes on with it after a timeout */
    /* submit.h */
    bool is_submitted;
    bool is_cancelled; /* where it is not sent yet, a CANCEL is to follow it */
    int error;         /* a negative errno: why it failed; 0: it has a reply, or the connection broke */
    uint64_t deadline_ns;
    void *owner; /* the submitter's */
    pthread_cond_t wake;
    struct segment *segment; /* of a LEASE that has come */
    struct segment_grant *grants; /* of the LEASES that have come; n_wanted in all. The caller's array */
    unsigned n_grants, n_wanted;
    int fd;             /* of a HELLO_REPLY, PAGE or BOARD that has come, for the caller to take; -1: none;
                           FD_LOST */
    bool has_lost_fd;   /* a descriptor of its reply did not arrive */
    struct list spares; /* struct segment.link: memory for the segments that a LEASE or LEASES may describe,
                           so that the reader need not allocate */
    struct proto_message message; /* what to send, then the reply */
    uint8_t packet[PROTO_PACKET_MAX];
};

/* The daemon's questions for idle memory, in a client that has no thread to answer them. A thread that waits
 * long looks at them, too. */
struct connection_questions {
    int fd; /* borrowed; readable when the daemon asks; -1: no thread looks */
    /* Answers. The thread holds no lock. Returns whether it looks again in the same exchange. */
    bool (*answer)(void *owner);
    void *owner;
};

struct connection {
    int fd;
    struct outbox outbox;
    struct connection_questions questions; /* set before the second thread comes */
    struct segments *segments; /* borrowed */
    uint64_t answer_timeout_ns;
    pthread_mutex_t lock;
    struct list waiting, abandoned, spare;
    struct list kept; /* requests whose reply came while no thread waited for it, and whose caller takes it */
    struct list completed;          /* submitted requests that are to be collected */
    unsigned n_submitted;           /* in waiting */
    uint64_t submitted_deadline_ns; /* no deadline of these is before */
    int wake_fd; /* an eventfd, borrowed: written for the thread that completes them; -1: there is none */
    _Atomic uint64_t told;  /* one-way messages that were sent, or are in the outbox */
    _Atomic uint64_t heard; /* of these, the daemon had read so many by an answer */
    uint64_t last_id;
    _Atomic bool is_mute; /* a request was not answered in time, and nothing has come since */
    bool reading; /* some thread is the reader */
    bool is_greeted; /* the daemon has answered HELLO: the program may have buffers */
    uint16_t version; /* of the wire, as the daemon chose it; 0: it has not answered HELLO */
    struct alive alive;
    int broken;   /* 0 or the GPUPOOL_E_… that it broke with */
    char broken_text[ERROR_TEXT_SIZE];
    /* the reader's */
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message, notice;
};

/* Makes a connection without a socket: every call on it says DISCONNECTED until connection_open. */
void connection_init(struct connection *connection, struct segments *segments, uint64_t answer_timeout_ns);

/* Closes a connection that no daemon has greeted, for another connection_open(). */
void connection_reset(struct connection *connection);

/* Closes the socket and frees the requests. No call may be under way. */
void connection_deinit(struct connection *connection);

/* As connection_deinit in a forked child: frees memory, and leaves the descriptor (which may be somebody
 * else's by now) and the locks (which a thread of the parent may have held) alone. */
void connection_forget(struct connection *connection);

/* Connects to the daemon's socket. 0, CONNECT, TIMED_OUT, INVALID (path). */
int connection_open(struct connection *connection, const char *path, uint64_t deadline_ns);

/* A request object for an operation, to be filled in (message's body). NULL, with the error text set, where
 * there is no memory. */
struct request *connection_request(struct connection *connection, enum proto_operation operation);

/* As connection_request(), for an ACQUIRE_SEGMENTS of so many segments. The reply's leases are put into
 * grants, which is borrowed until the exchange is over. */
struct request *connection_request_segments(struct connection *connection, struct segment_grant *grants,
                                            unsigned count);

/* Sends a request and waits for its reply. On success (*request)->message is the reply, and the caller
 * recycles the request; on failure the request is gone and *request NULL. An ERROR reply is a failure.
 * Returns 0, the daemon's error, DISCONNECTED, PROTOCOL, TIMED_OUT. */
int connection_exchange(struct connection *connection, struct request **request, uint64_t deadline_ns);

/* As connection_exchange(), for an exchange that may last long, of a thread that holds no lock: it answers
 * the daemon's questions meanwhile, if no other thread does (struct connection_questions). */
int connection_exchange_watching(struct connection *connection, struct request **request,
                                 uint64_t deadline_ns);

/* Enters a request that connection_exchange…() is to send next, so that connection_cancel() finds it from now
 * on. Returns its id. */
uint64_t connection_announce(struct request *request);

/* As connection_exchange(), for a caller that goes on with the request when no reply came in time: after
 * TIMED_OUT the request is still the caller's, who calls connection_go_on() or connection_let_go();
 * (*request)->is_sent says whether the daemon will read it. The connection frees it at its end. */
int connection_exchange_kept(struct connection *connection, struct request **request, uint64_t deadline_ns);

/* Waits again for the reply of a request that is kept, and sends it if that failed before: as
 * connection_exchange_kept(). With a deadline that has passed it takes what has come. */
int connection_go_on(struct connection *connection, struct request **request, uint64_t deadline_ns);

/* Sends what is in the outbox, and reads what has come for requests that were abandoned, so that it is undone
 * also where no thread has a request under way. Waits for nothing. */
void connection_hear_late(struct connection *connection);

/* Abandons a request that is kept. Accepts NULL. */
void connection_let_go(struct request **request);

/* Sends a one-way message.
 * Returns:
 * - 0: it was sent. It does not mean that the daemon did what the message says.
 * - DISCONNECTED, TIMED_OUT, NO_MEMORY, or the error that the connection broke with: it was not sent, and will
 *   not be. Where the daemon has ended the session, that is the error that it gave as the reason. */
int connection_tell(struct connection *connection, const struct proto_message *message, uint64_t deadline_ns);

/* Puts a one-way message into the outbox, behind all that other threads put there before. Sends nothing and
 * waits for nothing, so it may be called under any lock. The caller calls connection_send_rest() when it has
 * left its locks. False: there is no room, or the connection broke. */
bool connection_put(struct connection *connection, const struct proto_message *message);

/* Sends what is in the outbox, as far as the socket takes it at once. */
void connection_send_rest(struct connection *connection);

/* How many one-way messages the daemon may not have read yet: no exchange that began after them has ended. */
uint64_t connection_unheard(struct connection *connection);

/* Asks for what comes as a descriptor, by an operation without a body, or goes on with *kept (NULL: it is
 * new). what: for texts, such as "the page …". 0: *ret_reply, with its descriptor in fd. Else *ret_may_retry
 * says whether a later call may have it: no answer came in time, or this process had no descriptor free. */
int connection_ask_descriptor(struct connection *connection, enum proto_operation operation,
                              struct request **kept, const char *what, uint64_t deadline_ns,
                              struct request **ret_reply, bool *ret_may_retry);

/* Gives a request object back. Accepts NULL. */
void request_recycle(struct request *request);

static inline void request_recyclep(struct request **request) {
    request_recycle(*request);
}

/* --- for the parts of the connection (reader.h, submit.h) --- */

/* Enters a request into those that wait, under a new id. The connection is locked, and not broken. */
void connection_enlist_locked(struct request *request);

/* Sends a request that was entered, or leaves it in the outbox. Returns 0 or a negative errno. */
int connection_send(struct request *request, uint64_t deadline_ns);

/* Ends an exchange, as connection_exchange() does. r: a negative errno, where no reply came for another
 * reason than that the connection broke. The connection is locked; unlocks it. */
int connection_finish_locked(struct request **request, int r);

/* As request_recycle() of a request. The connection is locked. */
void request_recycle_locked(struct request *request);

/* Breaks the connection with an error and its text, unless it is broken already. */
void connection_break(struct connection *connection, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Breaks the connection: what the daemon sent does not check out. Returns PROTOCOL (or what it broke with
 * before). */
int connection_refuse(struct connection *connection, const char *reason);

/* The deadline of a request over which the daemon may take timeout_ns, and an answer's time more. If the
 * thread is in a call that has a timeout, it is not after the end of that call (call_time.h); but a daemon
 * that has answered all that it was asked gets CALL_GRACE_NS in any case. */
uint64_t connection_deadline_ns(const struct connection *connection, uint64_t timeout_ns);

/* Whether the socket is connected, which tells of an end that no call has met yet. Makes one system call. */
bool connection_is_up(const struct connection *connection);

/* The daemon has closed its end: reads what it said before, so that the connection breaks with the reason
 * that it gave. Returns the error that the connection broke with, its text set; 0: another thread is reading.
 */
int connection_hear_end(struct connection *connection);

/* DISCONNECTED, its text set: of a greeted connection whose end another thread is just reading. */
int connection_report_end(void);

enum connection_state {
    CONNECTION_THERE,
    CONNECTION_AWAY, /* the daemon has ended, and the socket is there for the next one (alive.h) */
    CONNECTION_LOST,
};

/* How the connection is at this moment. Reads what has come, where that may be news of the daemon; waits for nothing.
 * Leaves the thread's error text as it is. */
enum connection_state connection_state(struct connection *connection);

/* Whether the connection still lives: 0, or the error it broke with and its text. */
int connection_check(struct connection *connection);

#endif
