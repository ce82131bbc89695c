/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/heir.h"

#include <string.h>

#include "daemon/core/lease.h"
#include "daemon/core/long_wait.h"
#include "daemon/core/parcel.h"
#include "daemon/core/pool.h"
#include "daemon/core/request.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/wait_queue.h"
#include "daemon/core/waiting.h"

int heir_add_parcel(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_parcel *kept = payload;
    struct block *block = heir_object(heir, kept->block, KEPT_BLOCK);
    struct session *sender = NULL;
    struct parcel *parcel;

    if (block == NULL || !block->shared || kept->takers == 0)
        return heir_refuse(heir, "a parcel is of a block that is not there");
    if (kept->lifetime_ns > PROTO_PARCEL_NS_MAX)
        return heir_refuse(heir, "a parcel may be there for too long");
    if (kept->deadline_ns == NS_FOREVER && (sender = heir_session(heir, kept->sender)) == NULL)
        return heir_refuse(heir, "a parcel is held by a session that is not there");
    if (sender != NULL && sender->tenant != block->segment->owner->tenant)
        return heir_refuse(heir, "a parcel is held by another user than its block's");
    struct parcel wanted = {
        .block = block,
        .takers = kept->takers,
        .sent_ns = kept->sent_ns,
        .lifetime_ns = kept->lifetime_ns,
        .deadline_ns = kept->deadline_ns < NS_FOREVER - heir->shell->away_ns
                           ? kept->deadline_ns + heir->shell->away_ns
                           : NS_FOREVER,
        .sender = kept->sender,
        .pid = kept->pid,
    };
    memcpy(wanted.token.bytes, kept->token, sizeof wanted.token.bytes);
    int r = parcel_restore(heir->core, &wanted, sender, &parcel);
    if (r == -EBADMSG)
        return heir_refuse(heir, "two parcels have one token");
    if (r == 0)
        heir_bind(heir, record, parcel, &parcel->record);
    return r;
}

/* Whether a request asks for what one may ask for. */
static bool asks_for_something(const struct kept_request *kept) {
    if (kept->size_bytes == 0 || kept->size_bytes > PROTO_SIZE_MAX || kept->least_bytes == 0 ||
        kept->least_bytes > kept->size_bytes || (kept->probes & ~PROTO_ACQUIRE_PROBES) != 0 ||
        (kept->no_reclaim != 0 && kept->idle_only != 0))
        return false;
    if (kept->n_segments == 0)
        return kept->segment_bytes == 0;
    return kept->n_segments <= PROTO_LEASES_MAX && kept->segment_bytes <= PROTO_SIZE_MAX / kept->n_segments &&
           kept->segment_bytes % SEGMENT_GRANULE == 0 &&
           kept->n_segments * kept->segment_bytes == kept->size_bytes &&
           kept->least_bytes == kept->size_bytes;
}

/* Whether a request without a pool, or with this one, can be in the state. */
static bool has_state(const struct kept_request *kept, const struct pool *pool) {
    if (pool == NULL && (kept->pool != 0 || kept->quota_item != -1))
        return false;
    switch (kept->state) {
    case REQUEST_WAITING:
        return pool != NULL && kept->quota_item == -1 &&
               (kept->queue == WAIT_QUEUE_ROOM || kept->queue == WAIT_QUEUE_QUOTA) &&
               (kept->n_segments == 0 || pool_has_rows(pool));
    case REQUEST_GRANTED:
        return pool != NULL && kept->quota_item == -1 && (kept->n_segments == 0 || pool_has_rows(pool));
    case REQUEST_REFUSED:
        return kept->error >= 1 && kept->error <= PROTO_E_MAX &&
               (pool != NULL || kept->error == PROTO_E_NO_POOL) && kept->quota_item >= -1 &&
               (kept->quota_item < (int)QUOTA_POOLS ||
                kept->quota_item == (int)quota_item_of_pool(kept->pool));
    default:
        return false;
    }
}

static int make_request(struct heir *heir, const struct kept_request *kept, struct request **ret_request) {
    struct session *session = heir_object(heir, kept->session, KEPT_SESSION);
    struct pool *pool = heir_pool(heir, kept->pool);
    struct core *core = heir->core;

    if (session == NULL || session->state != SESSION_ACTIVE)
        return heir_refuse(heir, "a request is of a session that is not there");
    if (!asks_for_something(kept))
        return heir_refuse(heir, "a request asks for nothing, or for too much");
    if (!has_state(kept, pool))
        return heir_refuse(heir, "a request is in no state");
    if (kept->number == 0 || kept->number > core->next_request_number)
        return heir_refuse(heir, "a request has a number that was never given");
    const struct proto_acquire acquire = {.size_bytes = kept->size_bytes, .least_bytes = kept->least_bytes};
    uint64_t last = core->next_request_number;
    int r = request_new(session, pool, kept->id, &acquire, kept->asked_ns, ret_request);
    core->next_request_number = last;
    return r;
}

