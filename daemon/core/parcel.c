/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/parcel.h"

#include <assert.h>
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/core/kept.h"
#include "daemon/core/lease.h"
#include "daemon/core/recorder.h"
#include "daemon/core/tenant.h"

#define ROOM_AT_FIRST 64u

/* Tokens are random, so glibc's balanced tree needs no secret of its own to stay balanced. */
static int parcel_compare_tokens(const void *a, const void *b) {
    const struct parcel *left = a, *right = b;
    return memcmp(left->token.bytes, right->token.bytes, sizeof left->token.bytes);
}

static struct tenant *parcel_tenant(const struct parcel *parcel) {
    return parcel->block->segment->owner->tenant;
}

/* --- the heap by deadline --- */

static void put(struct parcel_table *table, size_t place, struct parcel *parcel) {
    table->entries[place] = parcel;
    parcel->place = place;
}

/* Moves a parcel from its place towards the first, as far as it is due before those there. */
static void move_up(struct parcel_table *table, struct parcel *parcel) {
    size_t place = parcel->place;

    while (place > 0 && table->entries[(place - 1) / 2]->deadline_ns > parcel->deadline_ns) {
        put(table, place, table->entries[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(table, place, parcel);
}

static void move_down(struct parcel_table *table, struct parcel *parcel) {
    size_t place = parcel->place;

    for (;;) {
        size_t child = 2 * place + 1;
        if (child + 1 < table->count &&
            table->entries[child + 1]->deadline_ns < table->entries[child]->deadline_ns)
            child++;
        if (child >= table->count || table->entries[child]->deadline_ns >= parcel->deadline_ns)
            break;
        put(table, place, table->entries[child]);
        place = child;
    }
    put(table, place, parcel);
}

static int reserve(struct parcel_table *table) {
    if (table->count < table->room)
        return 0;
    size_t room = table->room == 0 ? ROOM_AT_FIRST : 2 * table->room;
    struct parcel **entries = realloc(table->entries, room * sizeof(struct parcel *));
    if (entries == NULL)
        return -ENOMEM;
    table->entries = entries;
    table->room = room;
    return 0;
}

static void insert(struct parcel_table *table, struct parcel *parcel) {
    parcel->place = table->count++;
    move_up(table, parcel);
}

static void extract(struct parcel_table *table, const struct parcel *parcel) {
    struct parcel *last = table->entries[--table->count];

    if (last == parcel)
        return;
    put(table, parcel->place, last);
    move_up(table, last);
    move_down(table, last);
}

/* --- parcels --- */

/* Makes a parcel as wanted, which its token finds, and which holds its block. kind: of its record; KEPT_KINDS: the
 * caller binds one. It is not in the heap yet. */
static int make(struct core *core, const struct parcel *wanted, enum kept_kind kind,
                struct parcel **ret_parcel) {
    struct parcel_table *table = &core->parcels;
    struct tenant *tenant = parcel_tenant(wanted);

    if (reserve(table) < 0)
        return -ENOMEM;
    _cleanup_(freep) struct parcel *parcel = malloc(sizeof *parcel);
    if (parcel == NULL)
        return -ENOMEM;
    *parcel = *wanted;
    list_init(&parcel->held_link);
    list_init(&parcel->named_link);
    if (kind != KEPT_KINDS && kept_add(core, kind, parcel, &parcel->record) < 0)
        return -ENOMEM;
    struct parcel **found = tsearch(parcel, &table->by_token, parcel_compare_tokens);
    if (found == NULL || *found != parcel) {
        kept_end(core, &parcel->record);
        return found == NULL ? -ENOMEM : -EBADMSG;
    }
    charge_force(&parcel->charge, &tenant->quota, QUOTA_LEASES, 1);
    block_hold(parcel);
    tenant->n_parcels++;
    *ret_parcel = take_ptr(&parcel);
    return 0;
}

/* The object that holds the parcel has it. */
static void join_holder(struct parcel_table *table, struct parcel *parcel) {
    if (parcel->edition != NULL)
        parcel->edition->parcels[parcel->edition->n_parcels++] = parcel;
    else
        parcel->channel->parcel = parcel;
    table->n_named++;
}

int parcel_open(struct session *session, struct block *block, const struct proto_token *token,
                const struct proto_send *send, uint64_t now_ns) {
    struct core *core = session->core;
    bool is_held = (send->flags & PROTO_SEND_HELD) != 0;
    const struct parcel wanted = {
        .block = block,
        .token = *token,
        .takers = send->takers,
        .sent_ns = now_ns,
        .lifetime_ns = send->lifetime_ns,
        .deadline_ns = is_held ? NS_FOREVER : clock_deadline_ns(now_ns, send->lifetime_ns),
        .sender = session->id,
        .pid = session->peer.pid,
    };
    struct parcel *parcel;

    assert(session->tenant == block->segment->owner->tenant && send->takers > 0);
    int r = make(core, &wanted, KEPT_PARCEL, &parcel);
    if (r < 0)
        return r;
    if (is_held)
        list_append(&session->held, &parcel->held_link);
    insert(&core->parcels, parcel);
    record(core, &(struct recorded){.kind = PROTO_RECORD_SEND,
                                    .pool = block->segment->pool,
                                    .session = session,
                                    .bytes = block->held_bytes});
    return 0;
}

/* Makes the parcel of a holder, which is in wanted. It has no deadline, and its takers are not counted. kind: as in make(). */
static int open_held(struct core *core, struct parcel wanted, enum kept_kind kind) {
    struct parcel *parcel;

    wanted.takers = UINT32_MAX;
    wanted.deadline_ns = NS_FOREVER;

    int r = make(core, &wanted, kind, &parcel);
    if (r < 0)
        return r;
    join_holder(&core->parcels, parcel);
    insert(&core->parcels, parcel);
    return 0;
}

int parcel_open_part(struct edition *edition, struct session *session, struct block *block,
                     const struct proto_token *token, const struct proto_publish_buffer *buffer,
                     uint64_t now_ns) {
    const struct parcel wanted = {
        .block = block,
        .token = *token,
        .sent_ns = now_ns,
        .sender = session->id,
        .pid = session->peer.pid,
        .edition = edition,
        .fence = buffer->fence,
        .has_fence = buffer->has_fence != 0,
    };

    return open_held(session->core, wanted, KEPT_NAMED);
}

int parcel_open_ring(struct channel *channel, struct session *session, struct block *block,
                     const struct proto_token *token, uint64_t now_ns) {
    const struct parcel wanted = {
        .block = block,
        .token = *token,
        .sent_ns = now_ns,
        .sender = channel->maker,
        .pid = session != NULL ? session->peer.pid : 0,
        .channel = channel,
    };

    return open_held(channel->core, wanted, KEPT_KINDS);
}

int parcel_restore(struct core *core, const struct parcel *wanted, struct session *sender,
                   struct parcel **ret_parcel) {
    int r = make(core, wanted, KEPT_KINDS, ret_parcel);

    if (r < 0)
        return r;
    if (wanted->edition != NULL)
        join_holder(&core->parcels, *ret_parcel);
    if (sender != NULL)
        list_append(&sender->held, &(*ret_parcel)->held_link);
    insert(&core->parcels, *ret_parcel);
    return 0;
}

struct parcel *parcel_find(const struct core *core, const struct proto_token *token) {
    struct parcel key = {.token = *token};
    struct parcel **found = tfind(&key, &core->parcels.by_token, parcel_compare_tokens);
    return found == NULL ? NULL : *found;
}

void parcel_take(struct core *core, struct parcel *parcel) {
    if (parcel_is_held(parcel))
        return;
    kept_change(core, parcel->record);
    if (--parcel->takers == 0)
        parcel_close(core, parcel);
}

/* Frees a parcel that is not in the heap any more. */
static void parcel_free(struct core *core, struct parcel *parcel) {
    if (!parcel_is_held(parcel))
        record(core, &(struct recorded){.kind = PROTO_RECORD_ARRIVE,
                                        .pool = parcel->block->segment->pool,
                                        .bytes = parcel->block->held_bytes,
                                        .value = parcel->sender});
    core->parcels.n_named -= parcel_is_held(parcel);
    parcel_tenant(parcel)->n_parcels--;
    list_remove(&parcel->held_link);
    tdelete(parcel, &core->parcels.by_token, parcel_compare_tokens);
    charge_free(&parcel->charge);
    kept_end(core, &parcel->record);
    block_drop(parcel);
    free(parcel);
}

void parcel_close(struct core *core, struct parcel *parcel) {
    extract(&core->parcels, parcel);
    parcel_free(core, parcel);
}

unsigned parcels_close(struct core *core, uint64_t sender, const struct tenant *tenant, uint64_t *ret_bytes) {
    struct parcel_table *table = &core->parcels;
    size_t n_all = table->count, n_kept = 0;

    *ret_bytes = 0;
    for (size_t i = 0; i < n_all; i++) {
        struct parcel *parcel = table->entries[i];
        const struct block *block = parcel->block;
        if (parcel_is_held(parcel) || (sender != 0 && parcel->sender != sender) ||
            (tenant != NULL && parcel_tenant(parcel) != tenant)) {
            put(table, n_kept++, parcel);
            continue;
        }
        *ret_bytes += block->live == 0 && block->n_parcels == 1 ? block->held_bytes : 0;
        parcel_free(core, parcel);
    }
    table->count = n_kept;
    for (size_t i = n_kept / 2; i-- > 0;)
        move_down(table, table->entries[i]);
    return (unsigned)(n_all - n_kept);
}

void parcels_let_go(struct session *session, uint64_t now_ns) {
    while (!list_is_empty(&session->held)) {
        struct parcel *parcel = container_of(session->held.next, struct parcel, held_link);
        list_remove(&parcel->held_link);
        parcel->deadline_ns = clock_deadline_ns(now_ns, parcel->lifetime_ns);
        kept_change(session->core, parcel->record);
        move_up(&session->core->parcels, parcel);
    }
}

void parcels_expire(struct core *core, uint64_t now_ns) {
    for (unsigned n = 0; n < PARCELS_CLOSED_MAX && parcels_next_ns(core) <= now_ns; n++)
        parcel_close(core, core->parcels.entries[0]);
}

uint64_t parcels_next_ns(const struct core *core) {
    return core->parcels.count == 0 ? NS_FOREVER : core->parcels.entries[0]->deadline_ns;
}

bool parcels_are_valid(const struct core *core) {
    const struct parcel_table *table = &core->parcels;
    uint64_t in_pools = 0, of_tenants = 0;
    size_t n_named = 0;

    for (unsigned i = 0; i < core->n_pools; i++)
        in_pools += core->pools[i]->n_parcels;
    list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
        of_tenants += tenant->n_parcels;
    }
    for (size_t i = 0; i < table->count; i++) {
        const struct parcel *parcel = table->entries[i];
        if (parcel->place != i || parcel->takers == 0 || !parcel->block->shared ||
            parcel->block->n_parcels == 0 || parcel_find(core, &parcel->token) != parcel ||
            parcel->charge.item != QUOTA_LEASES || parcel->charge.amount != 1 ||
            parcel->charge.quota != &parcel_tenant(parcel)->quota ||
            (!parcel_is_held(parcel) &&
             list_is_empty(&parcel->held_link) == (parcel->deadline_ns == NS_FOREVER)) ||
            (parcel_is_held(parcel) &&
             (!list_is_empty(&parcel->held_link) || parcel->deadline_ns != NS_FOREVER)))
            return false;
        n_named += parcel_is_held(parcel);
        if (i > 0 && table->entries[(i - 1) / 2]->deadline_ns > parcel->deadline_ns)
            return false;
    }
    return in_pools == table->count && of_tenants == table->count && n_named == table->n_named;
}
