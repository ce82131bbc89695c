/* SPDX-License-Identifier: Apache-2.0 */
/* The core's entry points for requests and leases: what a client asks for in messages. */
#include "daemon/core/core.h"

#include <assert.h>

#include "daemon/core/closing.h"
#include "daemon/core/collect.h"
#include "daemon/core/fence.h"
#include "daemon/core/kept.h"
#include "daemon/core/lease.h"
#include "daemon/core/name_wait.h"
#include "daemon/core/parcel.h"
#include "daemon/core/pool.h"
#include "daemon/core/question.h"
#include "daemon/core/recorder.h"
#include "daemon/core/request.h"
#include "daemon/core/row.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/waiting.h"

/* segments: those that the request asks for, together as many bytes as acquire says; NULL: it asks for one
 * block. */
static int acquire_either(struct session *session, uint64_t request_id, const struct proto_acquire *acquire,
                          const struct proto_acquire_segments *segments, uint64_t now_ns) {
    struct pool *pool = core_find_pool(session->core, acquire->pool);
    struct request *request;

    assert(session->state == SESSION_ACTIVE);
    recorder_set_time(session->core, now_ns);
    if (pool != NULL && !session_may_use(session, pool))
        pool = NULL; /* as if there were none */
    int r = request_new(session, pool, request_id, acquire, now_ns, &request);
    if (r < 0) {
        if (pool != NULL)
            pool->stats.n_failures++;
        return r;
    }
    if (segments != NULL) {
        request->n_segments = segments->count;
        request->segment_bytes = segments->segment_bytes;
    }
    if (pool == NULL)
        request_refuse(request, PROTO_E_NO_POOL);
    else if (segments != NULL && !pool_has_rows(pool))
        request_refuse(request, PROTO_E_INVALID);
    else if (session->n_requests > SESSION_WAITING_MAX)
        request_refuse(request, PROTO_E_LIMIT);
    else
        pool_ask(pool, request, now_ns);
    core_serve(session->core, now_ns);
    return 0;
}

int core_acquire(struct session *session, uint64_t request_id, const struct proto_acquire *acquire,
                 uint64_t now_ns) {
    return acquire_either(session, request_id, acquire, NULL, now_ns);
}

int core_acquire_segments(struct session *session, uint64_t request_id,
                          const struct proto_acquire_segments *acquire, uint64_t now_ns) {
    const struct proto_acquire together = {
        .pool = acquire->pool,
        .flags = acquire->flags,
        .size_bytes = acquire->count * acquire->segment_bytes,
        .timeout_ns = acquire->timeout_ns,
    };
    assert(acquire->count > 0 && acquire->segment_bytes > 0 && acquire->segment_bytes % SEGMENT_GRANULE == 0);
    return acquire_either(session, request_id, &together, acquire, now_ns);
}

/* The session's oldest request for memory of this id that waits. NULL: there is none. */
static struct request *find_waiting(const struct session *session, uint64_t request_id) {
    list_for_each_entry(struct request, request, &session->requests, session_link) {
        if (request->id == request_id && request->state == REQUEST_WAITING)
            return request;
    }
    return NULL;
}

void core_cancel(struct session *session, uint64_t request_id, uint64_t now_ns) {
    struct request *request = find_waiting(session, request_id);
    struct name_wait *wait = name_wait_find(session, request_id);

    recorder_set_time(session->core, now_ns);
    if (wait != NULL && (request == NULL || wait->number < request->number)) {
        name_wait_refuse(wait, PROTO_E_CANCELLED);
    } else if (request != NULL) {
        struct pool *pool = request->pool;
        request_refuse(request, PROTO_E_CANCELLED);
        pool_mark_ready(pool); /* the request may have held others up */
        core_serve(session->core, now_ns);
    }
}

