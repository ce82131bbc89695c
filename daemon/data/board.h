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
 * Invariant: a slot is a session's, or in the queue of free ones, once.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "daemon/core/tenant_id.h"
#include "proto/board.h"

struct board {
    struct list link; /* in the list of boards */
    struct tenant_id tenant;
    int fd;
    struct proto_board *memory;
    uint64_t epochs[PROTO_BOARD_SLOTS];     /* of the slot's session, or of its last one */
    uint16_t free_slots[PROTO_BOARD_SLOTS]; /* a ring, from first_free on */
    unsigned first_free, n_free;
};

/* Gives a session of a user a slot on the user's board. Returns 0, or a negative errno; -ENOSPC: all slots
 * are in use. */
int board_join(struct list *boards, struct tenant_id tenant, struct board **ret_board, uint32_t *ret_slot);

/* The slot's session is over: no stream of it writes any more. well: all that it enqueued was done. */
void board_leave(struct board *board, uint32_t slot, bool well);

/* No session of the user can be named by a token any more: frees its board, if it has one. */
void board_end(struct list *boards, struct tenant_id tenant);

#endif
