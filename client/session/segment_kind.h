/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_SEGMENT_KIND_H
#define CLIENT_SESSION_SEGMENT_KIND_H
/*
 * The kinds of segments: how one becomes memory of this process, and how that ends. All that depends on the kind
 * of a segment is here.
 */
#include <stdbool.h>

#include "client/session/segment.h"

struct segment_kind {
    enum proto_pool_kind pool_kind; /* of the pools that have such segments */
    /* Checks what came with a description, before anything is done with it. NULL, or what is wrong with it: a
     * constant string. fd: -1 where none came. */
    const char *(*flaw)(const struct proto_segment *description, int fd);
    /* Sets memory, gpu and device. The descriptor stays the segment's. 0, or as segments_open(). */
    int (*open)(struct segment *segment, struct devices *devices, const uint8_t uuid[PROTO_UUID_BYTES]);
    /* Takes the memory out of this process again. False: the driver would not. */
    bool (*close)(struct segment *segment);
    /* Sets gpu, device and vmm_handle; drops the handle again. NULL: a segment of the kind is mapped once
     * only. */
    int (*import)(struct segment *segment, struct devices *devices, const uint8_t uuid[PROTO_UUID_BYTES]);
    bool (*drop)(struct segment *segment);
    bool close_waits; /* for the work of this process on the memory; else it must be over */
    /* As close, while host threads may still use the memory: zeros of this process alone come in its place.
     * NULL: as close. */
    bool (*leave)(struct segment *segment);
};

/* Gives the device of an imported segment access to addresses that are mapped, and the others of this process
 * that can reach it: which they are, the driver says. 0, or the driver's error. */
int segment_give_access(const struct segment *segment, void *memory, uint64_t size_bytes,
                        enum gpu_access access);

/* kind: one that proto_decode() lets through. */
const struct segment_kind *segment_kind(uint32_t kind);

#endif
