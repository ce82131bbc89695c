/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_CLIENT_H
#define CLIENT_API_CLIENT_H
/*
 * A client: what gpupool_open() makes. It owns a session, a cache, and what the public calls add to them. All
 * of it is there from open to close and none is shared with other clients of the process.
 *
 * Locks: the joins' or the requests', then the session's (session.h). Those of the recorded streams and of the sleepers are leaves.
 * The caller's threads may be in any call at once; close is alone.
 */
#include <stdatomic.h>
#include <stdint.h>

#include "client/api/join.h"
#include "client/api/options.h"
#include "client/api/recorded.h"
#include "client/api/requests.h"
#include "client/api/shared.h"
#include "client/api/sleeper.h"
#include "client/cache/cache.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/session.h"

struct gpupool_client;

/* State that an object of the library keeps with a client, from the first use of the object until the client
 * closes. The object makes it, so that a program which does not use the object links nothing of it. */
struct client_attachment {
    /* Ends and frees it. No call is under way. is_child: in a forked child, which has none of the threads,
     * and whose locks are the parent's. */
    void (*end)(struct client_attachment *attachment, bool is_child);
    struct client_attachment *next;
};

/* The client's attachment with this end(); NULL: there is none. Thread-safe, waits for nothing. */
struct client_attachment *client_attachment_of(const struct gpupool_client *client,
                                               void (*end)(struct client_attachment *attachment,
                                                           bool is_child));

/* Attaches it, unless another thread was quicker with one of its kind. Returns the one that the client has.
 */
struct client_attachment *client_attach(struct gpupool_client *client, struct client_attachment *attachment);

struct gpupool_client {
    struct cache cache; /* first: a hit compares its address with the owner of the thread's cache */
    struct session session;
    struct joins joins;
    struct recorded recorded;
    struct shared shared;
    struct sleepers sleepers;
    uint64_t alloc_timeout_ns;
    char *socket_path;
    struct copy_options copying;
    _Atomic(struct client_attachment *) attachments; /* one of each kind */
    pthread_mutex_t publishing; /* over the parts of a directory and the publication that has it */
    bool has_no_thread;                          /* GPUPOOL_OPEN_NO_THREAD */
    struct requests requests;
    struct list link; /* among the open ones (farewell.h) */
};

/* The default client, for callers that have no place to keep one: gpupool_default() opens it, with the
 * options that the environment gives, one for a process. It closes by gpupool_close(), else with the process.
 * NULL: none is open, as in a forked child, which opens one of its own. */
extern _Atomic(struct gpupool_client *) client_default;

/* Begins every call: INVALID for no client, FORKED in a child. */
static inline int client_enter(const struct gpupool_client *client) {
    return client == NULL ? error_set(GPUPOOL_E_INVALID, "no client")
                          : fork_guard_check(&client->session.guard);
}

/* Whether client_enter would surely return 0: for fast paths, which leave what is rare to it. */
static inline bool client_may_hit(const struct gpupool_client *client) {
    return __builtin_expect(client != NULL, 1) && fork_guard_is_at_home(&client->session.guard);
}

/* The client that a stream heap's memory is of. */
static inline struct gpupool_client *client_of(const struct stream_heap *stream_heap) {
    return container_of(stream_heap->owner, struct gpupool_client, cache);
}

/* As gpupool_stream_synchronize(), which also says what became of other processes' work: for the library's
 * own waits, whose callers are to hear of nothing else. */
int client_synchronize(struct gpupool_client *client, int device, void *stream);

/* Begins a call that takes a stream of a device of this process: as client_enter() and devices_need_device().
 */
int client_enter_device(struct gpupool_client *client, int device, const struct gpu **ret_gpu);

/* As client_enter_device(), for calls that make something on a device or move bytes: also refuses one that
 * the daemon does not serve. Asks the daemon for its pools, until the device is known to be served. Where it
 * does not answer, the device passes: a client whose daemon is gone can still copy its buffers away. 0,
 * INVALID, FORKED, NO_GPU, DRIVER. */
int client_enter_served(struct gpupool_client *client, int device, const struct gpu **ret_gpu);

/* The host pool for memory that is copied to and from a device of this process: that of its NUMA node, where
 * the system says it and the daemon has one, else of the node where the calling thread runs, else the first.
 * An ordinal that is no device has no node. 0, NO_POOL, or what the connection says. */
int client_host_pool_near(struct gpupool_client *client, unsigned device, uint32_t *ret_pool);

/* Prepares host memory for gpupool_open(): of the pool near the calling thread's current device, or, where
 * there is none, of the pool near the calling thread. 0, or what gpupool_prepare() says. */
int client_prepare_host(struct gpupool_client *client, uint64_t bytes);

#endif
