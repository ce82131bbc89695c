/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_SESSION_H
#define CLIENT_SESSION_SESSION_H
/*
 * A session: all that this process knows of one connection to the daemon, and all that it has mapped through
 * that connection. This is the whole wire client: it can lease, release, leave fences and list pools, and it
 * knows no cache. A client owns one session.
 *
 * A session is made without a connection, and opened. From then on the daemon has it until the farewell, or
 * until this process ends. A forked child only forgets it.
 *
 * Locks: the closing's, the rows', the fences', the page's and the board's, the connection's, then the
 * segments'. Those of devices and pools are leaves.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/hex.h"
#include "client/session/board.h"
#include "client/session/connection.h"
#include "client/session/device.h"
#include "client/session/fence.h"
#include "client/session/fork_guard.h"
#include "client/session/held.h"
#include "client/session/page.h"
#include "client/session/pool.h"
#include "client/session/row.h"
#include "client/session/segment.h"

/* The closing of segments that the daemon has named: one thread at a time. */
struct closing {
    pthread_mutex_t lock;
    struct request *closed; /* a CLOSED that could not be sent yet; NULL: none */
};

struct session {
    struct fork_guard guard;
    struct connection connection;
    struct segments segments;
    struct rows rows;
    struct devices devices;
    struct pools pools;
    struct closing closing;
    struct holdings held;
    struct page page; /* the counters' and the fences' */
    struct fences fences;
    struct board board;
    struct fences board_fences;      /* in this session's slot on the board */
    uint64_t id;                     /* in the daemon's stats */
    char daemon_identity[HEX_SIZE(PROTO_IDENTITY_BYTES)]; /* "": the daemon does not tell it */
    char admin_path[PROTO_PATH_SIZE]; /* of its admin socket, as the daemon sees it; "": it did not tell */
};

/* Makes a session without a connection. answer_timeout_ns: how long the daemon may take over an answer. */
void session_init(struct session *session, uint64_t answer_timeout_ns);

/* Frees a session that was made, whether it was opened or not. No call is under way. */
void session_deinit(struct session *session);

/* Frees the bookkeeping in a forked child, where the descriptor, the mappings and the locks are the parent's.
 */
void session_forget(struct session *session);

/* Connects and greets the daemon. reopens: where the daemon ends before it answers, and another one listens, that one
 * is greeted. wants_reclaim: the daemon may ask for idle memory; *ret_reclaim_fd is then readable when it does, and -1
 * where it has no descriptor for that. 0, CONNECT, TIMED_OUT, INVALID (path),
 * VERSION, or what the daemon says. */
int session_open(struct session *session, const char *path, const char *name, uint64_t deadline_ns,
                 bool wants_reclaim, bool reopens, int *ret_reclaim_fd);

/* Closes segments and fences. is_idle: the devices have done all work of this process. If they have, and the
 * driver closed everything, the daemon is told by BYE that nothing of this process can touch the memory any
 * more. Without BYE the daemon sees the end of file and waits for the end of the process. */
void session_close(struct session *session, bool is_idle);

/* As session_close() at the end of the process, whose other threads may be in any call: frees nothing, and
 * host memory becomes the process's own (segments_leave()). Nothing of the process's is at work on a device.
 */
void session_leave(struct session *session);

#endif
