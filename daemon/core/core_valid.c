/* SPDX-License-Identifier: Apache-2.0 */
/* The validators of what the core itself has: sessions, their sums, and what tenants are charged with. */
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/fence.h"
#include "daemon/core/tenant.h"

static bool session_is_valid(const struct session *session) {
    uint64_t ranges = 0, leased = 0, fenced = 0, pool_bytes[PROTO_POOLS_MAX] = {0},
             shared_bytes[PROTO_POOLS_MAX] = {0}, fenced_bytes[PROTO_POOLS_MAX] = {0};
    uint64_t closing_bytes[PROTO_POOLS_MAX] = {0};
    uint32_t mapped[PROTO_POOLS_MAX] = {0};
    unsigned leases = 0, requests = 0, segments = 0, behind_fences = 0, queued = 0;

    list_for_each(position, &session->leases) {
        const struct lease *lease = container_of(position, struct lease, session_link);
        if (lease->session != session || session->core->leases.slots[lease->id - 1] != lease)
            return false;
        leases++;
        ranges += lease->block->n_ranges;
        if (lease->fence != NULL) {
            fenced += lease->block->held_bytes;
            fenced_bytes[lease->block->segment->pool->id - 1] += lease->block->held_bytes;
            behind_fences++;
            continue;
        }
        leased += lease->block->held_bytes;
        pool_bytes[lease->block->segment->pool->id - 1] += lease->block->held_bytes;
        if (lease->block->shared)
            shared_bytes[lease->block->segment->pool->id - 1] += lease->block->held_bytes;
    }
    list_for_each(position, &session->fenced) {
        const struct fence_queue *queue = container_of(position, struct fence_queue, session_link);
        if (queue->session != session || list_is_empty(&queue->leases) || !fence_queue_is_valid(queue))
            return false;
        list_for_each(lease, &queue->leases) queued++;
    }
    list_for_each(position, &session->requests) requests++;
    for (size_t word = 0; word < session->seen_words; word++)
        for (uint64_t seen = session->seen[word]; seen != 0; seen &= seen - 1) {
            const struct segment *segment =
                session->core->segments[word * 64 + (unsigned)__builtin_ctzll(seen)];
            if (segment == NULL)
                return false;
            mapped[segment->pool->id - 1]++;
            segments++;
            if (!session_was_told(session, segment))
                continue;
            closing_bytes[segment->pool->id - 1] += segment->size_bytes;
            if (segment->state != SEGMENT_CLOSING)
                return false;
        }
    for (size_t word = 0; word < session->seen_words; word++)
        if ((session->told[word] & ~session->seen[word]) != 0)
            return false;
    return leased == session->leased_bytes && fenced == session->fenced_bytes && behind_fences == queued &&
           memcmp(pool_bytes, session->pool_bytes, sizeof pool_bytes) == 0 &&
           memcmp(fenced_bytes, session->pool_fenced_bytes, sizeof fenced_bytes) == 0 &&
           memcmp(shared_bytes, session->shared_bytes, sizeof shared_bytes) == 0 &&
           memcmp(mapped, session->mapped, sizeof mapped) == 0 &&
           memcmp(closing_bytes, session->closing_bytes, sizeof closing_bytes) == 0 &&
           leases == session->n_leases && ranges == session->n_ranges && requests == session->n_requests &&
           segments == session->n_segments && (session->state == SESSION_ACTIVE || requests == 0);
}

/* Whether as many sessions can be asked for the pool's memory as it counts. */
static bool reclaimers_are_valid(const struct core *core, const struct pool *pool) {
    unsigned reclaimers = 0;
    list_for_each(position, &core->sessions) if (session_can_be_asked(
                                                     container_of(position, struct session, link), pool))
        reclaimers++;
    return reclaimers == pool->n_reclaimers;
}

