/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/offers.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "client/session/error.h"
#include "client/session/lease.h"

void offers_deinit(struct offers *offers) {
    free(offers->entries);
}

/* The parts of a segment come one after the other. */
static bool is_noted(const struct offers *offers, uint32_t pool, uint64_t segment) {
    if (offers->count == 0)
        return false;
    const struct offer *last = &offers->entries[offers->count - 1];
    return last->pool == pool && last->segment == segment;
}

void offers_note(struct offers *offers, uint32_t pool, uint64_t segment) {
    if (offers->count == OFFERS_MAX || is_noted(offers, pool, segment))
        return;
    struct offer *entries = array_room(offers->entries, offers->count, &offers->capacity, sizeof *entries);
    if (entries == NULL)
        return;
    offers->entries = entries;
    offers->entries[offers->count++] = (struct offer){.pool = pool, .segment = segment};
}

static int compare_pools(const void *one, const void *other) {
    const struct offer *a = one, *b = other;

    return (a->pool > b->pool) - (a->pool < b->pool);
}

/* Keeps the entries that are to be offered again; ids: 0 where the segment was closed. */
static void keep_rest(struct offers *offers, const uint64_t *ids) {
    size_t kept = 0;

    for (size_t i = 0; i < offers->count; i++) {
        struct offer offer = offers->entries[i];
        if (ids[i] != 0 && ++offer.tries < OFFERS_TRIES)
            offers->entries[kept++] = offer;
    }
    offers->count = kept;
}

int offers_send(struct offers *offers, struct session *session) {
    size_t count = offers->count;
    int r = 0;

    if (count == 0)
        return 0;
    _cleanup_(freep) uint64_t *ids = malloc(count * sizeof *ids);
    if (ids == NULL)
        return error_no_memory();
    qsort(offers->entries, count, sizeof *offers->entries, compare_pools);
    for (size_t i = 0; i < count; i++)
        ids[i] = offers->entries[i].segment;
    for (size_t from = 0, to; r == 0 && from < count; from = to) {
        uint32_t pool = offers->entries[from].pool;
        for (to = from; to < count && offers->entries[to].pool == pool;)
            to++;
        r = lease_close_offered(session, pool, ids + from, to - from);
    }
    keep_rest(offers, ids);
    return r;
}