int core_idle(struct session *session, const struct proto_idle *idle, uint64_t now_ns,
              struct proto_segments *ret_segments) {
    struct pool *pool = core_find_pool(session->core, idle->pool);

    *ret_segments = (struct proto_segments){0};
    recorder_set_time(session->core, now_ns);
    if (pool == NULL || (idle->size_bytes != 0 && !session_may_use(session, pool)))
        return PROTO_E_NO_POOL;
    struct tenant_heap *heap = tenant_heap_find(session->tenant, pool);
    if (heap != NULL)
        (void)collect_heap(heap);
    core_serve(session->core, now_ns); /* memory that came back serves as it is, before segments are closed */
    closing_choose(session, pool, idle, now_ns, ret_segments);
    return 0;
}

int core_offer(struct session *session, const struct proto_offer *offer, uint64_t now_ns,
               struct proto_segments *ret_segments) {
    struct pool *pool = core_find_pool(session->core, offer->pool);

    *ret_segments = (struct proto_segments){0};
    recorder_set_time(session->core, now_ns);
    if (pool == NULL || !session_may_use(session, pool))
        return PROTO_E_NO_POOL;
    struct tenant_heap *heap = tenant_heap_find(session->tenant, pool);
    if (heap != NULL)
        (void)collect_heap(heap);
    core_serve(session->core, now_ns);
    closing_take_offer(session, pool, offer, ret_segments);
    return 0;
}

int core_reclaimed(struct session *session, const struct proto_reclaimed *reclaimed, uint64_t now_ns) {
    struct pool *pool = core_find_pool(session->core, reclaimed->pool);

    if (pool == NULL)
        return PROTO_E_NO_POOL;
    int r = session_hear_reclaimed(session, pool, reclaimed, now_ns);
    if (!list_is_empty(&pool->waiters.idle_only))
        pool_mark_ready(pool); /* a request may have waited for this answer */
    core_serve(session->core, now_ns);
    return r;
}

int core_closed(struct session *session, const struct proto_closed *closed, uint64_t now_ns) {
    struct pool *pool = closing_finish(session, closed->segment);

    if (pool == NULL)
        return PROTO_E_INVALID;
    recorder_set_time(session->core, now_ns);
    record(session->core,
           &(struct recorded){
               .kind = PROTO_RECORD_CLOSE, .pool = pool, .session = session, .value = closed->segment});
    question_note_came(session, pool, 0, now_ns);
    pool->stats.n_closes++;
    pool->stats.close_ns += closed->time_ns < CLOSE_NS_MAX ? closed->time_ns : CLOSE_NS_MAX;
    pool_mark_ready(pool);
    core_serve(pool->core, now_ns);
    return 0;
}

/* Whether the limits of the session and of its tenant leave room for the part to leave its lease.
 * becomes_lease: it becomes a lease of its own. */
static bool part_has_room(const struct lease_part *part, bool becomes_lease) {
    struct session *session = part->lease->session;
    unsigned leases = becomes_lease ? 1 : 0, ranges;

    return (!becomes_lease || session_has_room(session, 1)) &&
           lease_part_fits(part, becomes_lease, &ranges) && tenant_may_have(session->tenant, leases, ranges);
}

/* Takes a part back that is one too many, and whose client would not learn of a refusal. */
static int release_beyond(struct lease_part *part, struct fence_queue *queue, uint64_t value) {
    unsigned ranges;

    bool joins = queue != NULL && lease_part_fits(part, true, &ranges) &&
                 quota_left(&part->lease->session->tenant->quota, QUOTA_RANGES) >= ranges;
    return joins && lease_join_fenced(part, queue, value) ? 0 : lease_withhold(part, queue, value);
}

/* Finds a part of a lease that is to be a lease. Returns 0 or an error of PROTO_SPLIT. */
static int find_part(struct lease *lease, uint64_t offset_bytes, uint64_t size_bytes,
                     struct lease_part *ret_part) {
    int r = lease_find_part(lease, offset_bytes, size_bytes, ret_part);
    return r != 0 || part_has_room(ret_part, true) ? r : PROTO_E_LIMIT;
}

