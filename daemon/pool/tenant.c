/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/pool/tenant.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/pool/core.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/segment.h"

int tenant_get(struct core *core, uid_t uid, struct tenant **ret_tenant) {
    list_for_each(position, &core->tenants) {
        struct tenant *tenant = container_of(position, struct tenant, link);
        if (tenant->uid == uid) {
            *ret_tenant = tenant;
            return 0;
        }
    }
    struct tenant *tenant = calloc(1, sizeof *tenant);
    if (tenant == NULL)
        return -ENOMEM;
    tenant->core = core;
    tenant->uid = uid;
    list_init(&tenant->heaps);
    list_append(&core->tenants, &tenant->link);
    *ret_tenant = tenant;
    return 0;
}

void tenant_drop_if_unused(struct tenant *tenant) {
    if (tenant->sessions > 0)
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
        heap_deinit(&heap->heap);
        free(heap);
    }
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

int tenant_adopt(struct tenant *tenant, struct segment *segment) {
    assert(segment->state == SEGMENT_UNASSIGNED);
    struct tenant_heap *heap = tenant_heap_find(tenant, segment->pool);
    if (heap == NULL) {
        heap = calloc(1, sizeof *heap);
        if (heap == NULL)
            return -ENOMEM;
        heap->tenant = tenant;
        heap->pool = segment->pool;
        heap_init(&heap->heap);
        list_init(&heap->fenced);
        list_append(&tenant->heaps, &heap->tenant_link);
        list_append(&segment->pool->heaps, &heap->pool_link);
    }
    int r = heap_add_span(&heap->heap, segment->size_bytes, segment, &segment->span);
    if (r < 0)
        return r;
    heap->segments++;
    segment->owner = heap;
    segment->state = SEGMENT_ASSIGNED;
    segment->pool->unassigned_bytes -= segment->size_bytes;
    return 0;
}

void tenant_disown(struct segment *segment) {
    assert(segment->state == SEGMENT_ASSIGNED && segment_is_idle(segment));
    struct tenant_heap *owner = segment->owner;
    heap_remove_span(segment->span);
    segment->span = NULL;
    segment->owner = NULL;
    segment->state = SEGMENT_UNASSIGNED;
    segment->pool->unassigned_bytes += segment->size_bytes;
    owner->segments--;
    tenant_drop_if_unused(owner->tenant);
}
