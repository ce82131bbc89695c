/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_SYNCED_MEMORY_H
#define CLIENT_OBJECTS_SYNCED_MEMORY_H
/*
 * The memory of one side of a synchronised array, with the record of who uses it. It is the pool's, on loan,
 * or the user's, or there is none; zeroed is the last. The array owns one of each side.
 */
#include "client/include/gpupool/synced.h"
#include "client/objects/synced_state.h"
#include "client/objects/synced_usage.h"

struct synced_memory {
    void *data;
    uint64_t capacity_bytes;
    enum gpupool_owner owner;
    struct gpupool_buffer buffer; /* of the pool's */
    struct synced_usage usage;
};

/* Gives the memory back, on a stream that is brought behind all its uses; by NULL: it is not in use any more.
 * On failure it is still there. 0, CAPTURING, DRIVER, … */
int memory_drop(struct gpupool_client *client, struct synced_memory *memory, const struct synced_stream *by);

/* Makes sure that there are size_bytes. Memory that is too small is dropped, on the stream. New memory is not
 * in use. 0, what memory_drop() and gpupool_acquire() say. */
int memory_need(struct gpupool_client *client, struct synced_memory *memory, enum synced_side side,
                uint64_t size_bytes, const struct synced_stream *by);

/* Whether some of the memory at data is the pool's, on loan here. */
bool memory_overlaps(const struct synced_memory *memory, const void *data, uint64_t size_bytes);

/* The user's takes the place of what is there, once that is dropped. */
int memory_adopt(struct gpupool_client *client, struct synced_memory *memory, void *data, uint64_t size_bytes,
                 const struct synced_stream *by);

/* Frees bookkeeping. */
void memory_deinit(struct synced_memory *memory);

#endif
