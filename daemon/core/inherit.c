/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/inherit.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "daemon/core/closing.h"
#include "daemon/core/fence.h"
#include "daemon/core/lease.h"
#include "daemon/core/long_wait.h"
#include "daemon/core/parcel.h"
#include "daemon/core/policy.h"
#include "daemon/core/pool.h"
#include "daemon/core/request.h"
#include "daemon/core/row.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/wait_queue.h"
#include "daemon/core/waiting.h"

/* The counters of a daemon begin at 0 and count its objects. */
#define NUMBER_MAX (UINT64_MAX / 2)
/* A pool's bytes: sums of all pools stay within 64 bits. */
#define POOL_BYTES_MAX HEAP_SPAN_MAX

/* The estate that is read, and the core that is made of it. */
struct heir {
    struct core *core;
    struct estate *estate;
    const struct inherit_shell *shell;
    size_t slots_max, leases_max; /* no segment has a slot, no lease an id beyond */
    uint32_t *lost;               /* groups of records of which one is damaged */
    size_t n_lost, lost_room;
    struct inherit_loss loss;
    const char *reason;
};

static int refuse(struct heir *heir, const char *reason) {
    heir->reason = reason;
    return -EBADMSG;
}

/* Goes through the records of a kind. each: gets the record's number and its payload. */
static int for_each(struct heir *heir, enum kept_kind kind,
                    int (*each)(struct heir *heir, uint32_t record, const void *payload)) {
    struct estate_found found = {0};
    int r = 0;

    while (r == 0 && estate_next(heir->estate, kind, found.record, &found))
        r = each(heir, found.record, found.payload);
    return r;
}

/* A record that was found, for a kind whose records come in another order than theirs in the estate. */
struct found_record {
    uint32_t record;
    int64_t
        later; /* leases behind a word of one session: how much later than the first one its value comes */
    const void *payload;
};

struct found_records {
    struct found_record *list;
    size_t count;
};

/* Finds all records of a kind. The caller frees the list. */
static int find_all(struct heir *heir, enum kept_kind kind, struct found_records *ret_records) {
    struct estate_found found = {0};
    size_t room = 0;

    while (estate_next(heir->estate, kind, found.record, &found)) {
        struct found_record *list = array_room(ret_records->list, ret_records->count, &room, sizeof *list);
        if (list == NULL)
            return -ENOMEM;
        ret_records->list = list;
        list[ret_records->count++] = (struct found_record){.record = found.record, .payload = found.payload};
    }
    return 0;
}

static void sort(struct found_records *records, int (*compare)(const void *a, const void *b)) {
    if (records->count > 0)
        qsort(records->list, records->count, sizeof *records->list, compare);
}

/* The object is the record's from now on. */
static void bind(const struct heir *heir, uint32_t record, void *object, uint32_t *ret_record) {
    estate_bind(heir->estate, record, object);
    *ret_record = record;
}

static void *object_of(const struct heir *heir, uint32_t record, enum kept_kind kind) {
    return estate_object(heir->estate, record, kind);
}

static struct pool *pool_of(const struct heir *heir, uint32_t id) {
    return core_find_pool(heir->core, id);
}

static struct tenant_id tenant_id_of(const struct kept_tenant *kept) {
    return (struct tenant_id){.uid = kept->uid, .scope = kept->scope};
}

static int get_tenant(struct heir *heir, const struct kept_tenant *kept, struct tenant **ret_tenant) {
    int r = tenant_get(heir->core, tenant_id_of(kept), ret_tenant);
    return r == -ESRCH ? refuse(heir, "a scope is missing") : r;
}

/* --- segments --- */

/* Makes a segment without an owner, as far as the core alone knows it. */
static int make_segment(struct heir *heir, const struct kept_segment *kept, struct segment **ret_segment) {
    struct core *core = heir->core;
    struct pool *pool = pool_of(heir, kept->pool);
    int r = 0;

    if (pool == NULL)
        return refuse(heir, "a segment is of a pool that is not there");
    if (kept->size_bytes == 0 || kept->size_bytes % SEGMENT_GRANULE != 0 ||
        kept->size_bytes > POOL_BYTES_MAX - pool->reserved_bytes)
        return refuse(heir, "a segment has no size");
    if (kept->id == 0 || kept->id > core->next_segment_id || segment_find(core, kept->id) != NULL)
        return refuse(heir, "a segment has no name of its own");
    if (kept->slot >= heir->slots_max ||
        (kept->slot < core->segment_slots && core->segments[kept->slot] != NULL))
        return refuse(heir, "a segment has no slot of its own");
    _cleanup_(freep) struct segment *segment = calloc(1, sizeof *segment);
    if (segment == NULL)
        return -ENOMEM;
    segment->pool = pool;
    segment->id = kept->id;
    segment->size_bytes = kept->size_bytes;
    segment->label = kept->label;
    while (r == 0 && kept->slot >= core->segment_slots)
        r = segment_grow_slots(core);
    if (r == 0)
        r = segment_join(segment);
    if (r < 0)
        return r;
    segment_restore_slot(segment, kept->slot);
    pool->n_segments++;
    pool->reserved_bytes += segment->size_bytes;
    pool->unassigned_bytes += segment->size_bytes;
    *ret_segment = take_ptr(&segment);
    return 0;
}

