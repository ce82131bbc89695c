/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_BIN_H
#define CLIENT_CACHE_BIN_H
/*
 * A bin: what one thread has at hand of one stream heap and one size class, in two magazines (depot.h).
 * Taking and putting is done at the top of the one that is loaded; when it is empty or full the spare one
 * takes its place, and when that does not help either, one of them is exchanged at the stream heap's depot.
 * With two, at least a whole magazine of pieces comes or goes between two exchanges, however a thread goes
 * back and forth.
 *
 * Pieces of small classes are all of their class's size; a piece of a large class may not suit a request of
 * the same class (size_class.h). From SIZE_CLASS_SINGLE on a thread has pieces of one class at a time.
 *
 * Owned by a thread cache, and used by who is in there. The magazines are the bin's; it starts with none.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/cache/depot.h"
#include "client/core/stream_heap.h"

struct bin {
    struct magazine *loaded, *spare;
};

/* How many pieces before its turn a piece's cache line is asked for: the line may come from another core, for
 * 50 to 100 ns, and a pair takes 10 to 20. */
#define BIN_AHEAD 4u

/* How many small pieces a miss takes from the stream heap, and how many go there when a bin has no room for
 * one more. Of the trace small_tensors the slowest thousandth of the operations took 1.2 to 1.5 times as long
 * with eight, and a mean operation no less. The memory that programs need does not go with it: 0.81 of
 * PyTorch's with 3 and 0.82 with 4 and with 8 (six variations of each trace). */
#define BIN_BATCH 3u

/* The line will be written: the generation changes with each use. Where a processor does not know the
 * instruction it is none (Intel's manual, PREFETCHW). */
static inline void bin_prefetch(const struct piece *piece) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)piece));
#else
    __builtin_prefetch(piece, 1);
#endif
}

static inline bool magazine_is_empty(const struct magazine *magazine) {
    return magazine == NULL || magazine->count == 0;
}

static inline bool magazine_is_full(const struct magazine *magazine) {
    return magazine == NULL || magazine->count == magazine->capacity;
}

/* The spare magazine takes the place of the loaded one. Returns it. */
static inline struct magazine *bin_load_spare(struct bin *bin, struct magazine *loaded,
                                              struct magazine *spare) {
    bin->spare = loaded;
    bin->loaded = spare;
    return spare;
}

/* The piece on top. NULL when there is none, or it does not suit. */
static inline struct piece *bin_pop(struct bin *bin, uint64_t size_bytes) {
    struct magazine *magazine = bin->loaded;
    if (__builtin_expect(magazine_is_empty(magazine), 0)) {
        if (magazine_is_empty(bin->spare))
            return NULL;
        magazine = bin_load_spare(bin, magazine, bin->spare);
    }
    uint32_t top = magazine->count - 1;
    struct piece *piece = magazine->pieces[top];
    if (!size_class_suits(piece->capacity_bytes, size_bytes))
        return NULL;
    magazine->count = top;
    if (top >= BIN_AHEAD)
        bin_prefetch(magazine->pieces[top - BIN_AHEAD]);
    return piece;
}

/* False: there is no room. */
static inline bool bin_push(struct bin *bin, struct piece *piece) {
    struct magazine *magazine = bin->loaded;
    if (__builtin_expect(magazine_is_full(magazine), 0)) {
        if (magazine_is_full(bin->spare))
            return false;
        magazine = bin_load_spare(bin, magazine, bin->spare);
    }
    magazine->pieces[magazine->count++] = piece;
    return true;
}

/* A piece that suits, from here or from the depot. NULL: none. Takes the depot's lock. */
struct piece *bin_take(struct bin *bin, struct stream_heap *stream_heap, unsigned size_class,
                       uint64_t size_bytes);

/* Puts a piece here, and what there is no room for into the depot, else into the stream heap. Takes their
 * locks. */
void bin_put(struct bin *bin, struct stream_heap *stream_heap, unsigned size_class, struct piece *piece);

/* Gives all pieces to the stream heap. Takes its lock. */
void bin_flush(struct bin *bin, struct stream_heap *stream_heap);

/* As bin_flush(), where the stream heap's lock is held. */
void bin_flush_locked(struct bin *bin, struct stream_heap *stream_heap);

/* Frees the magazines, whatever is in them. */
void bin_deinit(struct bin *bin);

#endif
