/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_PIECE_H
#define CLIENT_CORE_PIECE_H
/*
 * A piece: what a stream heap hands out. It is in use (a buffer names it, its generation is odd), cached (in a
 * thread's bin), deferred or spare. Pieces are never freed, and used again by other stream heaps when theirs
 * is gone; their generations only ascend. So a stale buffer that names one meets another generation, whether
 * the buffer was released or its client closed.
 *
 * A stream heap owns its stock of pieces; its lock guards the stock.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/core/cache_line.h"

struct extent;
struct heap_range;
struct stream_heap;

struct piece {
    /* what a hit reads: one cache line, which goes from the thread that gave to the thread that takes */
    _Alignas(CACHE_LINE_BYTES) struct piece *next; /* deferred, or spare */
    char *memory;
    uint64_t capacity_bytes;
    uint64_t generation; /* odd: a buffer is out */
    struct stream_heap *stream_heap;
    uint64_t lease; /* the extent's, or its own once it was split off */
    uint32_t size_class;
    bool mapped; /* it is in the pointer map, under its memory */
    union {
        struct {
            bool split_off : 1; /* shared: it has a lease of its own, and ends with its buffer */
            bool splitting : 1; /* the daemon was asked to split it off, and has not answered  */
            bool recorded;      /* further streams use it, of which the owner has a list */
        };
        uint16_t marks; /* both at once: not 0 when a release has more to do */
    };
    uint64_t pointer_generation; /* under which it was handed out as a pointer */
    /* the stream heap's: another line */
    _Alignas(CACHE_LINE_BYTES) uint64_t lease_generation;
    uint64_t fence_value; /* while it is deferred */
    bool is_deferred;
    struct heap_range *range;
    struct extent *extent;
};

#define PIECES_IN_CHUNK 128u /* they are allocated together, and never freed */
struct piece_chunk;

/* The pieces of a stream heap. */
struct piece_stock {
    struct stream_heap *stream_heap;
    /* Called for a piece that is `mapped` when its memory is not the piece's any more. NULL: none is mapped */
    void (*leave_map)(struct piece *piece);
    struct piece *spare;
    struct piece_chunk *chunks;
};

/* Takes a spare piece; its generation is even. NULL without memory. */
struct piece *piece_take(struct piece_stock *stock);

/* Gives a piece back, which loses its memory. */
void piece_give(struct piece_stock *stock, struct piece *piece);

/* The stream heap goes. Buffers that are still out become stale. */
void piece_stock_deinit(struct piece_stock *stock);

#endif
