/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_SLEEPER_H
#define CLIENT_API_SLEEPER_H
/*
 * The sleeping buffers of a client. A client owns one table of them. A buffer that is not in it is awake. The buffers
 * of a name that sleeps are in it as well (name.h): gpupool_wake_name() takes them out.
 *
 * gpupool_sleep() enters a buffer when its memory is unmapped. gpupool_wake() takes it out when the memory is mapped
 * and the contents are on their way, and gpupool_release() when the buffer ends. Two members of a sleeper say
 * how far a wake came that failed:
 *
 *     has_block   is_mapped
 *     false       false       its lease went back; wake acquires another block
 *     true        false       its lease is the client's, as with GPUPOOL_KEEP_ON_GPU; wake maps it
 *     true        true        a wake could not bring the contents; the next one does that alone
 *
 * A sleeper is found by the name of the buffer's lease. Without a block that is the lease that it had last, whose
 * name no other lease gets: generations are not used again.
 *
 * The lock is a leaf, and guards the table. A sleeper is one thread's at a time, as its buffer is.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "client/include/gpupool/gpupool.h"
#include "proto/proto.h"

#define SLEEPER_BUCKETS 64u

struct gpupool_client;
struct host_copy;

struct sleeper {
    struct list link; /* in its bucket */
    struct proto_lease_name lease;
    enum gpupool_keep keep;
    bool has_block, is_mapped;
    bool is_of_name;        /* without contents of its own; is_mapped is false */
    struct host_copy *copy; /* of the contents; NULL: they are elsewhere, or nowhere */
};

struct sleepers {
    pthread_mutex_t lock;
    atomic_uint count;
    struct list buckets[SLEEPER_BUCKETS];
};

void sleepers_init(struct sleepers *sleepers);

/* Frees the bookkeeping. The memory goes with the client. sleepers_forget(): in a forked child, takes no lock. */
void sleepers_deinit(struct sleepers *sleepers);
void sleepers_forget(struct sleepers *sleepers);

/* The sleeper of a buffer of a name, which has its block still. The caller's; NULL: no memory. */
struct sleeper *sleeper_of_name(struct proto_lease_name lease);

/* Enters a sleeper, or takes it out, which is the caller's then. */
void sleepers_add(struct sleepers *sleepers, struct sleeper *sleeper);
void sleepers_remove(struct sleepers *sleepers, struct sleeper *sleeper);

/* The sleeper that a buffer is; NULL: it is awake. A piece of the cache is no sleeper: its generation is counted by
 * the cache, and may be that of another lease. Takes no lock while no buffer of the client sleeps. */
struct sleeper *sleepers_find(struct sleepers *sleepers, const struct gpupool_buffer *buffer);

/* Has a sleeper go under the name of its new lease. */
void sleepers_rename(struct sleepers *sleepers, struct sleeper *sleeper, struct proto_lease_name lease);

#endif