/* Nothing more is lent of it: see segment.h. */
static int make_orphan(struct segment *segment) {
    segment->is_orphan = true;
    segment->pool->n_orphans++;
    segment->pool->orphan_bytes += segment->size_bytes;
    if (segment->span != NULL)
        heap_close_span(segment->span);
    return 0;
}

static int add_segment(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_segment *kept = payload;
    bool is_owned = kept->state == SEGMENT_ASSIGNED || kept->state == SEGMENT_CLOSING;
    struct segment *segment;
    struct tenant *tenant;

    if (!is_owned && kept->state != SEGMENT_UNASSIGNED && kept->state != SEGMENT_RETIRING)
        return refuse(heir, "a segment is in no state");
    int r = make_segment(heir, kept, &segment);
    if (r < 0)
        return r;
    bind(heir, record, segment, &segment->record);
    if (is_owned) { /* one that is CLOSING is so once its mappers are known */
        r = get_tenant(heir, &kept->owner, &tenant);
        if (r == 0)
            r = tenant_adopt(tenant, segment);
    }
    if (r == 0)
        r = heir->shell->take_segment(heir->shell->argument, segment);
    if (r == -ENOENT)
        r = make_orphan(segment);
    if (r == 0 && (kept->state == SEGMENT_RETIRING || (segment->is_orphan && !is_owned)))
        pool_retire(segment);
    return r;
}

static int close_segment(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_segment *kept = payload;
    struct segment *segment = object_of(heir, record, KEPT_SEGMENT);
    struct tenant *keeper = NULL;

    if (kept->state != SEGMENT_CLOSING)
        return 0;
    if (segment->mappers == 0 || segment->span->taken_bytes > 0)
        return refuse(heir, "a segment is closed that no session has mapped");
    if (kept->has_keeper && !segment->is_orphan)
        keeper = segment->owner->tenant;
    if (keeper != NULL && !tenant_id_is(keeper->id, tenant_id_of(&kept->keeper)))
        return refuse(heir, "a segment is kept for another user");
    closing_restore(segment, keeper);
    return 0;
}

/* --- sessions --- */

static struct session *make_session(struct core *core, struct tenant *tenant,
                                    const struct kept_session *kept) {
    struct session *session = calloc(1, sizeof *session + core->n_pools * sizeof session->answers[0]);

    if (session == NULL)
        return NULL;
    session->core = core;
    session->id = kept->id;
    session->peer = (struct peer){.pid = kept->pid, .uid = kept->uid, .scope = kept->scope, .gid = kept->gid};
    memcpy(session->peer.command, kept->command, sizeof session->peer.command - 1);
    session->wants_reclaim = kept->wants_reclaim;
    session->has_said_name = kept->has_said_name;
    session->connected_ns = kept->connected_ns;
    session->lost_ns = kept->lost_ns;
    session->n_questions = kept->n_questions;
    session->board_slot = kept->board_slot;
    session_enter(session, tenant);
    return session;
}

static struct session *find_session(const struct core *core, uint64_t id) {
    list_for_each_entry(struct session, session, &core->sessions, link) {
        if (session->id == id)
            return session;
    }
    return NULL;
}

