/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_DEPOT_H
#define CLIENT_CACHE_DEPOT_H
/*
 * Magazines, and the depot of a stream heap: how pieces that one thread gives back reach the thread that
 * takes.
 *
 * A magazine is an array of pieces of one size class. A thread's bin has two (thread_cache.h); when both are
 * full one of them goes to the depot, whole, and when both are empty a full one comes from it: a change of
 * pointers under a short lock, once for many pieces (Bonwick and Adams, Magazines and Vmem, USENIX 2001). The
 * pieces themselves are not looked at on the way, so that their cache lines move once, from the thread that
 * gave to the thread that takes, which asks for them ahead of time.
 *
 * Pieces in the depot are in no heap and cannot be joined with their neighbours. So they are bounded, by
 * bytes and by magazines for each class, and depot_flush_locked gives them to the heap before the
 * stream heap is said to have no room, and when it is idle.
 *
 * Locking: a lock of its own, a leaf. A magazine is its holder's: a bin's, or one that is on a stack here.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/core/cache_line.h"
#include "client/core/size_class.h"

struct piece;
struct stream_heap;

/* Makes a magazine four cache lines. */
#define MAGAZINE_PIECES 30u

/* Of each class a magazine holds so many bytes, and one piece of large classes: a thread keeps two magazines
 * of a class to itself, and memory on a GPU is what users run out of. */
#define MAGAZINE_BYTES (2 * MIB)

/* Of each class the depot holds so many bytes and at most so many magazines; none of large classes, which
 * are worth the heap's lock. */
#define DEPOT_BYTES     (2 * MIB)
#define DEPOT_MAGAZINES 16u

struct magazine {
    struct magazine *next; /* on a stack */
    uint32_t count;
    uint32_t capacity; /* of the class that it was taken for */
    struct piece *pieces[MAGAZINE_PIECES];
};
_Static_assert(sizeof(struct magazine) % CACHE_LINE_BYTES == 0, "magazines share no cache line");

struct depot_stack {
    struct magazine *first;
    uint32_t count;
    bool touched; /* used since the last look of the decay */
};

struct depot {
    pthread_mutex_t lock;
    struct magazine *empty;                  /* for the next thread that needs one */
    uint64_t full[(SIZE_CLASSES + 63) / 64]; /* a bit for each stack that has magazines */
    struct depot_stack stacks[SIZE_CLASSES];
};

void depot_init(struct depot *depot);
/* Frees the magazines that are here, whatever is in them. */
void depot_deinit(struct depot *depot);

/* How many pieces a magazine holds of a class, and how many magazines the depot. */
uint32_t depot_capacity(unsigned size_class);
uint32_t depot_limit(unsigned size_class);

/* Leaves a full magazine (or none: NULL) and takes an empty one away. Returns the full one itself where the
 * class has its share: it is for the caller to empty. NULL without memory; then the full one is left all the
 * same. */
struct magazine *depot_put(struct depot *depot, unsigned size_class, struct magazine *full);

/* Takes a magazine with pieces away and leaves an empty one (or none: NULL). NULL when there is none; then
 * the empty one stays the caller's. */
struct magazine *depot_take(struct depot *depot, unsigned size_class, struct magazine *empty);

/* Takes one away from any class: from *class on, which then names it. With idle_only those of classes that
 * were not used since the last call with it that came by. NULL when there is none left. */
struct magazine *depot_drain(struct depot *depot, bool idle_only, unsigned *size_class);

/* Leaves an empty magazine. Accepts NULL. */
void depot_recycle(struct depot *depot, struct magazine *empty);

/* Gives pieces of a magazine back to their stream heap, so many at most, and those first that have been there
 * for longest. Accepts NULL. The stream heap is locked. */
void depot_give_magazine_locked(struct stream_heap *stream_heap, struct magazine *magazine, unsigned most);

/* Gives a stream heap what lies in its depot: all, or with idle_only that of size classes which did not go
 * through there since the last call with it. The stream heap is locked. */
void depot_flush_locked(struct stream_heap *stream_heap, bool idle_only);

/* Frees empty magazines. */
void depot_shrink(struct depot *depot);

#endif
