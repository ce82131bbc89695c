/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_KEPT_DATA_H
#define DAEMON_DATA_KEPT_DATA_H
/*
 * The part of this folder that is kept in the estate, beside the core's (daemon/core/kept.h): what a successor has
 * to know of clients, their kept replies and boards, and of their descriptors in the store. Sessions are named by
 * their ids, which stay the same. Numbers below KEPT_DATA_FIRST are the core's.
 */
#include <stdint.h>

#include "daemon/core/kept.h"
#include "daemon/estate/estate.h"
#include "daemon/loop/store.h"
#include "proto/limits.h"

#define KEPT_DATA_FIRST 16u

enum kept_data_kind {
    KEPT_CLIENT = KEPT_DATA_FIRST,
    KEPT_REPLY, /* a part of one that the client has not been sent */
    KEPT_BOARD,
    KEPT_BOARD_SLOT, /* one that was a session's once */
    KEPT_POOL,       /* which pool has which number */
    KEPT_CHANNEL_PAGES,
    KEPT_DATA_KINDS = KEPT_KINDS, /* none: one more than the last of all, which is the core's */
};

/* The name of a descriptor in the store; "": it has none. */
struct kept_stored {
    char text[8];
};

#define KEPT_ANCESTORS 32u

/* Facts about a session's process and its end that cannot be found out again. A fact that is missing leads
 * to a stricter rule of death (daemon/core/death.h). */
struct kept_process {
    uint64_t start_ticks;
    uint8_t no_gpu, driver_lent, seen, under_mps;
    uint8_t socket_over, process_over, has_origin, is_complete;
    uint8_t too_late, n_ancestors, has_page, reserved[5];
    struct {
        uint64_t start_ticks;
        int64_t pid;
    } ancestors[KEPT_ANCESTORS];
};

struct kept_client {
    uint64_t session;
    struct kept_stored socket, process, page, reclaim;
    uint64_t awaited_segment;
    uint32_t scope, version;
    struct kept_process dead;
};

#define KEPT_REPLY_BYTES 960u

struct kept_reply {
    uint64_t session, number; /* of the reply, in order */
    uint32_t size_bytes;      /* of all its parts */
    uint32_t offset_bytes;    /* of this one */
    uint32_t is_in_doubt;     /* it may have been sent */
    uint32_t reserved;
    uint8_t bytes[KEPT_REPLY_BYTES];
};

struct kept_board {
    uint32_t uid, scope;
    struct kept_stored stored;
};

struct kept_board_slot {
    uint32_t board; /* its record */
    uint32_t slot, state;
    uint32_t reserved;
    uint64_t epoch;
};

struct kept_pool {
    uint32_t id, kind; /* enum proto_pool_kind */
    int32_t numa_node;
    uint32_t segment_kind;
    uint8_t uuid[PROTO_UUID_BYTES];
};

struct kept_channel_pages {
    uint64_t channel; /* its id */
    struct kept_stored pages[PROTO_CHANNEL_PLACES + 1];
};

/* Enters these kinds into a table of ESTATE_KINDS_MAX. */
void kept_data_kinds(struct estate_kind *kinds);

static inline struct kept_stored kept_stored(const char stored[STORE_NAME_SIZE]) {
    struct kept_stored name = {{0}};

    for (unsigned i = 0; i < STORE_NAME_SIZE - 1 && stored[i] != '\0'; i++)
        name.text[i] = stored[i];
    return name;
}

#endif