/* Whether as many sessions have seen each segment as it counts. */
static bool mappers_are_valid(const struct core *core) {
    for (size_t slot = 0; slot < core->segment_slots; slot++) {
        unsigned mappers = 0, deaf_mappers = 0;
        list_for_each(position, &core->sessions) {
            const struct session *session = container_of(position, struct session, link);
            if (slot / 64 < session->seen_words && (session->seen[slot / 64] >> slot % 64 & 1)) {
                mappers++;
                deaf_mappers += !session->wants_reclaim || session->state != SESSION_ACTIVE;
            }
        }
        const struct segment *segment = core->segments[slot];
        if (segment == NULL ? mappers != 0
                            : segment->mappers != mappers || segment->deaf_mappers != deaf_mappers)
            return false;
    }
    return true;
}

/* Whether each tenant's quota is the sum of the charges of what it has. */
static bool quotas_are_valid(const struct core *core) {
    list_for_each(position, &core->tenants) {
        const struct tenant *tenant = container_of(position, struct tenant, link);
        uint64_t sums[QUOTA_ITEMS] = {0};
        bool valid = true;

        list_for_each(link, &core->sessions) {
            const struct session *session = container_of(link, struct session, link);
            if (session->tenant != tenant)
                continue;
            valid = valid && session->charge.amount == 1 && session->charge.item == QUOTA_SESSIONS &&
                    charge_add_up(&session->charge, &tenant->quota, sums) &&
                    charge_add_up(&session->replies, &tenant->quota, sums);
            list_for_each(member, &session->leases) {
                const struct lease *lease = container_of(member, struct lease, session_link);
                valid = valid && lease->charge.amount == 1 && lease->charge.item == QUOTA_LEASES &&
                        charge_add_up(&lease->charge, &tenant->quota, sums);
                if (lease->block->leases.next == &lease->block_link) /* once a block */
                    valid = valid && lease->block->charge.amount == lease->block->held_bytes &&
                            lease->block->charge.item == quota_item_of_pool(lease->block->segment->pool) &&
                            charge_add_up(&lease->block->charge, &tenant->quota, sums);
            }
            list_for_each(member, &session->requests) {
                const struct request *request = container_of(member, struct request, session_link);
                valid = valid && request->charge.amount == (request->state == REQUEST_WAITING) &&
                        charge_add_up(&request->charge, &tenant->quota, sums);
            }
        }
        unsigned n_undelivered = 0;
        list_for_each(link, &tenant->undelivered) {
            const struct undelivered *undelivered = container_of(link, struct undelivered, link);
            valid = valid && undelivered->tenant == tenant && undelivered->charge.item == QUOTA_REPLIES &&
                    charge_add_up(&undelivered->charge, &tenant->quota, sums);
            n_undelivered++;
        }
        valid = valid && n_undelivered == tenant->n_undelivered;
        for (size_t slot = 0; slot < core->segment_slots; slot++) {
            const struct segment *segment = core->segments[slot];
            if (segment != NULL && segment->charge.quota == &tenant->quota)
                valid = valid && segment->charge.amount == segment->size_bytes &&
                        segment->state == SEGMENT_CLOSING &&
                        charge_add_up(&segment->charge, &tenant->quota, sums);
        }
        if (!valid || memcmp(sums, tenant->quota.used, sizeof sums) != 0)
            return false;
    }
    return true;
}

bool core_is_valid(const struct core *core) {
    uint64_t session_leases = 0, pool_leases = 0;
    unsigned sessions = 0;

    for (unsigned i = 0; i < core->n_pools; i++) {
        if (core->pools[i]->id != i + 1 || !pool_is_valid(core->pools[i]) ||
            !reclaimers_are_valid(core, core->pools[i]))
            return false;
        pool_leases += core->pools[i]->n_leases;
    }
    list_for_each(position, &core->sessions) {
        const struct session *session = container_of(position, struct session, link);
        if (!session_is_valid(session))
            return false;
        session_leases += session->n_leases;
        sessions++;
    }
    return sessions == core->n_sessions && session_leases == pool_leases &&
           session_leases == core->leases.used && mappers_are_valid(core) && quotas_are_valid(core);
}