static int add_session(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_session *kept = payload;
    struct tenant *tenant;

    if (kept->n_groups > KEPT_GROUPS || kept->pid < 0 || kept->n_questions > NUMBER_MAX ||
        kept->board_slot > PROTO_BOARD_SLOTS)
        return refuse(heir, "a session has what none can have");
    if (kept->state != SESSION_ACTIVE && kept->state != SESSION_QUARANTINED)
        return refuse(heir, "a session is in no state");
    if (kept->id == 0 || kept->id > heir->core->next_session_id || find_session(heir->core, kept->id) != NULL)
        return refuse(heir, "a session has no name of its own");
    int r = get_tenant(heir, &(struct kept_tenant){.uid = kept->uid, .scope = kept->scope}, &tenant);
    if (r < 0)
        return r;
    struct session *session = make_session(heir->core, tenant, kept);
    if (session == NULL)
        return -ENOMEM;
    charge_force(&session->charge, &tenant->quota, QUOTA_SESSIONS, 1);
    bind(heir, record, session, &session->record);
    r = heir->shell->take_session(heir->shell->argument, session, kept);
    if (r < 0)
        return r;
    if (session->page != NULL) /* the predecessor's shortages are over; this core finds its own */
        atomic_store_explicit(&session->page->shortage.pools, 0, memory_order_release);
    session->pools_allowed = policy_pools(heir->core->policy, &session->peer);
    tenant_apply_policy(tenant, NULL);
    return 0;
}

/* The session is lost, once its leases are there. */
static int lose_session(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_session *kept = payload;
    struct session *session = object_of(heir, record, KEPT_SESSION);

    if (kept->state == SESSION_ACTIVE)
        return 0;
    if (!list_is_empty(&session->held) || !list_is_empty(&session->fenced))
        return refuse(heir, "a session is lost, and has what ends with that");
    list_for_each_entry(struct lease, lease, &session->leases, session_link) {
        lease_quarantine(lease);
    }
    session_fall_silent(session);
    session->state = SESSION_QUARANTINED;
    session->quarantine_reason = "";
    return 0;
}

static int map_segments(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_mapped *kept = payload;
    struct session *session = object_of(heir, kept->session, KEPT_SESSION);
    struct core *core = heir->core;

    if (session == NULL)
        return refuse(heir, "segments are mapped by a session that is not there");
    if (kept->word >= heir->slots_max / 64)
        return refuse(heir, "a session has a segment mapped that is not there");
    int r = session_reserve_word(session, kept->word);
    if (r < 0)
        return r;
    if (session->segments[kept->word].record != 0)
        return refuse(heir, "two records are of one thing");
    for (size_t word = 0; word < session->n_segment_words; word++) /* they may have moved */
        if (session->segments[word].record != 0)
            estate_bind(heir->estate, session->segments[word].record, &session->segments[word]);
    for (uint64_t bits = kept->mapped; bits != 0; bits &= bits - 1) {
        size_t slot = (size_t)kept->word * 64 + (unsigned)__builtin_ctzll(bits);
        const struct segment *segment = slot < core->segment_slots ? core->segments[slot] : NULL;
        if (segment == NULL || segment->owner == NULL || segment->owner->tenant != session->tenant)
            return refuse(heir, "a session has a segment mapped that is not its user's");
        session_map_segment(session, core->segments[slot]);
    }
    bind(heir, record, &session->segments[kept->word], &session->segments[kept->word].record);
    return 0;
}

/* Each word of a session has a record, or a change of it would be lost. */
static int check_words(struct heir *heir, uint32_t record, const void *payload) {
    const struct session *session = object_of(heir, record, KEPT_SESSION);

    (void)payload;
    for (size_t word = 0; word < session->n_segment_words; word++)
        if (session->segments[word].record == 0)
            return refuse(heir, "it is not known what a session has mapped");
    return 0;
}

static int tell_session(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_mapped *kept = payload;
    struct session *session = object_of(heir, kept->session, KEPT_SESSION);

    (void)record;
    if ((kept->told & ~kept->mapped) != 0)
        return refuse(heir, "a session was told to close what it has not mapped");
    for (uint64_t bits = kept->told; bits != 0; bits &= bits - 1) {
        struct segment *segment = heir->core->segments[kept->word * 64 + (unsigned)__builtin_ctzll(bits)];
        if (segment->state != SEGMENT_CLOSING)
            return refuse(heir, "a session was told to close a segment that is in use");
        closing_restore_told(session, segment);
    }
    return 0;
}

/* --- blocks --- */

static int add_block(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_block *kept = payload;
    struct segment *segment = object_of(heir, kept->segment, KEPT_SEGMENT);

    if (segment == NULL || segment->owner == NULL)
        return refuse(heir, "a block is in a segment that is not there");
    if (kept->size_bytes == 0 || kept->size_bytes > kept->capacity_bytes ||
        kept->offset_bytes % HEAP_GRANULE != 0 || kept->capacity_bytes % HEAP_GRANULE != 0)
        return refuse(heir, "a block has no size, or no place");
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL)
        return -ENOMEM;
    block->segment = segment;
    block->offset_bytes = kept->offset_bytes;
    block->size_bytes = kept->size_bytes;
    block->capacity_bytes = kept->capacity_bytes;
    block->is_row = kept->is_row;
    memcpy(block->token.bytes, kept->token, sizeof block->token.bytes);
    list_init(&block->ranges);
    list_init(&block->leases);
    bind(heir, record, block, &block->record);
    return 0;
}

