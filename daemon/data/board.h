/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_BOARD_H
#define DAEMON_DATA_BOARD_H
/*
 * The boards (proto/board.h): one for each user of whom a session asked for it. While the user has a session
 * or a parcel, tokens name fences there, and a board's descriptor is lent to its sessions' connections. The
 * daemon's housekeeping ends the boards of other users.
 *
 * The daemon writes there when a session begins and ends in a slot, and reads nothing but the words of a
 * session that died: how far its streams came.
 *
 *   free --board_join()--> taken --board_leave()--> ended, well or dead --boards_settle()--> free
 *
 * Where the daemon has an estate, the end of a session is in it before the words say so. A successor that finds an
 * end writes those words again that are still of the slot's epoch.
 *
 * Invariant: a slot is a session's, ended, or in the queue of free ones, once.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "daemon/core/tenant_id.h"
#include "daemon/loop/store.h"
#include "proto/board.h"

struct desk;

enum board_slot_state {
    BOARD_SLOT_FREE,
    BOARD_SLOT_TAKEN,
    BOARD_SLOT_ENDED_WELL, /* all that its session enqueued was done */
    BOARD_SLOT_ENDED_DEAD,
};

struct board_slot {
    struct board *board;
    uint32_t number;
    enum board_slot_state state;
    uint64_t epoch;          /* of the slot's session, or of its last one */
    uint32_t record;         /* kept_data.h; 0: it was never a session's */
    struct list ending_link; /* in boards->ending while it has ended */
};

struct board {
    struct list link; /* in boards->all */
    struct tenant_id tenant;
    int fd;
    struct proto_board *memory;
    char stored[STORE_NAME_SIZE];
    uint32_t record; /* kept_data.h */
    struct board_slot slots[PROTO_BOARD_SLOTS];
    uint16_t free_slots[PROTO_BOARD_SLOTS]; /* a ring, from first_free on */
    unsigned first_free, n_free;
};

struct boards {
    struct list all;    /* struct board.link */
    struct list ending; /* struct board_slot.ending_link */
    struct desk *desk;  /* borrowed */
    struct store *store;
};

void boards_init(struct boards *boards, struct desk *desk, struct store *store);

/* Gives a session of a user a slot on the user's board. Returns 0, or a negative errno; -ENOSPC: all slots
 * are in use; -ENOBUFS: the board cannot be stored. */
int board_join(struct boards *boards, struct tenant_id tenant, struct board **ret_board, uint32_t *ret_slot);

/* The slot's session is over: no stream of it writes any more. well: all that it enqueued was done. Said on the
 * board with boards_settle(). */
void board_leave(struct boards *boards, struct board *board, uint32_t slot, bool well);

/* The present step has ended. */
void boards_settle(struct boards *boards);

/* No session of the user can be named by a token any more: frees its board, if it has one. */
void board_end(struct boards *boards, struct tenant_id tenant);

/* Takes a predecessor's board, of its record, and then each slot that has one. Returns 0 or a negative errno.
 * A board of which no descriptor was stored cannot go on: -ENOENT. */
int board_inherit(struct boards *boards, struct tenant_id tenant, const char *stored, uint32_t record);
int board_inherit_slot(struct boards *boards, uint32_t board_record, uint32_t record, uint32_t number,
                       uint32_t state, uint64_t epoch);

/* All slots are known: those without a record are free, and the ends that were found are said again. */
void boards_inherited(struct boards *boards);

/* The board of a user and a slot that is a session's there; NULL: there is none. */
struct board *board_of(struct boards *boards, struct tenant_id tenant, uint32_t slot);

#endif
