/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/offers.h"

#include <stdlib.h>

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
    if (offers->count == offers->capacity) {
        size_t capacity = offers->capacity == 0 ? 64 : offers->capacity * 2;
        struct offer *entries = realloc(offers->entries, capacity * sizeof *entries);
        if (entries == NULL)
            return;
        offers->entries = entries;
        offers->capacity = capacity;
    }
    offers->entries[offers->count++] = (struct offer){pool, segment};
}

static int compare_pools(const void *one, const void *other) {
    const struct offer *a = one, *b = other;

    return (a->pool > b->pool) - (a->pool < b->pool);
}

int offers_send(struct offers *offers, struct session *session) {
    size_t count = offers->count;
    int r = 0;

    offers->count = 0;
    if (count == 0)
        return 0;
    _cleanup_(freep) uint64_t *ids = malloc(count * sizeof *ids);
    if (ids == NULL)
        return error_no_memory();
    qsort(offers->entries, count, sizeof *offers->entries, compare_pools);
    for (size_t from = 0, to; r == 0 && from < count; from = to) {
        uint32_t pool = offers->entries[from].pool;
        for (to = from; to < count && offers->entries[to].pool == pool; to++)
            ids[to - from] = offers->entries[to].segment;
        r = lease_close_offered(session, pool, ids, to - from);
    }
    return r;
}