/* queue: NULL: the part is not used any more. */
static int release_part(struct lease *lease, const struct proto_release *release, struct fence_queue *queue,
                        bool is_one_way) {
    struct lease_part part;
    struct lease *own;

    int r = lease_find_part(lease, release->offset_bytes, release->size_bytes, &part);
    if (r != 0)
        return r;
    if (!part_has_room(&part, queue != NULL))
        return is_one_way ? release_beyond(&part, queue, release->fence_value) : PROTO_E_LIMIT;
    if (queue == NULL)
        return lease_release_part(&part);
    r = lease_split(&part, &own);
    if (r == 0)
        lease_give_up(own, queue, release->fence_value);
    return r;
}

/* Others of the block learn of the fence that it is released behind. */
static void put_on_board(struct lease *lease, const struct proto_release *release) {
    lease->board_fence = (struct proto_board_fence){.slot = lease->session->board_slot - 1,
                                                    .word = release->board_word - 1,
                                                    .value = release->board_value};
    lease->is_on_board = true;
    kept_change(lease->session->core, lease->record);
}

static int release(struct session *session, const struct proto_release *release, bool is_one_way,
                   uint64_t now_ns) {
    struct lease *lease = lease_find(session->core, session, release->lease, release->generation);
    struct fence_queue *queue = NULL;

    recorder_set_time(session->core, now_ns);
    if (lease == NULL)
        return PROTO_E_STALE;
    struct pool *pool = lease->block->segment->pool;
    uint64_t held_bytes = session->pools[pool->id - 1].leased_bytes;
    if ((release->fence != 0 && session->page == NULL) ||
        (release->board_word != 0 && session->board_slot == 0))
        return PROTO_E_INVALID;
    bool is_ready = release->fence == 0 || fence_is_ready(session, release->fence - 1, release->fence_value);
    bool is_part =
        release->size_bytes != 0 && !lease_is_all(lease, release->offset_bytes, release->size_bytes);
    int r = is_ready ? 0 : fence_queue_get(session, pool, release->fence - 1, &queue);
    if (r != 0)
        return r;
    if (is_part) {
        r = release_part(lease, release, queue, is_one_way);
    } else {
        if (release->board_word != 0)
            put_on_board(lease, release);
        lease_give_up(lease, queue, release->fence_value);
    }
    if (r == 0) {
        session->gave_ns[pool->id - 1] = now_ns;
        question_note_came(session, pool, held_bytes - session->pools[pool->id - 1].leased_bytes, now_ns);
    }
    if (r == 0 && queue != NULL)
        (void)collect_queue(queue, FENCES_PER_RELEASE);
    return r;
}

int core_release(struct session *session, const struct proto_release *wanted, uint64_t now_ns) {
    int r = release(session, wanted, false, now_ns);
    core_serve(session->core, now_ns);
    return r;
}

int core_release_one_way(struct session *session, const struct proto_release *wanted, uint64_t now_ns) {
    int r = release(session, wanted, true, now_ns);
    core_serve(session->core, now_ns);
    return r;
}

int core_split(struct session *session, const struct proto_release *split, struct lease **ret_lease) {
    struct core *core = session->core;
    struct lease *lease = lease_find(core, session, split->lease, split->generation);
    struct lease_part part;

    if (lease == NULL)
        return PROTO_E_STALE;
    int r = find_part(lease, split->offset_bytes, split->size_bytes, &part);
    return r != 0 ? r : lease_split(&part, ret_lease);
}

/* spare: how many ranges the lease may have beyond the limit. */
static int merge_within(struct session *session, const struct proto_merge *merge, unsigned spare) {
    struct lease *lease = lease_find(session->core, session, merge->lease, merge->generation);
    struct lease *other = lease_find(session->core, session, merge->other_lease, merge->other_generation);
    return lease == NULL || other == NULL ? PROTO_E_STALE : lease_merge(lease, other, spare);
}

int core_merge(struct session *session, const struct proto_merge *merge) {
    return merge_within(session, merge, 0);
}

int core_merge_one_way(struct session *session, const struct proto_merge *merge) {
    return merge_within(session, merge, PROTO_ONE_WAY_MAX);
}

/* Gives a block a token, and makes a parcel of it where it is sent. Returns 0, or -ENOMEM: then the block may
 * have a token. */
