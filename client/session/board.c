/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/board.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/memfd.h"
#include "client/session/session.h"
#include "client/session/wait.h"

#define BOARD_TEXT "the board of fences for other processes"

static int board_open(struct session *session, bool *ret_may_retry) {
    struct connection *connection = &session->connection;
    _cleanup_(request_recyclep) struct request *request = NULL;
    struct board *board = &session->board;

    *ret_may_retry = false;
    int r = connection_ask_descriptor(connection, PROTO_ASK_BOARD, &board->request, BOARD_TEXT,
                                      connection_deadline_ns(connection, 0), &request, ret_may_retry);
    if (r < 0)
        return r;
    if (memfd_flaw(request->fd, PROTO_BOARD_BYTES) != NULL)
        return connection_refuse(connection, "a board that is no sealed memfd of its size");
    r = memfd_map(request->fd, PROTO_BOARD_BYTES, BOARD_TEXT, &board->mapping);
    if (r < 0)
        return r;
    board->slot = request->message.board.slot;
    board->memory = board->mapping->memory;
    return 0;
}

static int need_locked(struct session *session) {
    struct board *board = &session->board;
    bool before = board->asked, may_retry;

    if (!before) {
        board->error = board_open(session, &may_retry);
        board->asked = !may_retry;
    }
    return board->error < 0 && before
               ? error_set(board->error,
                           "there is no board of fences for other processes: asking for it failed")
               : board->error;
}

int board_need(struct session *session) {
    pthread_mutex_lock(&session->board.lock);
    int r = need_locked(session);
    pthread_mutex_unlock(&session->board.lock);
    return r;
}

int board_need_for_streams(struct session *session, const struct gpu *gpu) {
    struct board *board = &session->board;

    pthread_mutex_lock(&board->lock);
    int r = need_locked(session);
    if (r == 0 && !board->tried) {
        board->tried = true;
        board->gpu = gpu->host_register(board->memory, PROTO_BOARD_BYTES) == 0 ? gpu : NULL;
    }
    bool registered = board->gpu != NULL;
    pthread_mutex_unlock(&board->lock);
    return r < 0 || registered
               ? r
               : error_set(GPUPOOL_E_DRIVER, "the driver does not take the board of fences for "
                                             "other processes");
}

enum proto_board_state board_state(const struct session *session, const struct proto_board_fence *fence) {
    return proto_board_state(&session->board.memory->slots[fence->slot], fence->word, fence->value);
}

bool board_may_have(struct session *session, const struct proto_board_fence *fence) {
    const struct board *board = &session->board;
    uint64_t now = atomic_load(&board->memory->slots[fence->slot].words[fence->word]);
    uint64_t epoch = fence->value >> PROTO_BOARD_EPOCH_BITS, present = now >> PROTO_BOARD_EPOCH_BITS;

    if (epoch != present)
        return epoch < present; /* of a session that had the slot before */
    return fence->slot != board->slot || fences_may_have(&session->board_fences, fence->word, fence->value);
}

int board_wait(const struct session *session, const struct proto_board_fence *fence, uint64_t deadline_ns) {
    uint64_t begin_ns = clock_now_ns();

    while (board_state(session, fence) == PROTO_BOARD_PENDING) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns)
            return error_set(GPUPOOL_E_TIMED_OUT, "another process's GPU work is not done yet");
        wait_pause(now_ns - begin_ns, deadline_ns - now_ns);
    }
    return 0;
}

int board_order(struct session *session, const struct proto_board_fence *fence, unsigned device, void *stream,
                uint64_t deadline_ns) {
    const struct gpu *gpu;
    char text[ERROR_TEXT_SIZE];

    if (board_state(session, fence) != PROTO_BOARD_PENDING)
        return 0;
    int r = devices_need_gpu(&session->devices, &gpu);
    if (r == 0)
        r = devices_check_stream(gpu, device, stream);
    if (r < 0)
        return r;
    error_save(text);
    r = board_need_for_streams(session, gpu);
    error_restore(text);
    if (r < 0)
        return board_wait(session, fence, deadline_ns);
    struct proto_board_slot *slot = &session->board.memory->slots[fence->slot];
    /* The driver wants an address; that the word is atomic concerns those who read it. */
    int error = gpu->stream_wait64(device, stream, (uint64_t *)&slot->words[fence->word], fence->value);
    if (error == GPU_ERROR_NOT_SUPPORTED)
        return board_wait(session, fence, deadline_ns);
    return error == 0
               ? 0
               : devices_fail_on(gpu, device, error, "making a stream wait for another process's fence");
}

void board_close(struct board *board) {
    if (board->gpu != NULL)
        (void)board->gpu->host_unregister(board->memory);
    board->gpu = NULL;
}

void board_deinit(struct board *board) {
    (void)own_mapping_unmap(take_ptr(&board->mapping));
    board->memory = NULL;
    pthread_mutex_destroy(&board->lock);
}
