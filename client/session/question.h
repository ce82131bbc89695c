/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_QUESTION_H
#define CLIENT_SESSION_QUESTION_H
/*
 * A question: an acquire from the daemon, of one lease or of several whole segments. A question for many
 * segments is asked in parts, each of which is one request:
 *
 *     question_of_…() ──▶ question_ask() ──▶ exchange ──▶ question_take() ──▶ granted, an error
 *                            ▲                                 │
 *                            └──────────QUESTION_IS_PART───────┘
 *
 * The exchange of question.request is the caller's: a thread that waits makes it with question_exchange(), and
 * a caller that does not wait submits the request (submit.h). A question owns the request between
 * question_ask() and question_take(), and is one thread's at a time. Errors are GPUPOOL_E_…, with the error
 * text set.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/session/connection.h"
#include "client/session/lease.h"
#include "proto/proto.h"

/* The value of question_take() when further segments are to be asked for. */
#define QUESTION_IS_PART 1

struct question {
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

/* Makes a question for a lease, whose segment is opened when it has come. */
struct question question_of_lease(struct session *session, const struct proto_acquire *acquire);

/* Makes a question for leases on whole segments of a pool whose segments are movable: all of them, into
 * ret_grants, which is borrowed, or none. The segments are imported, not opened. That is one request, as far
 * as the protocol allows (PROTO_LEASES_MAX), and the number of descriptors that the process may have
 * (RLIMIT_NOFILE). acquire->count is not 0. */
struct question question_of_segments(struct session *session, const struct proto_acquire_segments *acquire,
                                     struct segment_grant *ret_grants);

/* Makes the request for what is not granted yet. 0 or NO_MEMORY. */
int question_ask(struct question *question);

/* Makes the exchange, and waits for it; answers the daemon's questions meanwhile, where no other thread does.
 * The caller holds no lock. Returns what question_take() takes. */
int question_exchange(struct question *question);

/* Takes what was granted, and makes it accessible. r: what connection_exchange() or connection_collect()
 * returned, or what ended the question otherwise.
 * Returns:
 * - 0: all is granted.
 * - QUESTION_IS_PART: there is more to ask for.
 * - an error: nothing is granted, and what had been went back. */
int question_take(struct question *question, int r);

/* Gives up, before or after the exchange: what the reply has granted goes back. r: as for question_take();
 * QUESTION_IS_UNSENT: the request was not sent. The next step is question_take() with an error. */
#define QUESTION_IS_UNSENT 1
void question_drop(struct question *question, int r);

/* Acquires a lease, or leases on segments, and waits: as question_of_lease() and question_of_segments(). */
int lease_acquire(struct session *session, const struct proto_acquire *acquire, struct grant *ret_grant);
int lease_acquire_segments(struct session *session, const struct proto_acquire_segments *acquire,
                           struct segment_grant *ret_grants);

#endif
