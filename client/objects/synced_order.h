/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_SYNCED_ORDER_H
#define CLIENT_OBJECTS_SYNCED_ORDER_H
/*
 * Brings streams, or the CPU, behind the uses that a record has (synced_usage.h). A use that is known by a
 * fence is waited for by that. For an open one a fence is left on its stream now. A per-thread default stream
 * of another thread has no name here: for that one the CPU waits for its device.
 */
#include "client/objects/synced_usage.h"

struct gpupool_client;

/* The stream under a handle, as the calling thread means it. */
static inline struct synced_stream synced_stream_of(unsigned device, void *handle) {
    return (struct synced_stream){
        .handle = handle,
        .thread = handle == GPUPOOL_PER_THREAD ? fence_thread_number() : 0,
        .device = device,
    };
}

/* Whether the driver has to be called to bring the stream behind them. */
bool synced_must_order(struct gpupool_client *client, struct synced_usage *usage,
                       const struct synced_stream *by, bool writes);

/* Makes a stream wait for the writer, or for all who use the memory. On failure it may wait for some of them,
 * which does no harm. 0, CAPTURING (the stream, or one of theirs), DRIVER. */
int synced_order(struct gpupool_client *client, struct synced_usage *usage, const struct synced_stream *by,
                 bool writes);

/* Waits on the CPU, and forgets whom it waited for. 0, CAPTURING, DRIVER. */
int synced_wait(struct gpupool_client *client, struct synced_usage *usage, bool writes);

/* Leaves a fence behind a copy. False where that fails: the copy is then noted as an open use, and who waits
 * for it leaves the fence. */
bool synced_leave_fence(struct gpupool_client *client, const struct synced_stream *by,
                        struct fence *ret_fence);

#endif