static int name_block(struct session *session, struct block *block, const struct proto_send *send,
                      const struct proto_token *fresh, uint64_t now_ns, struct proto_token *ret_token) {
    int r = block_share(session->core, block, &fresh[0], ret_token);

    if (r != 0 || send == NULL)
        return r;
    *ret_token = fresh[1];
    return parcel_open(session, block, &fresh[1], send, now_ns);
}

/* SHARE; with send: SEND. A session that attaches is told one range: what came back of a block may be another
 * session's. */
static int share(struct session *session, const struct proto_share *wanted, const struct proto_send *send,
                 const struct proto_token *fresh, uint64_t now_ns, struct lease **ret_lease,
                 struct proto_token *ret_token) {
    struct lease *lease = lease_find(session->core, session, wanted->lease, wanted->generation), *own = NULL;
    bool is_part = wanted->part_bytes > 0;
    struct lease_part part;

    recorder_set_time(session->core, now_ns);
    if (lease == NULL)
        return PROTO_E_STALE;
    if (send != NULL &&
        (session->tenant->n_parcels >= PARCELS_MAX || !tenant_may_have(session->tenant, is_part ? 2 : 1, 0)))
        return PROTO_E_LIMIT;
    struct block *block = lease->block;
    if (wanted->size_bytes > (is_part ? wanted->part_bytes : block->capacity_bytes) ||
        (!is_part && block->held_bytes != block->capacity_bytes))
        return PROTO_E_INVALID;
    int r = is_part ? find_part(lease, wanted->offset_bytes, wanted->part_bytes, &part) : 0;
    if (r == 0 && is_part)
        r = lease_begin_split(&part, &own);
    if (r != 0)
        return r;
    if (is_part)
        lease = own;
    r = name_block(session, lease->block, send, fresh, now_ns, ret_token);
    if (r != 0) {
        if (is_part)
            lease_close(own);
        return r;
    }
    if (is_part)
        lease_end_split(&part, own);
    if (wanted->size_bytes > 0) {
        lease->block->size_bytes = wanted->size_bytes;
        kept_change(lease->session->core, lease->block->record);
    }
    *ret_lease = lease;
    return 0;
}

int core_share(struct session *session, const struct proto_share *wanted, const struct proto_token *fresh,
               uint64_t now_ns, struct lease **ret_lease, struct proto_token *ret_token) {
    int r = share(session, wanted, NULL, fresh, now_ns, ret_lease, ret_token);
    core_serve(session->core, now_ns); /* fences may have been polled */
    return r;
}

int core_send(struct session *session, const struct proto_send *send,
              const struct proto_token fresh[static 2], uint64_t now_ns, struct lease **ret_lease,
              struct proto_token *ret_token) {
    int r = share(session, &send->share, send, fresh, now_ns, ret_lease, ret_token);
    core_serve(session->core, now_ns); /* fences may have been polled */
    return r;
}

int core_revoke(struct session *session, const struct proto_token *token, uint64_t now_ns) {
    struct parcel *parcel = parcel_find(session->core, token);

    recorder_set_time(session->core, now_ns);
    if (parcel == NULL || parcel_is_held(parcel) || parcel->block->segment->owner->tenant != session->tenant)
        return PROTO_E_NO_TOKEN;
    parcel_close(session->core, parcel);
    core_serve(session->core, now_ns);
    return 0;
}

unsigned core_revoke_all(struct core *core, uint64_t sender, uint64_t now_ns, uint64_t *ret_bytes) {
    recorder_set_time(core, now_ns);
    unsigned n = parcels_close(core, sender, NULL, ret_bytes);
    core_serve(core, now_ns);
    return n;
}

