/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_SHARED_H
#define CLIENT_API_SHARED_H
/*
 * The buffers of a client that other processes may have, too: its leases on them, with the daemon's name for
 * those that it shared, and the fences of other processes that its streams wait for.
 *
 * A fence is awaited until it is ready. When its process died before, the stream went on, because the daemon
 * completes the words of the dead, and the next call that looks here says so, once: what the stream read is
 * not what that process meant to write.
 *
 * A client owns one set. The lock is a leaf.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "proto/proto.h"

struct gpupool_client;
struct gpupool_token;

#define SHARED_BUCKETS 64u

struct shared_lease {
    struct shared_lease *next; /* in its bucket */
    uint64_t lease, generation;
    bool has_token; /* this client shared it, as so many bytes */
    struct proto_token token;
    uint64_t size_bytes;
};

/* The fence that a token names: the reader waits for it. */
struct shared_fence {
    struct proto_board_fence fence;
    uint64_t session; /* that leaves it, in the daemon's stats; 0: there is none */
};

struct awaited_fence {
    struct awaited_fence *next;
    struct shared_fence fence;
};

struct shared {
    pthread_mutex_t lock;
    struct shared_lease *buckets[SHARED_BUCKETS];
    struct awaited_fence *awaited;
};

void shared_deinit(struct shared *shared);

/* As shared_deinit() in a forked child: takes no lock. */
void shared_forget(struct shared *shared);

/* Memory to note a lease, so that noting it cannot fail once the daemon was asked. NULL, with the error text
 * set, where there is none. Freed by free(), unless shared_note() takes it. */
struct shared_lease *shared_reserve(void);

static inline void shared_unreservep(struct shared_lease **memory) {
    free(*memory);
}

/* Notes a lease, with its token and the size that the daemon tells readers, or without one (NULL). Takes the
 * memory, unless the lease is noted already. */
void shared_note(struct shared *shared, struct shared_lease **memory, const struct proto_lease_name *lease,
                 uint64_t size_bytes, const struct proto_token *token);

/* The token of a lease that this client shared before, as so many bytes. */
bool shared_find_token(struct shared *shared, uint64_t lease, uint64_t generation, uint64_t size_bytes,
                       struct proto_token *ret_token);

/* Whether a lease is noted: other processes may have its memory. */
bool shared_is_noted(struct shared *shared, uint64_t lease, uint64_t generation);

/* Forgets a lease, if it is noted. */
void shared_end(struct shared *shared, uint64_t lease, uint64_t generation);

/* Notes a fence that a stream of this process waits for. 0 or NO_MEMORY. */
int shared_await(struct shared *shared, const struct shared_fence *fence);

/* LOST if a process died before a fence that a stream of this one waited for; its other lost fences are not
 * awaited any more either. Else 0. */
int shared_check(struct gpupool_client *client);

/* LOST, with its text. */
int shared_fail(const struct shared_fence *fence);

/* The token of the API from the daemon's and a fence, and back. False: it is no token. */
void token_make(const struct proto_token *name, const struct shared_fence *fence,
                struct gpupool_token *ret_token);
bool token_read(const struct gpupool_token *token, struct proto_token *ret_name,
                struct shared_fence *ret_fence);

#endif
