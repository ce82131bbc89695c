/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_LINGERING_H
#define DAEMON_DATA_LINGERING_H
/*
 * Lingering sockets: the daemon's ends of connections that are over, while the client has not read all that
 * was sent to it. The kernel keeps such messages, with the descriptors in them, even after the daemon has
 * closed its end, and no longer says whose they are. So the daemon keeps its end, in both directions shut
 * down, and charges the user (daemon/core/undelivered.h) until SIOCOUTQ says that nothing is left: the client
 * has read everything, or closed its socket.
 *
 * Looked at every LINGERING_LOOK_MS, and those of one user when that user's next session would be refused.
 * The loop's alone.
 */
#include <stdbool.h>
#include <uv.h>

#include "base/list.h"
#include "daemon/core/tenant_id.h"
#include "daemon/data/outbox.h"

struct closer;
struct core;

#define LINGERING_LOOK_MS 100
/* Sockets that one look asks about: some 50 us. The next look goes on with the others. */
#define LINGERING_LOOKS 256u
/* Sockets of a user that are asked about before that user is refused, which a user can have with each
 * connection. Where clients read their last replies, most of these few are over. */
#define LINGERING_LOOKS_BEFORE_REFUSAL 8u
/* The descriptors that a user's lingering sockets may take, of those that the daemon may have: a 16th. Each
 * takes itself and those in messages (segments', a page's, a board's, the one for idle memory). Where that is
 * few, up to LINGERING_MIN sockets may take a 16th by themselves. */
#define LINGERING_SHARE           16u
#define LINGERING_DESCRIPTORS_PER (4u + OUTBOX_FDS_MAX)
#define LINGERING_MIN             32u

struct lingering {
    struct core *core;
    struct closer *closer;
    uv_timer_t timer; /* active while there are sockets */
    bool started;
    struct list sockets; /* struct lingering_socket.link, the one looked at last at the end */
    unsigned n_sockets;
};

/* Nothing lingers. core and closer are borrowed. Sets the core's limit by RLIMIT_NOFILE. */
void lingering_init(struct lingering *lingering, struct core *core, struct closer *closer);

/* From now on sockets may linger; before, they are closed at once. */
void lingering_start(struct lingering *lingering, uv_loop_t *loop);

/* Closes all of them; from now on sockets are closed at once. The timer is closed with the loop's handles. */
void lingering_stop(struct lingering *lingering);

/* Takes the socket of a connection that is over; -1: nothing. Without memory, or where nothing is left in it,
 * closes it. */
void lingering_leave(struct lingering *lingering, int fd, struct tenant_id id);

/* When the connection ended whose socket lingers for longest; NS_FOREVER: none lingers. A client that reads
 * its last reply has a socket here for a moment, too. */
uint64_t lingering_oldest_ns(const struct lingering *lingering);

/* Looks at a few sockets of the user. Returns how many were over. */
unsigned lingering_look(struct lingering *lingering, struct tenant_id id);

/* Whether the user has fewer lingering sockets than another session requires. Looks before it says no. */
bool lingering_has_room(struct lingering *lingering, struct tenant_id id);

/* Whether the user has so many that a connection without a session gets no answer: refusals linger, too.
 * Looks before it says yes. */
bool lingering_is_crowded(struct lingering *lingering, struct tenant_id id);

#endif
