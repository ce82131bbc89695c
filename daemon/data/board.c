/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/board.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "daemon/data/shared_memory.h"

_Static_assert(PROTO_BOARD_SLOTS <= UINT16_MAX, "slots are kept as 16 bits");

static int board_make(struct list *boards, struct tenant_id tenant, struct board **ret_board) {
    struct board *board = calloc(1, sizeof *board);

    if (board == NULL)
        return -ENOMEM;
    void *memory;
    int fd = shared_memory_make("gpupool-board", PROTO_BOARD_BYTES, &memory);
    if (fd < 0) {
        free(board);
        return fd;
    }
    board->fd = fd;
    board->memory = memory;
    board->tenant = tenant;
    for (unsigned i = 0; i < PROTO_BOARD_SLOTS; i++)
        board->free_slots[i] = (uint16_t)i;
    board->n_free = PROTO_BOARD_SLOTS;
    list_append(boards, &board->link);
    *ret_board = board;
    return 0;
}

/* Sets all words of a slot to the first value of an epoch. */
static void begin_epoch(struct proto_board_slot *slot, uint64_t epoch) {
    for (unsigned i = 0; i < PROTO_BOARD_WORDS; i++)
        atomic_store_explicit(&slot->words[i], proto_board_first(epoch), memory_order_release);
}

static struct board *board_find(struct list *boards, struct tenant_id tenant) {
    list_for_each_entry(struct board, board, boards, link) {
        if (tenant_id_is(board->tenant, tenant))
            return board;
    }
    return NULL;
}

int board_join(struct list *boards, struct tenant_id tenant, struct board **ret_board, uint32_t *ret_slot) {
    struct board *found = board_find(boards, tenant);

    if (found == NULL) {
        int r = board_make(boards, tenant, &found);
        if (r < 0)
            return r;
    }
    if (found->n_free == 0)
        return -ENOSPC;
    uint32_t slot = found->free_slots[found->first_free];
    found->first_free = (found->first_free + 1) % PROTO_BOARD_SLOTS;
    found->n_free--;
    begin_epoch(&found->memory->slots[slot], ++found->epochs[slot]);
    *ret_board = found;
    *ret_slot = slot;
    return 0;
}

void board_leave(struct board *board, uint32_t number, bool well) {
    struct proto_board_slot *slot = &board->memory->slots[number];
    uint64_t epoch = board->epochs[number];

    assert(board->n_free < PROTO_BOARD_SLOTS);
    for (unsigned i = 0; i < PROTO_BOARD_WORDS; i++) {
        uint64_t reached = well ? proto_board_last(epoch) : atomic_load(&slot->words[i]);
        atomic_store(&slot->ended[i], reached);
    }
    begin_epoch(slot, epoch + 1); /* last: who sees the epoch over reads ended[] */
    board->free_slots[(board->first_free + board->n_free++) % PROTO_BOARD_SLOTS] = (uint16_t)number;
}

void board_end(struct list *boards, struct tenant_id tenant) {
    struct board *board = board_find(boards, tenant);

    if (board == NULL)
        return;
    list_remove(&board->link);
    munmap(board->memory, PROTO_BOARD_BYTES);
    close_fd(board->fd);
    free(board);
}