static int add_range(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_range *kept = payload;
    struct block *block = object_of(heir, kept->block, KEPT_BLOCK);
    struct segment *segment = object_of(heir, kept->segment, KEPT_SEGMENT);
    struct heap_range *range;

    if (block == NULL || segment == NULL || segment->owner == NULL ||
        segment->owner != block->segment->owner || (!block->is_row && segment != block->segment))
        return refuse(heir, "a range is of a block that is not there");
    struct heap_range *around = heap_range_at(segment->span, kept->offset_bytes);
    if (around == NULL || !around->free || kept->size_bytes == 0 ||
        kept->size_bytes > around->offset + around->size - kept->offset_bytes ||
        kept->offset_bytes % HEAP_GRANULE != 0 || kept->size_bytes % HEAP_GRANULE != 0)
        return refuse(heir, "two blocks have one range");
    int r = heap_claim_part(around, kept->offset_bytes, kept->size_bytes, &range);
    if (r < 0)
        return r;
    range->user = block;
    bind(heir, record, range, &range->record);
    segment_settle(segment);
    return 0;
}

/* The record of the range before a row's range; 0: it is the first. */
static uint32_t previous_of(const struct heir *heir, uint32_t record) {
    struct estate_found found;

    (void)estate_next(heir->estate, KEPT_RANGE, record - 1, &found); /* it is there, and not damaged */
    return ((const struct kept_range *)found.payload)->previous;
}

/* The ranges of a row lie in segments of any order: each says which one is before it. n_left: so many are before
 * it at most. */
static int link_behind(struct heir *heir, struct heap_range *range, unsigned n_left) {
    struct block *block = range->user;
    uint32_t record = previous_of(heir, range->record);
    struct heap_range *previous = object_of(heir, record, KEPT_RANGE);

    if (!list_is_empty(&range->user_link))
        return 0;
    if (record == 0 ? !list_is_empty(&block->ranges)
                    : previous == NULL || previous->user != block || n_left == 0)
        return refuse(heir, "a row is broken");
    int r = previous != NULL ? link_behind(heir, previous, n_left - 1) : 0;
    if (r == 0 && previous != NULL && previous->user_link.next != &block->ranges)
        return refuse(heir, "a row is broken");
    if (r == 0)
        list_append(&block->ranges, &range->user_link);
    return r;
}

static int link_row(struct heir *heir, uint32_t record, const void *payload) {
    struct heap_range *range = object_of(heir, record, KEPT_RANGE);
    const struct block *block = range->user;

    (void)payload;
    return block->is_row ? link_behind(heir, range, PROTO_ROW_PARTS_MAX) : 0;
}

/* The other blocks have their ranges in the order of the segment. */
static void link_ranges(const struct core *core) {
    for (size_t slot = 0; slot < core->segment_slots; slot++) {
        const struct segment *segment = core->segments[slot];
        if (segment == NULL || segment->span == NULL)
            continue;
        for (struct heap_range *range = segment->span->lowest; range != NULL; range = range->upper) {
            struct block *block = range->user;
            if (!range->free && block != NULL && !block->is_row)
                list_append(&block->ranges, &range->user_link);
        }
    }
}

/* Whether the ranges of a block that is no row make up its capacity. */
static bool lies_in_place(const struct block *block) {
    const struct heap_range *first = container_of(block->ranges.next, struct heap_range, user_link),
                            *last = container_of(block->ranges.previous, struct heap_range, user_link);

    return first->offset >= block->offset_bytes &&
           last->offset + last->size - block->offset_bytes == block->capacity_bytes;
}

static int end_block(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_block *kept = payload;
    struct block *block = object_of(heir, record, KEPT_BLOCK);

    if (list_is_empty(&block->ranges))
        return refuse(heir, "a block has no memory");
    int r = block_restore(block, block->segment->owner->tenant, kept->is_shared);
    if (r == -EBADMSG)
        return refuse(heir, "two blocks have one token");
    return r < 0 || (block->is_row ? row_is_valid(block) : lies_in_place(block))
               ? r
               : refuse(heir, "a block has other memory than its size");
}

/* --- leases --- */

