/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_NAME_H
#define CLIENT_API_NAME_H
/*
 * Parts that the calls for names (<gpupool/names.h>) share.
 *
 * A name that was opened with GPUPOOL_NAME_CAN_SLEEP has buffers at addresses of their own, each an own row
 * (client/session/own_row.h). It is awake or asleep:
 *
 *     gpupool_open_name ──▶ AWAKE ──gpupool_sleep_name──▶ ASLEEP ──┐
 *                           ▲  │▲                          │ ▲  │  │ of which the lease of a buffer
 *       gpupool_wake_name ──┘──┘└────gpupool_wake_name─────┘ └──┘  │ did not go back: another call
 *                                                          gpupool_sleep_name
 *
 * Invariants: AWAKE: no buffer is in the table of sleepers (sleeper.h), all are mapped, and all are of the name's
 * generation. ASLEEP: each buffer is in the table, as one of a name. Its lease is of any generation, or has gone back.
 */
#include <gpupool/names.h>
#include <stdbool.h>

#include "proto/proto.h"

struct gpupool_name {
    char text[PROTO_NAME_TEXT_SIZE];
    uint64_t generation, layout;
    uint32_t flags;                       /* that it was published with */
    bool may_write, can_sleep, is_asleep; /* as it was opened */
    size_t count;                         /* of the buffers that are open */
    struct gpupool_buffer buffers[PROTO_NAME_BUFFERS_MAX];
    uint8_t *directory; /* NULL: it has none */
    uint32_t directory_bytes;
};

/* Another generation can take the place of one that is being opened, again and again. */
#define NAME_OPEN_TRIES 64u

/* A request for a name, and how its buffers are to be mapped. */
struct opening {
    struct gpupool_client *client;
    char text[PROTO_NAME_TEXT_SIZE];
    uint64_t generation;
    uint32_t flags; /* PROTO_OPEN_NAME_… */
    bool may_write, can_sleep;
    void *stream;
    uint64_t deadline_ns;
};

/* Asks for a name, and waits as long as the call may. Errors as gpupool_open_name()'s. */
int name_ask(const struct opening *opening, struct proto_named *ret_named);

/* The fence of a named buffer's publisher. */
struct shared_fence name_fence(const struct proto_named *named, uint32_t buffer);

/* Whether an error is that of a generation that another one has taken the place of. */
bool name_is_replaced(int error);

/* INVALID, with its text: the contents of a generation are fixed, and the name is opened for writing. */
int name_check_access(bool may_write, const struct proto_named *named);

/* Begins a call on an opened name whose buffers are to sleep or to wake. INVALID, FORKED. */
int name_enter_opened(struct gpupool_client *client, const char *call, const struct gpupool_name *name,
                      void *stream);

/* Unmaps what the driver unmaps of a name's buffers. */
void name_unmap(struct gpupool_client *client, const struct gpupool_name *name);

/* Segments of leases that went back, of one pool at a time. They are offered to the daemon, so that it can make others
 * of their memory; without memory for their list they are not. Begins as {0}. */
struct offered {
    uint32_t pool;
    uint64_t *ids;
    size_t count;
};

/* Adds segments, and offers those of another pool that are in the list. name_offer() offers the rest, and empties the
 * list. Both keep the error's text. */
void name_add_offered(struct gpupool_client *client, struct offered *offered, uint32_t pool,
                      const uint64_t *ids, uint32_t count);
void name_offer(struct gpupool_client *client, struct offered *offered);

/* Begins a call: the client is there and its daemon knows names, and the text is one. text: room for the wire's
 * text, filled up with NULs. INVALID, VERSION, FORKED, or what the connection broke with. */
int name_enter(struct gpupool_client *client, const char *call, const char *name,
               char text[static PROTO_NAME_TEXT_SIZE]);

#endif
