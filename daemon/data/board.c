/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/board.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "daemon/data/kept_data.h"
#include "daemon/data/shared_memory.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/die_here.h"

_Static_assert(PROTO_BOARD_SLOTS <= UINT16_MAX, "slots are kept as 16 bits");

void boards_init(struct boards *boards, struct desk *desk, struct store *store) {
    *boards = (struct boards){.desk = desk, .store = store};
    list_init(&boards->all);
    list_init(&boards->ending);
}

/* Enters a board with a memory; all its slots are new. */
static void board_enter(struct boards *boards, struct board *board, struct tenant_id tenant, int fd,
                        void *memory) {
    board->fd = fd;
    board->memory = memory;
    board->tenant = tenant;
    for (unsigned i = 0; i < PROTO_BOARD_SLOTS; i++) {
        board->slots[i] = (struct board_slot){.board = board, .number = i};
        list_init(&board->slots[i].ending_link);
        board->free_slots[i] = (uint16_t)i;
    }
    board->n_free = PROTO_BOARD_SLOTS;
    list_append(&boards->all, &board->link);
}

static void board_free(struct boards *boards, struct board *board) {
    estate_remove(boards->desk->estate, board->record);
    for (unsigned i = 0; i < PROTO_BOARD_SLOTS; i++) {
        list_remove(&board->slots[i].ending_link);
        estate_remove(boards->desk->estate, board->slots[i].record);
    }
    store_leave(boards->store, board->stored);
    list_remove(&board->link);
    munmap(board->memory, PROTO_BOARD_BYTES);
    close_fd(board->fd);
    free(board);
}

static int board_make(struct boards *boards, struct tenant_id tenant, struct board **ret_board) {
    struct board *board = calloc(1, sizeof *board);

    if (board == NULL)
        return -ENOMEM;
    void *memory;
    int fd = shared_memory_make("gpupool-board", PROTO_BOARD_BYTES, &memory);
    if (fd < 0) {
        free(board);
        return fd;
    }
    board_enter(boards, board, tenant, fd, memory);
    store_put(boards->store, STORE_BOARD, fd, board->stored);
    int r = estate_add(boards->desk->estate, KEPT_BOARD, board, &board->record);
    if (r == 0 && store_is_there(boards->store) && board->stored[0] == '\0')
        r = -ENOBUFS; /* fences on it would be lost with the daemon */
    if (r < 0) {
        board_free(boards, board);
        return r;
    }
    *ret_board = board;
    return 0;
}

/* Sets all words of a slot to the first value of an epoch. */
static void begin_epoch(struct proto_board_slot *slot, uint64_t epoch) {
    for (unsigned i = 0; i < PROTO_BOARD_WORDS; i++) {
        die_here();
        atomic_store_explicit(&slot->words[i], proto_board_first(epoch), memory_order_release);
    }
}

static struct board *board_find(struct boards *boards, struct tenant_id tenant) {
    list_for_each_entry(struct board, board, &boards->all, link) {
        if (tenant_id_is(board->tenant, tenant))
            return board;
    }
    return NULL;
}

static void set_state(struct boards *boards, struct board_slot *slot, enum board_slot_state state) {
    slot->state = state;
    estate_change(boards->desk->estate, slot->record);
}

int board_join(struct boards *boards, struct tenant_id tenant, struct board **ret_board, uint32_t *ret_slot) {
    struct board *found = board_find(boards, tenant);

    if (found == NULL) {
        int r = board_make(boards, tenant, &found);
        if (r < 0)
            return r;
    }
    if (found->n_free == 0)
        return -ENOSPC;
    struct board_slot *slot = &found->slots[found->free_slots[found->first_free]];
    if (slot->record == 0 && estate_add(boards->desk->estate, KEPT_BOARD_SLOT, slot, &slot->record) < 0)
        return -ENOMEM;
    found->first_free = (found->first_free + 1) % PROTO_BOARD_SLOTS;
    found->n_free--;
    slot->epoch++;
    set_state(boards, slot, BOARD_SLOT_TAKEN);
    begin_epoch(&found->memory->slots[slot->number], slot->epoch);
    *ret_board = found;
    *ret_slot = slot->number;
    return 0;
}