/* They come in the order of their generations. */
static int compare_generations(const void *a, const void *b) {
    const struct kept_lease *left = ((const struct found_record *)a)->payload,
                            *right = ((const struct found_record *)b)->payload;
    return (left->generation > right->generation) - (left->generation < right->generation);
}

/* By the word that they wait for. */
static int compare_words(const void *a, const void *b) {
    const struct kept_lease *left = ((const struct found_record *)a)->payload,
                            *right = ((const struct found_record *)b)->payload;

    if (left->session != right->session)
        return left->session < right->session ? -1 : 1;
    return (left->fence_word > right->fence_word) - (left->fence_word < right->fence_word);
}

/* Of one word in the order in which its values come. */
static int compare_fences(const void *a, const void *b) {
    int64_t left = ((const struct found_record *)a)->later, right = ((const struct found_record *)b)->later;
    int by_word = compare_words(a, b);

    if (by_word != 0)
        return by_word;
    return left != right ? (left > right) - (left < right) : compare_generations(a, b);
}

/* Puts leases into the order in which their fences come. Values are compared modulo 2^64, which orders those alone
 * that are near each other; a client may have given any. So each one's distance from one of its word is compared. */
static void sort_by_fences(struct found_records *leases) {
    sort(leases, compare_words);
    const struct found_record *first = leases->list;
    for (size_t i = 0; i < leases->count; i++) {
        struct found_record *found = &leases->list[i];
        if (compare_words(first, found) != 0)
            first = found;
        found->later = (int64_t)(((const struct kept_lease *)found->payload)->fence_value -
                                 ((const struct kept_lease *)first->payload)->fence_value);
    }
    sort(leases, compare_fences);
}

static int add_lease(struct heir *heir, const struct found_record *found) {
    const struct kept_lease *kept = found->payload;
    struct session *session = object_of(heir, kept->session, KEPT_SESSION);
    struct block *block = object_of(heir, kept->block, KEPT_BLOCK);
    struct lease *lease;

    if (session == NULL || block == NULL || block->segment->owner->tenant != session->tenant)
        return refuse(heir, "a lease is of a session that is not there");
    if (!list_is_empty(&block->leases) && !block->shared)
        return refuse(heir, "two leases have a block that is not shared");
    if (kept->id > heir->leases_max || kept->generation == 0 ||
        kept->generation > heir->core->leases.next_generation)
        return refuse(heir, "a lease has a name that was never given");
    if (kept->withheld_bytes > block->held_bytes)
        return refuse(heir, "more of a lease was withheld than it has");
    if (kept->is_on_board &&
        (kept->board_fence.slot >= PROTO_BOARD_SLOTS || kept->board_fence.word >= PROTO_BOARD_WORDS))
        return refuse(heir, "a lease has a fence on no board");
    const struct lease wanted = {
        .id = kept->id,
        .generation = kept->generation,
        .taken_ns = kept->taken_ns,
        .withheld_bytes = kept->withheld_bytes,
        .fence_value = kept->fence_value,
        .unanswered = kept->is_unanswered,
        .is_withheld_by_fences = kept->is_withheld_by_fences,
        .is_on_board = kept->is_on_board,
        .board_fence = kept->board_fence,
    };
    int r = lease_restore(session, block, &wanted, &lease);
    if (r == -EBADMSG)
        return refuse(heir, "two leases have one name");
    if (r == 0)
        bind(heir, found->record, lease, &lease->record);
    return r;
}

static int fence_lease(struct heir *heir, const struct found_record *found) {
    const struct kept_lease *kept = found->payload;
    struct lease *lease = object_of(heir, found->record, KEPT_LEASE);
    struct fence_queue *queue;

    if (kept->fence_word == 0)
        return 0;
    if (kept->fence_word > PROTO_PAGE_FENCES || lease->session->page == NULL)
        return refuse(heir, "a lease waits for a fence that is not there");
    int r = fence_queue_get(lease->session, lease->block->segment->pool, kept->fence_word - 1, &queue);
    if (r < 0)
        return r;
    if (queue->record == 0) /* what is withheld in it would be lost */
        return refuse(heir, "a lease waits for a fence that is not there");
    lease_restore_fence(lease, queue);
    return 0;
}

