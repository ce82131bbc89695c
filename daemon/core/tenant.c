/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/tenant.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/core/account.h"
#include "daemon/core/kept.h"
#include "daemon/core/policy.h"
#include "daemon/core/scope.h"
#include "daemon/core/segment.h"

struct tenant *tenant_find(struct core *core, struct tenant_id id) {
    list_for_each_entry(struct tenant, tenant, &core->tenants, link) {
        if (tenant_id_is(tenant->id, id))
            return tenant;
    }
    return NULL;
}

int tenant_get(struct core *core, struct tenant_id id, struct tenant **ret_tenant) {
    struct tenant *tenant = tenant_find(core, id);
    if (tenant != NULL) {
        *ret_tenant = tenant;
        return 0;
    }
    struct scope *scope = scope_find(core, id.scope);
    if (scope == NULL && id.scope != SCOPE_ORDINARY)
        return -ESRCH;
    tenant = calloc(1, sizeof *tenant);
    if (tenant == NULL)
        return -ENOMEM;
    tenant->core = core;
    tenant->id = id;
    tenant->scope = scope;
    quota_init(&tenant->quota);
    list_init(&tenant->members);
    list_init(&tenant->heaps);
    list_init(&tenant->undelivered);
    if (account_join(tenant) < 0) {
        free(tenant);
        return -ENOMEM;
    }
    scope_join(scope);
    list_append(&core->tenants, &tenant->link);
    *ret_tenant = tenant;
    return 0;
}

void tenant_drop_if_unused(struct tenant *tenant) {
    if (tenant->sessions > 0 || tenant->n_undelivered > 0)
        return;
    list_for_each_entry(struct tenant_heap, heap, &tenant->heaps, tenant_link) {
        if (heap->segments > 0)
            return;
    }
    list_for_each_entry_safe(struct tenant_heap, heap, &tenant->heaps, tenant_link) {
        list_remove(&heap->tenant_link);
        list_remove(&heap->pool_link);
        if (heap->pool->growth.demand == heap)
            heap->pool->growth.demand = NULL;
        list_remove(&heap->pressed_link);
        heap_deinit(&heap->heap);
        free(heap);
    }
    account_leave(tenant);
    quota_deinit(&tenant->quota);
    list_remove(&tenant->link);
    scope_leave(tenant->scope);
    free(tenant);
}

struct tenant_heap *tenant_heap_find(struct tenant *tenant, struct pool *pool) {
    list_for_each_entry(struct tenant_heap, heap, &tenant->heaps, tenant_link) {
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
        list_init(&heap->shared);
        list_init(&heap->deaf);
        list_init(&heap->fenced);
        list_init(&heap->waiting.requests);
        list_init(&heap->held.requests);
        list_init(&heap->waiting_link);
        list_init(&heap->pressed_link);
        list_append(&tenant->heaps, &heap->tenant_link);
        list_append(&pool->heaps, &heap->pool_link);
    }
    *ret_heap = heap;
    return 0;
}

uint64_t tenant_bytes(const struct tenant *tenant, const struct pool *pool) {
    const struct quota *quota = tenant->account != NULL ? &tenant->account->quota : &tenant->quota;
    return quota->used[quota_item_of_pool(pool->id)];
}

int tenant_adopt(struct tenant *tenant, struct segment *segment) {
    struct tenant_heap *heap;

    assert(segment->state == SEGMENT_UNASSIGNED);
    int r = tenant_heap_get(tenant, segment->pool, &heap);
    if (r < 0)
        return r;
    r = segment_reserve_owner(segment, heap);
    if (r < 0)
        return r;
    r = heap_add_span(&heap->heap, segment->size_bytes, segment, &segment->span);
    if (r < 0) {
        segment_drop_owner(segment, heap);
        return r;
    }
    heap->segments++;
    segment->owner = heap;
    segment->state = SEGMENT_ASSIGNED;
    kept_change(segment->pool->core, segment->record);
    if (segment->pool->takes_descriptors)
        charge_force(&segment->own_charge, &tenant->quota, QUOTA_SEGMENTS, 1);
    segment->pool->unassigned_bytes -= segment->size_bytes;
    segment_settle(segment);
    return 0;
}

void tenant_apply_policy(struct tenant *tenant, const struct peer *joining) {
    const struct policy *policy = tenant->core->policy;
    uint64_t *limits = tenant->quota.limits;

    policy_limits_begin(limits);
    if (policy != NULL && policy->has_group_rules)
        list_for_each_entry(const struct session, session, &tenant->members, tenant_link) {
            policy_limits_add_peer(policy, &session->peer, limits);
        }
    if (joining != NULL)
        policy_limits_add_peer(policy, joining, limits);
    policy_limits_end(policy, tenant->id.uid, limits);
    for (unsigned item = 0; tenant->scope != NULL && item < QUOTA_ITEMS; item++)
        if (tenant->scope->terms.limits[item] != POLICY_UNSET) /* said of this place, and not of all */
            limits[item] = tenant->scope->terms.limits[item];
    account_apply_policy(tenant, joining);
    list_for_each_entry(struct tenant_heap, heap, &tenant->heaps, tenant_link) {
        heap->held.least_bytes = 0;
        heap->waiting.tried = heap->waiting.weighed = heap->held.tried = 0;
        heap->pool->is_plan_due = true;
    }
}

void tenant_note_refusal(struct tenant *tenant) {
    tenant->quota.n_refusals++;
    if (tenant->scope != NULL)
        tenant->scope->n_refusals++;
}

bool tenant_may_take(const struct tenant *tenant, const struct pool *pool, uint64_t size_bytes) {
    return heap_round_up(size_bytes) <= quota_left(&tenant->quota, quota_item_of_pool(pool->id));
}

bool tenant_may_ever_take(const struct tenant *tenant, const struct pool *pool, uint64_t size_bytes) {
    return heap_round_up(size_bytes) <= quota_limit(&tenant->quota, quota_item_of_pool(pool->id));
}

void tenant_disown(struct segment *segment) {
    assert(segment->state == SEGMENT_ASSIGNED && segment->span->taken_bytes == 0);
    struct tenant_heap *owner = segment->owner;
    list_for_each_entry(struct request, request, &segment->pool->waiters.overdue, overdue_link) {
        if (request->target == segment)
            request->target = NULL;
    }
    heap_remove_span(segment->span);
    charge_free(&segment->own_charge);
    segment->span = NULL;
    segment->owner = NULL;
    segment->state = SEGMENT_UNASSIGNED;
    kept_change(segment->pool->core, segment->record);
    segment->pool->unassigned_bytes += segment->size_bytes;
    segment_settle(segment);
    segment_drop_owner(segment, owner);
    owner->segments--;
    tenant_drop_if_unused(owner->tenant);
}