/* Whether the session has the leases that the request was granted. */
static bool has_leases(const struct request *request) {
    const struct lease *lease = request->lease;

    for (unsigned n = request_n_leases(request); n > 0; n--, lease = session_next_lease(lease))
        if (lease == NULL || lease->session != request->session || !lease->unanswered ||
            lease->block->segment->pool != request->pool)
            return false;
    return true;
}

/* A request waits in its queue, or its answer is still to be sent. */
static int place_request(struct heir *heir, const struct kept_request *kept, struct request *request) {
    struct tenant *tenant = request->session->tenant;
    struct tenant_heap *own;

    if (kept->state == REQUEST_REFUSED) {
        request->state = REQUEST_REFUSED;
        request->error = kept->error;
    } else if (kept->state == REQUEST_GRANTED) {
        request->lease = heir_object(heir, kept->lease, KEPT_LEASE);
        if (!has_leases(request)) {
            request->lease = NULL;
            return heir_refuse(heir, "a request was granted a lease that is not there");
        }
        request->state = REQUEST_GRANTED;
    } else {
        int r = tenant_heap_get(tenant, request->pool, &own);
        if (r < 0)
            return r;
        charge_force(&request->charge, &tenant->quota, QUOTA_WAITING, 1);
        wait_queue_enter(request, own, kept->queue);
        long_wait_begin(request);
        return 0;
    }
    list_append(&heir->core->answered, &request->link);
    return 0;
}

static int add_request(struct heir *heir, const struct found_record *found) {
    const struct kept_request *kept = found->payload;
    struct request *request;

    int r = make_request(heir, kept, &request);
    if (r < 0)
        return r;
    heir_bind(heir, found->record, request, &request->record);
    request->number = kept->number;
    request->deadline_ns = kept->deadline_ns;
    request->n_segments = kept->n_segments;
    request->segment_bytes = kept->segment_bytes;
    request->probes = kept->probes;
    request->passes = kept->passes;
    request->quota_item = kept->quota_item;
    request->no_reclaim = kept->no_reclaim;
    request->idle_only = kept->idle_only;
    request->gave_back = kept->gave_back;
    request->waited = kept->waited;
    request->is_told = kept->is_told;
    return place_request(heir, kept, request);
}

/* They come in the order of their arrival. */
static uint64_t number_of(const void *payload) {
    return ((const struct kept_request *)payload)->number;
}

int heir_add_requests(struct heir *heir) {
    return heir_add_in_order(heir, KEPT_REQUEST, number_of, "two requests have one number", add_request);
}

/* --- answers that cannot be given --- */

/* Whether the answer would have to describe a segment to the session that cannot be described any more. */
static bool cannot_be_told(const struct request *request) {
    const struct lease *lease = request->lease;

    for (unsigned n = lease != NULL ? request_n_leases(request) : 0; n > 0;
         n--, lease = session_next_lease(lease))
        list_for_each_entry(const struct heap_range, range, &lease->block->ranges, user_link) {
            const struct segment *segment = range->span->user;
            if (segment->is_orphan && !session_has_mapped(request->session, segment))
                return true;
        }
    return false;
}

/* The request waits again, as if it had not been served. */
static void wait_again(struct request *request) {
    struct tenant *tenant = request->session->tenant;
    struct lease *lease = request->lease, *next;

    for (unsigned n = request_n_leases(request); n > 0; n--, lease = next) {
        next = session_next_lease(lease);
        lease->unanswered = false;
        lease_close(lease);
    }
    request->lease = NULL;
    request->state = REQUEST_WAITING;
    list_remove(&request->link);
    charge_force(&request->charge, &tenant->quota, QUOTA_WAITING, 1);
    wait_queue_enter(request, tenant_heap_find(tenant, request->pool), WAIT_QUEUE_ROOM);
    long_wait_begin(request);
    pool_mark_ready(request->pool);
}

void heir_take_back_untold(struct core *core) {
    list_for_each_entry_safe(struct request, request, &core->answered, link) {
        if (cannot_be_told(request))
            wait_again(request);
    }
}