/* Says on the board that the slot's session is over. Words that are of the next epoch were written before. */
static void say_ended(struct board_slot *slot) {
    struct proto_board_slot *memory = &slot->board->memory->slots[slot->number];

    for (unsigned i = 0; i < PROTO_BOARD_WORDS; i++) {
        die_here();
        uint64_t word = atomic_load(&memory->words[i]);
        if (word == proto_board_first(slot->epoch + 1))
            continue;
        atomic_store(&memory->ended[i],
                     slot->state == BOARD_SLOT_ENDED_WELL ? proto_board_last(slot->epoch) : word);
    }
    begin_epoch(memory, slot->epoch + 1); /* last: who sees the epoch over reads ended[] */
}

static void queue_free(struct board *board, unsigned number) {
    assert(board->n_free < PROTO_BOARD_SLOTS);
    board->free_slots[(board->first_free + board->n_free++) % PROTO_BOARD_SLOTS] = (uint16_t)number;
}

void boards_settle(struct boards *boards) {
    while (!list_is_empty(&boards->ending)) {
        struct board_slot *slot = list_first(&boards->ending, struct board_slot, ending_link);
        list_remove(&slot->ending_link);
        say_ended(slot);
        set_state(boards, slot, BOARD_SLOT_FREE);
        queue_free(slot->board, slot->number);
    }
}

void board_leave(struct boards *boards, struct board *board, uint32_t number, bool well) {
    struct board_slot *slot = &board->slots[number];

    assert(slot->state == BOARD_SLOT_TAKEN);
    set_state(boards, slot, well ? BOARD_SLOT_ENDED_WELL : BOARD_SLOT_ENDED_DEAD);
    list_append(&boards->ending, &slot->ending_link);
    if (boards->desk->estate == NULL)
        boards_settle(boards);
}

void board_end(struct boards *boards, struct tenant_id tenant) {
    struct board *board = board_find(boards, tenant);

    if (board != NULL)
        board_free(boards, board);
}

/* --- a predecessor's --- */

int board_inherit(struct boards *boards, struct tenant_id tenant, const char *stored, uint32_t record) {
    _cleanup_(close_fdp) int fd = store_take(boards->store, stored);
    void *memory;

    if (fd < 0)
        return -ENOENT;
    int r =
        board_find(boards, tenant) != NULL ? -EBADMSG : shared_memory_take(fd, PROTO_BOARD_BYTES, &memory);
    if (r < 0)
        return r;
    struct board *board = calloc(1, sizeof *board);
    if (board == NULL) {
        munmap(memory, PROTO_BOARD_BYTES);
        return -ENOMEM;
    }
    board_enter(boards, board, tenant, take_fd(&fd), memory);
    board->n_free = 0; /* until their records are known */
    strncpy(board->stored, stored, sizeof board->stored - 1);
    board->record = record;
    estate_bind(boards->desk->estate, record, board);
    return 0;
}

int board_inherit_slot(struct boards *boards, uint32_t board_record, uint32_t record, uint32_t number,
                       uint32_t state, uint64_t epoch) {
    struct board *board = estate_object(boards->desk->estate, board_record, KEPT_BOARD);

    if (board == NULL || number >= PROTO_BOARD_SLOTS || board->slots[number].record != 0 ||
        state > BOARD_SLOT_ENDED_DEAD)
        return -EBADMSG;
    struct board_slot *slot = &board->slots[number];
    slot->record = record;
    slot->state = (enum board_slot_state)state;
    slot->epoch = epoch;
    estate_bind(boards->desk->estate, record, slot);
    if (slot->state == BOARD_SLOT_ENDED_WELL || slot->state == BOARD_SLOT_ENDED_DEAD)
        list_append(&boards->ending, &slot->ending_link);
    return 0;
}

/* Free slots of which one kind had a session before, and the other did not. */
static void queue_all_free(struct board *board, bool had_session) {
    for (unsigned i = 0; i < PROTO_BOARD_SLOTS; i++)
        if (board->slots[i].state == BOARD_SLOT_FREE && (board->slots[i].record != 0) == had_session)
            queue_free(board, i);
}

/* Which slot was free for how long is not known any more, but for those that were never a session's. */
void boards_inherited(struct boards *boards) {
    list_for_each_entry(struct board, board, &boards->all, link) {
        queue_all_free(board, false);
        queue_all_free(board, true);
    }
    boards_settle(boards);
}

struct board *board_of(struct boards *boards, struct tenant_id tenant, uint32_t slot) {
    struct board *board = board_find(boards, tenant);
    return board != NULL && slot < PROTO_BOARD_SLOTS && board->slots[slot].state == BOARD_SLOT_TAKEN ? board
                                                                                                     : NULL;
}