int core_attach(struct session *session, const struct proto_token *token, struct lease **ret_lease) {
    struct core *core = session->core;
    struct parcel *parcel = parcel_find(core, token);
    struct block *block = parcel != NULL ? parcel->block : block_find(core, token);

    /* One answer for all three, so that another tenant learns nothing. A block that only dead processes hold
     * is on its way back to the pool: no session may join it. */
    if (block == NULL || block->segment->owner->tenant != session->tenant ||
        (parcel == NULL && block->live == 0) || !session_may_use(session, block->segment->pool))
        return PROTO_E_NO_TOKEN;
    if (pool_is_closed(block->segment->pool))
        return PROTO_E_DRIVER;
    /* The last taker's lease takes the place of the parcel in the tenant's quota. */
    bool is_last = parcel != NULL && parcel->takers == 1;
    if (!session_has_room(session, 1) || !(is_last || tenant_may_have(session->tenant, 1, 0)))
        return PROTO_E_LIMIT;
    /* The session asks for the descriptions of a row's further segments later, which must not fail then. */
    list_for_each_entry(const struct heap_range, range, &block->ranges, user_link) {
        struct segment *segment = range->span->user;
        if (segment->is_orphan && !session_has_mapped(session, segment))
            return PROTO_E_DRIVER;
        int r = session_reserve_segment(session, segment);
        if (r < 0)
            return r;
    }
    int r = lease_join(session, block, ret_lease);
    if (r != 0)
        return r;
    record(core, &(struct recorded){.kind = PROTO_RECORD_ATTACH,
                                    .pool = block->segment->pool,
                                    .session = session,
                                    .bytes = block->held_bytes,
                                    .value = (*ret_lease)->id});
    if (parcel != NULL)
        parcel_take(core, parcel);
    return 0;
}

int core_query(struct session *session, const struct proto_lease_name *name, struct proto_info *ret_info) {
    const struct lease *lease = lease_find(session->core, session, name->lease, name->generation);
    if (lease == NULL)
        return PROTO_E_STALE;
    const struct block *block = lease->block;
    *ret_info = (struct proto_info){
        .segment = block->segment->id,
        .offset_bytes = block->offset_bytes,
        .size_bytes = block->size_bytes,
        .capacity_bytes = block->capacity_bytes,
        .pool = block->segment->pool->id,
        .holders = block->live + block->quarantined + block->n_parcels,
        .shared = block->shared,
        .parts = row_parts(block),
    };
    return 0;
}

/* The fence in the answer that lies in the same word as another one; NULL: there is none. */
static struct proto_board_fence *find_word(struct proto_holders *holders,
                                           const struct proto_board_fence *fence) {
    for (uint32_t i = 0; i < holders->count; i++)
        if (holders->fences[i].slot == fence->slot && holders->fences[i].word == fence->word)
            return &holders->fences[i];
    return NULL;
}

/* Adds a fenced lease on the block to the answer. Of the fences in one word the last is enough: a stream
 * writes them in ascending order. */
static void add_holder(const struct lease *lease, struct proto_holders *holders) {
    if (fence_is_ready(lease->session, lease->fence->word, lease->fence_value))
        return;
    if (!lease->is_on_board) {
        holders->n_left++;
        return;
    }
    struct proto_board_fence *named = find_word(holders, &lease->board_fence);
    if (named != NULL && (int64_t)(lease->board_fence.value - named->value) > 0)
        named->value = lease->board_fence.value;
    else if (named == NULL && holders->count < PROTO_HOLDERS_MAX)
        holders->fences[holders->count++] = lease->board_fence;
    else if (named == NULL)
        holders->n_left++;
}

int core_ask_holders(struct session *session, const struct proto_lease_name *name,
                     struct proto_holders *ret_holders) {
    const struct lease *own = lease_find(session->core, session, name->lease, name->generation);
    unsigned walked = 0, fenced = 0;

    *ret_holders = (struct proto_holders){0};
    if (own == NULL)
        return PROTO_E_STALE;
    const struct block *block = own->block;
    (void)collect_heap(block->segment->owner); /* a lease whose fence is ready goes: room in the reply */
    ret_holders->n_holding = block->live + block->quarantined + block->n_parcels - 1;
    if (ret_holders->n_holding > 0 || block->fenced == 0)
        return 0;
    list_for_each_entry(const struct lease, lease, &block->leases, block_link) {
        if (walked++ == HOLDERS_WALK_MAX)
            break;
        if (lease->fence == NULL)
            continue;
        fenced++;
        add_holder(lease, ret_holders);
    }
    ret_holders->n_left += block->fenced - fenced;
    return 0;
}

