/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/heir.h"

#include <stdlib.h>

#include "daemon/core/fence.h"
#include "daemon/core/lease.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"

/* They come in the order of their generations. */
static uint64_t generation_of(const void *payload) {
    return ((const struct kept_lease *)payload)->generation;
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
    return left != right ? (left > right) - (left < right) : heir_compare_numbers(a, b);
}

/* Puts leases into the order in which their fences come. Values are compared modulo 2^64, which orders those alone
 * that are near each other; a client may have given any. So each one's distance from one of its word is compared. */
static void sort_by_fences(struct found_records *leases) {
    heir_sort(leases, compare_words);
    const struct found_record *first = leases->list;
    for (size_t i = 0; i < leases->count; i++) {
        struct found_record *found = &leases->list[i];
        if (compare_words(first, found) != 0)
            first = found;
        found->later = (int64_t)(((const struct kept_lease *)found->payload)->fence_value -
                                 ((const struct kept_lease *)first->payload)->fence_value);
    }
    heir_sort(leases, compare_fences);
}

static int add_lease(struct heir *heir, const struct found_record *found) {
    const struct kept_lease *kept = found->payload;
    struct session *session = heir_object(heir, kept->session, KEPT_SESSION);
    struct block *block = heir_object(heir, kept->block, KEPT_BLOCK);
    struct lease *lease;

    if (session == NULL || block == NULL || block->segment->owner->tenant != session->tenant)
        return heir_refuse(heir, "a lease is of a session that is not there");
    if (!list_is_empty(&block->leases) && !block->shared)
        return heir_refuse(heir, "two leases have a block that is not shared");
    if (kept->id > heir->leases_max || kept->generation == 0 ||
        kept->generation > heir->core->leases.next_generation)
        return heir_refuse(heir, "a lease has a name that was never given");
    if (kept->withheld_bytes > block->held_bytes)
        return heir_refuse(heir, "more of a lease was withheld than it has");
    if (kept->is_on_board &&
        (kept->board_fence.slot >= PROTO_BOARD_SLOTS || kept->board_fence.word >= PROTO_BOARD_WORDS))
        return heir_refuse(heir, "a lease has a fence on no board");
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
        return heir_refuse(heir, "two leases have one name");
    if (r == 0)
        heir_bind(heir, found->record, lease, &lease->record);
    return r;
}

static int fence_lease(struct heir *heir, const struct found_record *found) {
    const struct kept_lease *kept = found->payload;
    struct lease *lease = heir_object(heir, found->record, KEPT_LEASE);
    struct fence_queue *queue;

    if (kept->fence_word == 0)
        return 0;
    if (kept->fence_word > PROTO_PAGE_FENCES || lease->session->page == NULL)
        return heir_refuse(heir, "a lease waits for a fence that is not there");
    int r = fence_queue_get(lease->session, lease->block->segment->pool, kept->fence_word - 1, &queue);
    if (r < 0)
        return r;
    if (queue->record == 0) /* what is withheld in it would be lost */
        return heir_refuse(heir, "a lease waits for a fence that is not there");
    lease_restore_fence(lease, queue);
    return 0;
}

int heir_add_leases(struct heir *heir) {
    struct found_records leases = {0};

    int r = heir_find_all(heir, KEPT_LEASE, generation_of, "two leases have one name", &leases);
    for (size_t i = 0; r == 0 && i < leases.count; i++)
        r = add_lease(heir, &leases.list[i]);
    lease_table_restored(&heir->core->leases);
    if (r == 0)
        sort_by_fences(&leases);
    for (size_t i = 0; r == 0 && i < leases.count; i++)
        r = fence_lease(heir, &leases.list[i]);
    free(leases.list);
    return r;
}

/* Before the leases: these find their queues by then. */
int heir_add_fences(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_fences *kept = payload;
    struct session *session = heir_object(heir, kept->session, KEPT_SESSION);
    struct pool *pool = heir_pool(heir, kept->pool);
    struct fence_queue *queue;
    struct tenant_heap *own;

    if (session == NULL || pool == NULL || kept->word >= PROTO_PAGE_FENCES || session->page == NULL)
        return heir_refuse(heir, "fences are of a session that is not there");
    int r = tenant_heap_get(session->tenant, pool, &own);
    if (r == 0)
        r = fence_queue_get(session, pool, kept->word, &queue);
    if (r < 0)
        return r;
    if (queue->record != 0)
        return heir_refuse(heir, "two records are of one thing");
    queue->withholds = kept->withholds != 0;
    queue->withheld_value = kept->withheld_value;
    heir_bind(heir, record, queue, &queue->record);
    return 0;
}
