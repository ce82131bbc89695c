/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_ASKING_H
#define CLIENT_SESSION_ASKING_H
/*
 * An asking: an acquire from the daemon, of one lease or of several whole segments, in steps, so that a
 * thread can wait for the answer or leave. Each step but the last one has a request for the daemon:
 *
 *     asking_begin() ──ASKING_WAITS──▶ exchange ──▶ asking_answer() ──▶ 0, an error
 *                                         ▲               │
 *                                         └──ASKING_WAITS─┘
 *
 * The exchange of asking.request is the caller's: a thread that waits makes it with asking_exchange(), and a
 * caller that does not wait submits the request (submit.h). An asking owns the request between the steps, and
 * is one thread's at a time. It is used again for the next acquire. Errors are GPUPOOL_E_…, with the error
 * text set.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/session/connection.h"
#include "client/session/lease.h"
#include "proto/proto.h"

/* The value of a step that has a request for the daemon. */
#define ASKING_WAITS 1

struct asking {
    struct session *session; /* borrowed */
    struct request *request; /* to be exchanged; then its reply, or NULL where that failed */
    uint64_t deadline_ns;    /* of the exchange */
    bool is_of_segments;
    struct proto_acquire acquire; /* for one lease */
    struct grant grant;           /* the lease, when it was granted */
    /* for segments */
    struct proto_acquire_segments segments, part; /* all that are asked for; those of the present request */
    struct segment_grant *grants;                 /* borrowed: room for all of them */
    uint32_t n_granted;
    uint64_t end_ns; /* until when is waited for them */
};

/* Begins to acquire a lease, whose segment is opened when it has come. ASKING_WAITS or NO_MEMORY. */
int asking_begin(struct asking *asking, struct session *session, const struct proto_acquire *acquire);

/* Begins to acquire leases on whole segments of a pool whose segments are movable: all of them, into
 * ret_grants, which is borrowed, or none. The segments are imported, not opened. That is one request, as far
 * as the protocol allows (PROTO_LEASES_MAX), and the number of descriptors that the process may have
 * (RLIMIT_NOFILE). acquire->count is not 0. ASKING_WAITS or NO_MEMORY. */
int asking_begin_segments(struct asking *asking, struct session *session,
                          const struct proto_acquire_segments *acquire, struct segment_grant *ret_grants);

/* Goes on when the exchange has ended. r: what connection_exchange() or connection_collect() returned. 0: all
 * is granted. ASKING_WAITS: there is a further request. Errors: nothing is granted, and what had been went
 * back. */
int asking_answer(struct asking *asking, int r);

/* Gives up, before or after the exchange: what the reply has granted goes back. r: as for asking_answer();
 * ASKING_WAITS: the request was not sent. The next step is asking_answer() with an error. */
void asking_drop(struct asking *asking, int r);

/* Makes the exchange, and waits for it; answers the daemon's questions meanwhile, where no other thread does.
 * The caller holds no lock. Returns what asking_answer() takes. */
int asking_exchange(struct asking *asking);

/* Acquires a lease, or leases on segments, and waits: as asking_begin() and asking_begin_segments(). */
int lease_acquire(struct session *session, const struct proto_acquire *acquire, struct grant *ret_grant);
int lease_acquire_segments(struct session *session, const struct proto_acquire_segments *acquire,
                           struct segment_grant *ret_grants);

#endif