static int add_leases(struct heir *heir) {
    struct found_records leases = {0};
    uint64_t last = 0;

    int r = find_all(heir, KEPT_LEASE, &leases);
    if (r == 0)
        sort(&leases, compare_generations);
    for (size_t i = 0; r == 0 && i < leases.count; i++) {
        const struct kept_lease *kept = leases.list[i].payload;
        r = kept->generation != last ? add_lease(heir, &leases.list[i])
                                     : refuse(heir, "two leases have one name");
        last = kept->generation;
    }
    lease_table_restored(&heir->core->leases);
    if (r == 0)
        sort_by_fences(&leases);
    for (size_t i = 0; r == 0 && i < leases.count; i++)
        r = fence_lease(heir, &leases.list[i]);
    free(leases.list);
    return r;
}

/* Before the leases: these find their queues by then. */
static int add_fences(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_fences *kept = payload;
    struct session *session = object_of(heir, kept->session, KEPT_SESSION);
    struct pool *pool = pool_of(heir, kept->pool);
    struct fence_queue *queue;
    struct tenant_heap *own;

    if (session == NULL || pool == NULL || kept->word >= PROTO_PAGE_FENCES || session->page == NULL)
        return refuse(heir, "fences are of a session that is not there");
    int r = tenant_heap_get(session->tenant, pool, &own);
    if (r == 0)
        r = fence_queue_get(session, pool, kept->word, &queue);
    if (r < 0)
        return r;
    if (queue->record != 0)
        return refuse(heir, "two records are of one thing");
    queue->withholds = kept->withholds != 0;
    queue->withheld_value = kept->withheld_value;
    bind(heir, record, queue, &queue->record);
    return 0;
}

/* --- parcels and requests --- */

static int add_parcel(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_parcel *kept = payload;
    struct block *block = object_of(heir, kept->block, KEPT_BLOCK);
    struct session *sender = NULL;
    struct parcel *parcel;

    if (block == NULL || !block->shared || kept->takers == 0)
        return refuse(heir, "a parcel is of a block that is not there");
    if (kept->lifetime_ns > PROTO_PARCEL_NS_MAX)
        return refuse(heir, "a parcel may be there for too long");
    if (kept->deadline_ns == NS_FOREVER && (sender = find_session(heir->core, kept->sender)) == NULL)
        return refuse(heir, "a parcel is held by a session that is not there");
    if (sender != NULL && sender->tenant != block->segment->owner->tenant)
        return refuse(heir, "a parcel is held by another user than its block's");
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
        return refuse(heir, "two parcels have one token");
    if (r == 0)
        bind(heir, record, parcel, &parcel->record);
    return r;
}

