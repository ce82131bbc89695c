/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/sleeper.h"

#include <stdlib.h>

#include "base/lock.h"
#include "client/cache/cache.h"

void sleepers_init(struct sleepers *sleepers) {
    pthread_mutex_init(&sleepers->lock, NULL);
    for (unsigned i = 0; i < SLEEPER_BUCKETS; i++)
        list_init(&sleepers->buckets[i]);
}

void sleepers_forget(struct sleepers *sleepers) {
    for (unsigned i = 0; i < SLEEPER_BUCKETS; i++)
        list_for_each_entry_safe(struct sleeper, sleeper, &sleepers->buckets[i], link) {
            list_remove(&sleeper->link);
            free(sleeper->copy);
            free(sleeper);
        }
}

void sleepers_deinit(struct sleepers *sleepers) {
    sleepers_forget(sleepers);
    pthread_mutex_destroy(&sleepers->lock);
}

struct sleeper *sleeper_of_name(struct proto_lease_name lease) {
    struct sleeper *sleeper = calloc(1, sizeof *sleeper);

    if (sleeper == NULL)
        return NULL;
    *sleeper = (struct sleeper){.lease = lease, .has_block = true, .is_of_name = true};
    list_init(&sleeper->link);
    return sleeper;
}

static struct list *bucket_of(struct sleepers *sleepers, uint64_t lease) {
    return &sleepers->buckets[lease % SLEEPER_BUCKETS];
}

void sleepers_add(struct sleepers *sleepers, struct sleeper *sleeper) {
    LOCKED(&sleepers->lock);
    list_append(bucket_of(sleepers, sleeper->lease.lease), &sleeper->link);
    atomic_fetch_add(&sleepers->count, 1);
}

void sleepers_remove(struct sleepers *sleepers, struct sleeper *sleeper) {
    LOCKED(&sleepers->lock);
    list_remove(&sleeper->link);
    atomic_fetch_sub(&sleepers->count, 1);
}

struct sleeper *sleepers_find(struct sleepers *sleepers, const struct gpupool_buffer *buffer) {
    if (atomic_load(&sleepers->count) == 0 || cache_piece(buffer) != NULL)
        return NULL;
    LOCKED(&sleepers->lock);
    list_for_each_entry(struct sleeper, sleeper, bucket_of(sleepers, buffer->lease), link) {
        if (sleeper->lease.lease == buffer->lease && sleeper->lease.generation == buffer->generation)
            return sleeper;
    }
    return NULL;
}

void sleepers_rename(struct sleepers *sleepers, struct sleeper *sleeper, struct proto_lease_name lease) {
    LOCKED(&sleepers->lock);
    list_remove(&sleeper->link);
    sleeper->lease = lease;
    list_append(bucket_of(sleepers, lease.lease), &sleeper->link);
}
