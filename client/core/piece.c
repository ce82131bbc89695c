/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/piece.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Chunks outlive their stream heaps: they are never freed, only used again, so that a stale buffer of a
 * client that has closed still names a piece, whose generation says that the buffer is stale. */
struct piece_chunk {
    struct piece_chunk *next;
    struct piece pieces[PIECES_IN_CHUNK];
};

/* Of stream heaps that are gone. Without a lock, because a forked child puts some back too; a thread that
 * takes takes all, and puts the rest back, so that no chunk can come back in between and be taken for another
 * (ABA). */
static _Atomic(struct piece_chunk *) spare_chunks;

/* Puts a chain of chunks back. */
static void chunks_put(struct piece_chunk *first) {
    struct piece_chunk *last = first;

    if (first == NULL)
        return;
    while (last->next != NULL)
        last = last->next;
    last->next = atomic_load_explicit(&spare_chunks, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&spare_chunks, &last->next, first, memory_order_release,
                                                  memory_order_relaxed)) {
    }
}

static struct piece_chunk *chunk_get(void) {
    struct piece_chunk *chunk = atomic_exchange_explicit(&spare_chunks, NULL, memory_order_acquire);

    if (chunk != NULL) {
        chunks_put(chunk->next);
        return chunk;
    }
    chunk = aligned_alloc(CACHE_LINE_BYTES, sizeof *chunk);
    return chunk == NULL ? NULL : memset(chunk, 0, sizeof *chunk);
}

/* Its memory is no pointer's any more. */
static void leave_map(const struct piece_stock *stock, struct piece *piece) {
    if (piece->mapped)
        stock->leave_map(piece);
    piece->mapped = false;
}

/* Its stream heap goes. A buffer that is still out becomes stale. */
static void orphan(const struct piece_stock *stock, struct piece *piece) {
    uint64_t generation = piece->generation + piece->generation % 2;
    leave_map(stock, piece);
    *piece = (struct piece){.generation = generation};
}

struct piece *piece_take(struct piece_stock *stock) {
    if (stock->spare == NULL) {
        struct piece_chunk *chunk = chunk_get();
        if (chunk == NULL)
            return NULL;
        chunk->next = stock->chunks;
        stock->chunks = chunk;
        for (unsigned i = 0; i < PIECES_IN_CHUNK; i++) {
            chunk->pieces[i].stream_heap = stock->stream_heap;
            chunk->pieces[i].next = stock->spare;
            stock->spare = &chunk->pieces[i];
        }
    }
    struct piece *piece = stock->spare;
    stock->spare = piece->next;
    if (piece->next != NULL)
        __builtin_prefetch(piece->next, 1); /* the next piece of the batch */
    piece->next = NULL;
    return piece;
}

void piece_give(struct piece_stock *stock, struct piece *piece) {
    assert(piece->generation % 2 == 0);
    leave_map(stock, piece);
    piece->range = NULL;
    piece->extent = NULL;
    piece->memory = NULL;
    piece->split_off = false;
    piece->recorded = false;
    piece->next = stock->spare;
    stock->spare = piece;
}

void piece_stock_deinit(struct piece_stock *stock) {
    for (struct piece_chunk *chunk = stock->chunks; chunk != NULL; chunk = chunk->next)
        for (unsigned i = 0; i < PIECES_IN_CHUNK; i++)
            orphan(stock, &chunk->pieces[i]);
    chunks_put(stock->chunks);
    stock->chunks = NULL;
    stock->spare = NULL;
}