/* Each block is of a session or of a parcel. */
static int check_block(struct heir *heir, uint32_t record, const void *payload) {
    const struct block *block = object_of(heir, record, KEPT_BLOCK);

    (void)payload;
    return list_is_empty(&block->leases) && block->n_parcels == 0 ? refuse(heir, "nobody has a block") : 0;
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
    struct session *session = object_of(heir, kept->session, KEPT_SESSION);
    struct pool *pool = pool_of(heir, kept->pool);
    struct core *core = heir->core;

    if (session == NULL || session->state != SESSION_ACTIVE)
        return refuse(heir, "a request is of a session that is not there");
    if (!asks_for_something(kept))
        return refuse(heir, "a request asks for nothing, or for too much");
    if (!has_state(kept, pool))
        return refuse(heir, "a request is in no state");
    if (kept->number == 0 || kept->number > core->next_request_number)
        return refuse(heir, "a request has a number that was never given");
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
        request->lease = object_of(heir, kept->lease, KEPT_LEASE);
        if (!has_leases(request)) {
            request->lease = NULL;
            return refuse(heir, "a request was granted a lease that is not there");
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
    bind(heir, found->record, request, &request->record);
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

static int compare_requests(const void *a, const void *b) {
    const struct kept_request *left = ((const struct found_record *)a)->payload,
                              *right = ((const struct found_record *)b)->payload;
    return (left->number > right->number) - (left->number < right->number);
}

/* They come in the order of their arrival. */
static int add_requests(struct heir *heir) {
    struct found_records requests = {0};
    uint64_t last = 0;

    int r = find_all(heir, KEPT_REQUEST, &requests);
    if (r == 0)
        sort(&requests, compare_requests);
    for (size_t i = 0; r == 0 && i < requests.count; i++) {
        const struct kept_request *kept = requests.list[i].payload;
        r = kept->number != last ? add_request(heir, &requests.list[i])
                                 : refuse(heir, "two requests have one number");
        last = kept->number;
    }
    free(requests.list);
    return r;
}

/* --- in order --- */

static int add_numbers(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_numbers *kept = payload;
    struct core *core = heir->core;

    if (core->record != 0)
        return refuse(heir, "two records are of one thing");
    if (kept->session > NUMBER_MAX || kept->segment > NUMBER_MAX || kept->request > NUMBER_MAX ||
        kept->generation > NUMBER_MAX)
        return refuse(heir, "its numbers are beyond all that were given");
    core->next_session_id = kept->session;
    core->next_segment_id = kept->segment;
    core->next_request_number = kept->request;
    core->leases.next_generation = kept->generation;
    bind(heir, record, core, &core->record);
    return 0;
}

/* A function for each record of a kind. */
struct kind_step {
    enum kept_kind kind;
    int (*each)(struct heir *heir, uint32_t record, const void *payload);
};

static int for_all(struct heir *heir, const struct kind_step *steps) {
    int r = 0;

    for (; r == 0 && steps->each != NULL; steps++)
        r = for_each(heir, steps->kind, steps->each);
    return r;
}

static int build(struct heir *heir) {
    static const struct kind_step
        numbers[] = {{KEPT_NUMBERS, add_numbers}, {0}},
        segments[] = {{KEPT_SEGMENT, add_segment}, {0}},
        before[] =
            {
                {KEPT_SESSION, add_session},   {KEPT_MAPPED, map_segments}, {KEPT_SESSION, check_words},
                {KEPT_SEGMENT, close_segment}, {KEPT_MAPPED, tell_session}, {KEPT_BLOCK, add_block},
                {KEPT_RANGE, add_range},       {KEPT_RANGE, link_row},      {0},
            },
        blocks[] = {{KEPT_BLOCK, end_block}, {KEPT_FENCES, add_fences}, {0}},
        behind[] = {
            {KEPT_PARCEL, add_parcel},
            {KEPT_BLOCK, check_block},
            {KEPT_SESSION, lose_session},
            {0},
        };

    int r = for_all(heir, numbers);
    if (r == 0 && heir->core->record == 0)
        r = refuse(heir, "its numbers are missing");
    if (r == 0)
        r = for_all(heir, segments);
    segment_slots_restored(heir->core);
    if (r == 0)
        r = for_all(heir, before);
    if (r == 0)
        link_ranges(heir->core);
    if (r == 0)
        r = for_all(heir, blocks);
    if (r == 0)
        r = add_leases(heir);
    if (r == 0)
        r = for_all(heir, behind);
    return r == 0 ? add_requests(heir) : r;
}

/* --- what cannot be inherited --- */

/* Frees all that is taken of a segment, in whatever list of a block it is. */
static void empty_segment(struct segment *segment) {
    struct heap_range *range = segment->span->lowest;

    while (range != NULL) {
        if (range->free) {
            range = range->upper;
            continue;
        }
        list_remove(&range->user_link);
        heap_give(range);
        range = segment->span->lowest;
    }
    segment_settle(segment);
}

/* Ends all that was made before the inheriting failed, except segments: core_free() drops these. The records of the
 * core's history, and the estate, do not learn of it. */
static void undo(struct heir *heir) {
    struct core *core = heir->core;
    struct estate_found found = {0};
    uint64_t bytes;

    core->recorder.file = NULL;
    list_for_each_entry(const struct session, session, &core->sessions, link) {
        while (!list_is_empty(&session->requests))
            request_free(container_of(session->requests.next, struct request, session_link));
    }
    for (size_t slot = 0; slot < core->segment_slots; slot++)
        if (core->segments[slot] != NULL && core->segments[slot]->span != NULL)
            empty_segment(core->segments[slot]);
    while (estate_next(heir->estate, KEPT_BLOCK, found.record, &found)) {
        struct block *block = object_of(heir, found.record, KEPT_BLOCK);
        if (block != NULL && list_is_empty(&block->leases) && block->n_parcels == 0)
            block_discard(core, block);
    }
    parcels_close(core, 0, NULL, &bytes);
    list_for_each_entry_safe(struct session, session, &core->sessions, link) {
        if (session->state == SESSION_ACTIVE)
            core_session_close(session, 0);
        else
            core_session_gone(session, 0);
    }
    list_for_each_entry_safe(struct tenant, tenant, &core->tenants, link) {
        tenant_drop_if_unused(tenant);
    }
    found = (struct estate_found){0};
    while (estate_next(heir->estate, 0, found.record, &found))
        estate_bind(heir->estate, found.record, NULL);
}

/* --- all --- */

int core_keep(struct core *core, struct estate *estate) {
    int r = estate_add(estate, KEPT_NUMBERS, core, &core->record);

    if (r < 0)
        return r;
    estate_end_step(estate);
    core->estate = estate;
    return 0;
}

/* --- what is lost --- */

static bool is_lost(const struct heir *heir, uint32_t group) {
    for (size_t i = 0; i < heir->n_lost; i++)
        if (heir->lost[i] == group)
            return true;
    return false;
}

static int lose_group(struct heir *heir, uint32_t group) {
    if (group == 0 || is_lost(heir, group))
        return 0;
    uint32_t *lost = array_room(heir->lost, heir->n_lost, &heir->lost_room, sizeof *lost);
    if (lost == NULL)
        return -ENOMEM;
    heir->lost = lost;
    lost[heir->n_lost++] = group;
    return 0;
}

/* Notes whose records are not inherited, and changes nothing: a call that fails may be made again. */
static int find_losses(struct heir *heir) {
    struct estate_found found = {0};
    int r = 0;

    while (r == 0 && estate_next(heir->estate, 0, found.record, &found)) {
        if (found.is_unknown && (found.holds || found.is_damaged))
            r = refuse(heir, "a newer daemon kept what this one does not know");
        else if (found.is_damaged && !found.is_confined)
            r = refuse(heir, "a record is damaged, and it is not known whose it was");
        else if (found.is_damaged && (r = lose_group(heir, found.groups[0])) == 0)
            r = lose_group(heir, found.groups[1]);
    }
    return r;
}

/* Leaves whole records of known kinds, of users of whom no record is damaged. */
static void remove_losses(struct heir *heir) {
    struct estate_found found = {0};

    while (estate_next(heir->estate, 0, found.record, &found)) {
        bool is_of_lost = !found.is_damaged && !found.is_unknown && is_lost(heir, found.groups[0]);
        heir->loss.n_damaged += found.is_damaged;
        heir->loss.n_segments += is_of_lost && found.kind == KEPT_SEGMENT;
        heir->loss.n_sessions += is_of_lost && found.kind == KEPT_SESSION;
        if (found.is_unknown || found.is_damaged || is_of_lost)
            estate_remove(heir->estate, found.record);
    }
}

static void mark_all(struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++) {
        pool_note_peaks(core->pools[i]);
        pool_mark_ready(core->pools[i]);
    }
}

/* A daemon's tables are no longer than twice the most that it had at once, of which each had a record. */
static size_t table_max(const struct estate *estate, enum kept_kind kind) {
    size_t most = 2 * estate_room(estate, kind);
    return most < 64 ? 64 : most;
}

/* The configuration may be another one than the predecessor's. */
static void refuse_impossible(struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++)
        pool_refuse(core->pools[i], pool_segment_max(core->pools[i]) + 1, PROTO_E_TOO_LARGE);
    list_for_each_entry(struct session, session, &core->sessions, link) {
        session_refuse_forbidden(session);
    }
}