/* The lease of the name, which is a row that has such a part. Returns 0, PROTO_E_STALE or PROTO_E_INVALID. */
static int find_row(struct session *session, const struct proto_part_name *name, struct lease **ret_lease) {
    struct lease *lease = lease_find(session->core, session, name->lease, name->generation);
    if (lease == NULL)
        return PROTO_E_STALE;
    if (!lease->block->is_row || name->part >= lease->block->n_ranges)
        return PROTO_E_INVALID;
    *ret_lease = lease;
    return 0;
}

int core_ask_parts(struct session *session, const struct proto_part_name *name,
                   struct proto_parts *ret_parts) {
    struct lease *lease;
    int r = find_row(session, name, &lease);
    if (r != 0)
        return r;
    const struct block *row = lease->block;
    const struct heap_range *range = row_part(row, name->part);
    *ret_parts = (struct proto_parts){.total = row->n_ranges};
    for (unsigned i = name->part; i < row->n_ranges && ret_parts->count < PROTO_PARTS_MAX; i++) {
        const struct segment *segment = range->span->user;
        ret_parts->parts[ret_parts->count++] = (struct proto_part){
            .segment = segment->id,
            .segment_bytes = segment->size_bytes,
            .offset_bytes = range->offset,
            .size_bytes = range->size,
        };
        range = container_of(range->user_link.next, struct heap_range, user_link);
    }
    return 0;
}

static void add_description(const struct segment *segment, struct proto_lease *lease) {
    lease->description.id = segment->id;
    lease->description.size_bytes = segment->size_bytes;
    lease->description.pool = segment->pool->id;
}

/* The session has the segment mapped from now on. Describes it, unless it had before. */
static void describe_segment(struct session *session, struct segment *segment, struct proto_lease *lease,
                             bool *ret_describe) {
    lease->segment = segment->id;
    lease->pool = segment->pool->id;
    *ret_describe = session_map_segment(session, segment);
    if (*ret_describe)
        add_description(segment, lease);
}

int core_describe_part(struct session *session, const struct proto_part_name *name,
                       struct proto_lease *ret_lease, struct segment **ret_segment, bool *ret_describe) {
    bool is_again = (name->flags & PROTO_DESCRIBE_AGAIN) != 0;
    struct lease *lease = lease_find(session->core, session, name->lease, name->generation);

    if (lease != NULL && is_again && name->part == 0 && !lease->block->is_row) {
        if (lease->block->segment->is_orphan)
            return PROTO_E_DRIVER;
        core_describe_lease(lease, ret_lease, ret_describe);
        *ret_segment = lease->block->segment;
        add_description(*ret_segment, ret_lease);
        return 0;
    }
    int r = find_row(session, name, &lease);
    if (r != 0)
        return r;
    const struct heap_range *range = row_part(lease->block, name->part);
    const struct segment *segment = range->span->user;
    if (segment->is_orphan && (is_again || !session_has_mapped(session, segment)))
        return PROTO_E_DRIVER;
    *ret_lease = (struct proto_lease){
        .lease = lease->id,
        .generation = lease->generation,
        .offset_bytes = range->offset,
        .size_bytes = range->size,
        .capacity_bytes = range->size,
    };
    *ret_segment = range->span->user;
    describe_segment(session, *ret_segment, ret_lease, ret_describe);
    if (is_again)
        add_description(*ret_segment, ret_lease);
    return 0;
}

void core_describe_lease(struct lease *lease, struct proto_lease *ret_lease, bool *ret_describe) {
    const struct block *block = lease->block;

    *ret_lease = (struct proto_lease){
        .lease = lease->id,
        .generation = lease->generation,
        .offset_bytes = block->offset_bytes,
        .size_bytes = block->size_bytes,
        .capacity_bytes = block->capacity_bytes,
        .parts = row_parts(block),
    };
    describe_segment(lease->session, block->segment, ret_lease, ret_describe);
}
