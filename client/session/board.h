/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_BOARD_H
#define CLIENT_SESSION_BOARD_H
/*
 * The board of this process's user (proto/board.h), mapped: where fences lie that streams of other processes
 * wait for. A client owns one, from its first need on, with a slot of its own in it. Not inherited by forked
 * children.
 *
 * Invariant: memory != NULL exactly when open; it does not move until the client closes. It is registered
 * with the driver at the first use of a stream, once. Where the daemon or the kernel refused it, there is
 * none until the client closes; otherwise as with the page (page.h).
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/own_mapping.h"
#include "proto/board.h"
#include "proto/proto.h"

struct gpu;
struct request;
struct session;

struct board {
    pthread_mutex_t lock; /* over the exchange and the registration */
    bool asked, tried;    /* it was asked for, and that is over; it was to be registered */
    struct request *request; /* that was not answered yet; NULL: none */
    int error;            /* why there is none, once it was asked for */
    struct own_mapping *mapping;
    struct proto_board *memory;
    uint32_t slot;
    const struct gpu *gpu; /* that it is registered with; NULL: not */
};

/* Asks the daemon for the board and maps it, unless that was done before. Thread-safe. 0; LIMIT (all slots
 * are in use), VERSION (the daemon is older), DRIVER (the kernel maps nothing), PROTOCOL, and what
 * connection_exchange() says. */
int board_need(struct session *session);

/* As board_need(), and registers it, so that streams can write and await its words: 0, or as board_need(),
 * DRIVER.
 */
int board_need_for_streams(struct session *session, const struct gpu *gpu);

/* Whether a fence on the board is ready. There is a board. */
enum proto_board_state board_state(const struct session *session, const struct proto_board_fence *fence);

/* Whether a fence can have been left: its epoch is not ahead of its slot's, and one of the own slot's epoch was left
 * by this session. Others' bytes may say anything. There is a board. */
bool board_may_have(struct session *session, const struct proto_board_fence *fence);

/* Makes a stream wait for a fence on the board, on the GPU; where the device cannot, waits on the CPU until
 * deadline_ns. 0, CAPTURING, DRIVER, TIMED_OUT. */
int board_order(struct session *session, const struct proto_board_fence *fence, unsigned device, void *stream,
                uint64_t deadline_ns);

/* Waits on the CPU. 0, TIMED_OUT. */
int board_wait(const struct session *session, const struct proto_board_fence *fence, uint64_t deadline_ns);

/* Takes it away from the driver. The devices are idle, or this process will never say that they are. */
void board_close(struct board *board);

/* Unmaps it. No thread and no GPU work uses it any more. */
void board_deinit(struct board *board);

#endif
