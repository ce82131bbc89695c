/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/tenant.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/units.h"
#include "daemon/core/core.h"
#include "daemon/core/fence.h"
#include "daemon/core/policy.h"
#include "daemon/core/pool.h"
#include "daemon/core/request.h"
#include "daemon/core/segment.h"

struct tenant *tenant_find(struct core *core, uid_t uid) {
    list_for_each(position, &core->tenants) {
        struct tenant *tenant = container_of(position, struct tenant, link);
        if (tenant->uid == uid)
            return tenant;
    }
    return NULL;
}

int tenant_get(struct core *core, uid_t uid, struct tenant **ret_tenant) {
    struct tenant *tenant = tenant_find(core, uid);
    if (tenant != NULL) {
        *ret_tenant = tenant;
        return 0;
    }
    tenant = calloc(1, sizeof *tenant);
    if (tenant == NULL)
        return -ENOMEM;
    tenant->core = core;
    tenant->uid = uid;
    quota_init(&tenant->quota);
    list_init(&tenant->heaps);
    list_init(&tenant->undelivered);
    list_append(&core->tenants, &tenant->link);
    *ret_tenant = tenant;
    return 0;
}

void tenant_drop_if_unused(struct tenant *tenant) {
    if (tenant->sessions > 0 || tenant->n_undelivered > 0)
        return;
    list_for_each(position,
                  &tenant->heaps) if (container_of(position, struct tenant_heap, tenant_link)->segments >
                                      0) return;
    list_for_each_safe(position, &tenant->heaps) {
        struct tenant_heap *heap = container_of(position, struct tenant_heap, tenant_link);
        list_remove(&heap->tenant_link);
        list_remove(&heap->pool_link);
        if (heap->pool->demand == heap)
            heap->pool->demand = NULL;
        list_remove(&heap->pressed_link);
        heap_deinit(&heap->heap);
        free(heap);
    }
    quota_deinit(&tenant->quota);
    list_remove(&tenant->link);
    free(tenant);
}

struct tenant_heap *tenant_heap_find(struct tenant *tenant, struct pool *pool) {
    list_for_each(position, &tenant->heaps) {
        struct tenant_heap *heap = container_of(position, struct tenant_heap, tenant_link);
        if (heap->pool == pool)
            return heap;
    }
    return NULL;
}

int tenant_heap_get(struct tenant *tenant, struct pool *pool, struct tenant_heap **ret_heap) {
    struct tenant_heap *heap = tenant_heap_find(tenant, pool);
    if (heap == NULL) {
        heap = calloc(1, sizeof *heap);
        if (heap == NULL)
            return -ENOMEM;
        heap->tenant = tenant;
        heap->pool = pool;
        heap_init(&heap->heap);
        list_init(&heap->fenced);
        wait_queue_init(&heap->waiting);
        wait_queue_init(&heap->held);
        list_init(&heap->waiting_link);
        list_init(&heap->pressed_link);
        list_append(&tenant->heaps, &heap->tenant_link);
        list_append(&pool->heaps, &heap->pool_link);
    }
    *ret_heap = heap;
    return 0;
}

uint64_t tenant_bytes(const struct tenant *tenant, const struct pool *pool) {
    return tenant->quota.used[quota_item_of_pool(pool)];
}

bool tenant_comes_before(const struct tenant_heap *heap, const struct tenant_heap *other) {
    uint64_t bytes = tenant_bytes(heap->tenant, heap->pool),
             other_bytes = tenant_bytes(other->tenant, other->pool);
    if (bytes != other_bytes)
        return bytes < other_bytes;
    return wait_queue_first(&heap->waiting)->number < wait_queue_first(&other->waiting)->number;
}

int tenant_adopt(struct tenant *tenant, struct segment *segment) {
    struct tenant_heap *heap;

    assert(segment->state == SEGMENT_UNASSIGNED);
    int r = tenant_heap_get(tenant, segment->pool, &heap);
    if (r < 0)
        return r;
    r = heap_add_span(&heap->heap, segment->size_bytes, segment, &segment->span);
    if (r < 0)
        return r;
    heap->segments++;
    segment->owner = heap;
    segment->state = SEGMENT_ASSIGNED;
    segment->pool->unassigned_bytes -= segment->size_bytes;
    return 0;
}

