/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_REQUEST_H
#define DAEMON_CORE_REQUEST_H
/*
 * A request for a block, from its arrival until its answer is taken by the shell. Its session owns it.
 *
 *   WAITING (in a queue: wait_queue.h) --a block was found--> GRANTED (in core->answered, has the lease)
 *                                --cannot be, deadline--> REFUSED (in core->answered, has the error)
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "daemon/core/wait_queue.h"
#include "daemon/core/quota.h"
#include "proto/proto.h"

struct lease;
struct pool;
struct session;
struct tenant_heap;

enum request_state {
    REQUEST_WAITING,
    REQUEST_GRANTED,
    REQUEST_REFUSED,
};

struct request {
    struct session *session;
    struct pool *pool; /* NULL: the client named none that exists */
    uint64_t id;
    uint64_t number;      /* in order of arrival, over all that the core ever had */
    uint64_t size_bytes;  /* wanted; the pool grows by so much for it, where it has the room */
    uint64_t least_bytes; /* that serves, too; at most size_bytes. Waiting is for so much */
    uint64_t asked_ns, deadline_ns;
    enum request_state state;
    bool no_reclaim;          /* waits for growth only: refused when sessions would have to be asked */
    uint32_t probes;          /* PROTO_ACQUIRE_PROBES: of which refusals the client's user does not hear */
    bool gave_back;           /* its session need not be asked for memory for its sake */
    bool waited;              /* it could not be answered at once */
    struct lease *lease;      /* GRANTED */
    enum proto_error error;   /* REFUSED */
    struct charge charge;     /* one that waits, to the tenant; until it is answered */
    enum wait_queue_kind queue; /* WAITING: for what */
    struct tenant_heap *heap;   /* …and whose queue it stands in */
    unsigned passes;            /* later requests that were given what it could have used, see wait_queue.h */
    struct list overdue_link; /* in pool->overdue: those were too many */
    struct list growth_link;  /* in pool->for_growth while it waits, if it waits for growth only */
    int quota_item;           /* REFUSED for the tenant's quota: which; -1: not for that */
    struct list link;         /* in its queue, then in core->answered */
    struct list session_link;
};

/* Returns 0 or -ENOMEM. The request is WAITING and in no queue yet. pool: NULL where the client named none.
 */
int request_new(struct session *session, struct pool *pool, uint64_t id, const struct proto_acquire *acquire,
                uint64_t now_ns, struct request **ret_request);

/* Removes the request from wherever it stands. A granted lease stays with the session. */
void request_free(struct request *request);

/* The two ends of waiting: both put it in the queue for the shell. */
void request_grant(struct request *request, struct lease *lease);
void request_refuse(struct request *request, enum proto_error error);
/* The same, for the tenant's quota of an item: EXHAUSTED when waiting was of no use, LIMIT when it cannot be.
 */
void request_refuse_for_quota(struct request *request, enum proto_error error, unsigned item);

/* Whether it was refused, and its client's user does not hear of that: the client asks again, or does
 * without. It counts as a probe, and not as a failure. */
bool request_is_probe(const struct request *request);

/* Ends a wait that was in vain: EXHAUSTED, for the quota's sake where that held it up. */
void request_give_up(struct request *request);
/* The same for a request that waited until its deadline. */
void request_time_out(struct request *request);

#endif