/* Changes what is to be otherwise than with the predecessor. */
static void change_inherited(struct core *core) {
    list_for_each_entry(struct session, session, &core->sessions, link) {
        /* Its page may tell of questions of a step that did not end, one for each pool: an answer to one is no lie. */
        session->n_questions += core->n_pools;
        kept_change(core, session->record);
    }
    for (size_t slot = 0; slot < core->segment_slots; slot++) {
        struct segment *segment = core->segments[slot];
        if (segment == NULL || !segment->is_orphan)
            continue;
        segment->label.stored[0] = '\0';
        kept_change(core, segment->record);
    }
}

int core_inherit(struct core *core, struct estate *estate, const struct inherit_shell *shell,
                 const char **ret_reason) {
    struct heir heir = {
        .core = core,
        .estate = estate,
        .shell = shell,
        .slots_max = table_max(estate, KEPT_SEGMENT),
        .leases_max = table_max(estate, KEPT_LEASE),
    };

    *ret_reason = NULL;
    if (estate_is_empty(estate))
        return core_keep(core, estate);
    int r = find_losses(&heir);
    if (r == 0)
        remove_losses(&heir);
    free(heir.lost);
    if (heir.loss.n_damaged > 0 && shell->tell_loss != NULL)
        shell->tell_loss(shell->argument, &heir.loss);
    if (r == 0)
        r = build(&heir);
    if (r == 0)
        mark_all(core);
    if (r == 0 && !core_is_valid(core))
        r = refuse(&heir, "its records contradict each other");
    *ret_reason = heir.reason;
    if (r < 0) {
        undo(&heir);
        return r;
    }
    core->estate = estate;
    change_inherited(core);
    refuse_impossible(core);
    return 0;
}