void tenant_apply_policy(struct tenant *tenant, const struct peer *joining) {
    const struct policy *policy = tenant->core->policy;
    uint64_t *limits = tenant->quota.limits;

    policy_limits_begin(limits);
    if (policy != NULL && policy->has_group_rules)
        list_for_each(position, &tenant->core->sessions) {
            const struct session *session = container_of(position, struct session, link);
            if (session->tenant == tenant)
                policy_limits_add_peer(policy, &session->peer, limits);
        }
    if (joining != NULL)
        policy_limits_add_peer(policy, joining, limits);
    policy_limits_end(policy, tenant->uid, limits);
    list_for_each(position, &tenant->heaps) container_of(position, struct tenant_heap, tenant_link)
        ->held.least_bytes = 0;
}

bool tenant_may_take(const struct tenant *tenant, const struct pool *pool, uint64_t size_bytes) {
    return heap_round_up(size_bytes) <= quota_left(&tenant->quota, quota_item_of_pool(pool));
}

bool tenant_may_ever_take(const struct tenant *tenant, const struct pool *pool, uint64_t size_bytes) {
    return heap_round_up(size_bytes) <= tenant->quota.limits[quota_item_of_pool(pool)];
}

bool tenant_may_lease(struct tenant *tenant) {
    if (quota_left(&tenant->quota, QUOTA_LEASES) > 0)
        return true;
    list_for_each(position, &tenant->heaps)
        fences_collect_heap(container_of(position, struct tenant_heap, tenant_link));
    if (quota_left(&tenant->quota, QUOTA_LEASES) > 0)
        return true;
    tenant->quota.n_refusals++;
    return false;
}

/* What an item is called in a sentence, and in the configuration. */
static const struct {
    const char *what, *key;
} quota_items[] = {
    [QUOTA_SESSIONS] = {"sessions (those in quarantine included)", "sessions"},
    [QUOTA_LEASES] = {"leases (those behind fences and in quarantine included)", "leases"},
    [QUOTA_WAITING] = {"waiting requests", "waiting"},
    [QUOTA_REPLIES] = {"of replies that its processes have not read", "replies"},
};

/* What the bytes in a pool are called in the configuration. */
static const char *pool_key(const struct pool *pool) {
    return pool->kind == PROTO_POOL_HOST ? "host" : "device";
}

void tenant_explain_quota(const struct tenant *tenant, unsigned item, char *text, size_t size) {
    static const char advice[] = "or have the administrator raise";
    uint64_t used = tenant->quota.used[item], limit = tenant->quota.limits[item];

    if (item >= QUOTA_POOLS) {
        const struct pool *pool = tenant->core->pools[item - QUOTA_POOLS];
        snprintf(
            text, size,
            "QUOTA: user %u has %s of the %s that it may have there (what is behind fences or in quarantine "
            "included): release buffers, %s '%s' of [quota] in the daemon's configuration",
            (unsigned)tenant->uid, BYTES_TEXT(used), BYTES_TEXT(limit), advice, pool_key(pool));
    } else if (item == QUOTA_REPLIES) {
        snprintf(text, size,
                 "QUOTA: user %u has %s %s and may have %s: read them, %s 'replies' of [quota] in the "
                 "daemon's configuration",
                 (unsigned)tenant->uid, BYTES_TEXT(used), quota_items[item].what, BYTES_TEXT(limit), advice);
    } else {
        snprintf(text, size,
                 "QUOTA: user %u has %" PRIu64 " of the %" PRIu64 " %s that it may have: end or release "
                 "some, %s '%s' of [quota] in the daemon's configuration",
                 (unsigned)tenant->uid, used, limit, quota_items[item].what, advice, quota_items[item].key);
    }
}

void tenant_explain_beyond_quota(const struct tenant *tenant, unsigned item, char *text, size_t size) {
    const struct pool *pool = tenant->core->pools[item - QUOTA_POOLS];

    snprintf(text, size,
             "QUOTA: user %u may have %s there in all: ask for less, or have the administrator raise '%s' of "
             "[quota] in the daemon's configuration",
             (unsigned)tenant->uid, BYTES_TEXT(tenant->quota.limits[item]), pool_key(pool));
}

void tenant_disown(struct segment *segment) {
    assert(segment->state == SEGMENT_ASSIGNED && segment->span->taken_bytes == 0);
    struct tenant_heap *owner = segment->owner;
    heap_remove_span(segment->span);
    segment->span = NULL;
    segment->owner = NULL;
    segment->state = SEGMENT_UNASSIGNED;
    segment->pool->unassigned_bytes += segment->size_bytes;
    owner->segments--;
    tenant_drop_if_unused(owner->tenant);
}
