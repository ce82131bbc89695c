/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_THREAD_CACHE_H
#define CLIENT_CACHE_THREAD_CACHE_H
/*
 * A thread cache: pieces that one thread has at hand, sorted by stream heap and size class. Taking from it
 * and giving to it is all that most calls do.
 *
 * It belongs to its thread, which uses it without locks or atomic operations. Others reach into it rarely: to
 * take idle memory when it is needed elsewhere, when the thread or the client ends. The lock for that costs
 * the owner next to nothing: the owner announces that it is inside by a plain store and looks whether anybody
 * else is; a visitor sets `visited`, has the kernel put a memory barrier into every running thread
 * (membarrier, Linux 4.14), and waits until the owner is outside. Where there is no membarrier, and under
 * ThreadSanitizer, which does not know it, the owner takes the mutex as well; without membarrier the fast
 * paths are then left out, as they take none.
 *
 * The object lives as long as its thread, so that a pointer in thread-local storage never dangles; owner is
 * NULL when its client has closed, and the next client that the thread uses takes it over.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "client/cache/bin.h"
#include "client/cache/counters.h"
#include "client/core/size_class.h"
#include "client/core/stream_heap.h"
#include "client/session/thread.h"

struct cache;

#define BIN_WORDS ((SIZE_CLASSES + 63) / 64)

/* The pieces of one stream heap, and where the thread counts what it does with them. */
struct thread_bins {
    struct stream_heap *stream_heap;
    struct thread_bins *next;
    struct proto_counters *counters; /* the page's, shared by stream heaps of one pool, or its own; written by
                                        the owner alone */
    bool touched;                    /* used since the last look of the decay */
    bool has_line;                   /* one of the page's, to be given back */
    uint32_t single_class;           /* the one from SIZE_CLASS_SINGLE on whose bin may have pieces */
    uint64_t used[BIN_WORDS];        /* a bit for each bin that has magazines: the others are empty */
    struct bin bins[SIZE_CLASSES];
    _Alignas(CACHE_LINE_BYTES) struct proto_counters own_counters; /* outside the page */
};

struct thread_cache {
    /* the owner's, on a cache line of its own */
    _Alignas(CACHE_LINE_BYTES) _Atomic(struct cache *)
        owner;                /* the client's cache; changed under the registry's lock; NULL: none */
    struct thread_bins *last; /* the stream heap used last, found first */
    struct thread_bins *all;  /* of the stream heaps that the thread has used */
    struct thread_cache *next_of_thread;
    /* the lock */
    atomic_bool inside;  /* the owner is */
    atomic_bool visited; /* somebody else is, or wants to be; always, where the owner has to take the mutex */
    pthread_mutex_t lock;
    struct list link; /* in the client's list of thread caches, under the registry's lock */
};

/* Set once: whether the owner has to take the mutex. */
extern bool thread_cache_locks;

/* Prepares the process: asks the kernel for membarrier, and registers for forks, whose children begin with no
 * cache. Idempotent. */
void thread_cache_prepare(void);

/* Registers the process for membarrier, after thread_cache_prepare(). In a process with threads the kernel
 * takes milliseconds for it (it waits until every processor has switched tasks; 5 to 20 ms beside a CUDA
 * context, measured), so a thread of the library does it, not the one that opens a client. The first visitor
 * does it where none has. Idempotent. */
void thread_cache_register(void);

/* Finds this thread's cache for a client's cache, or makes it. NULL without memory. */
struct thread_cache *thread_cache_get(struct cache *owner, struct list *caches);

void thread_cache_enter_slowly(struct thread_cache *cache);

/* ThreadSanitizer does not know membarrier: with it every owner takes the mutex, on the fast paths too. */
#if defined(__SANITIZE_THREAD__)
#define THREAD_CACHE_KNOWS_MEMBARRIER false
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_CACHE_KNOWS_MEMBARRIER false
#endif
#endif
#ifndef THREAD_CACHE_KNOWS_MEMBARRIER
#define THREAD_CACHE_KNOWS_MEMBARRIER true
#endif

/* The owner goes in and out. In between no other thread is inside. */
static inline void thread_cache_enter(struct thread_cache *cache) {
    atomic_store_explicit(&cache->inside, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* the store above stays above; membarrier does the rest */
    /* acquire: what the last visitor did is seen by who does not see it any more */
    if (__builtin_expect(thread_cache_locks || atomic_load_explicit(&cache->visited, memory_order_acquire),
                         0))
        thread_cache_enter_slowly(cache);
}

static inline void thread_cache_leave(struct thread_cache *cache) {
    atomic_store_explicit(&cache->inside, false, memory_order_release);
    if (__builtin_expect(thread_cache_locks, 0))
        pthread_mutex_unlock(&cache->lock);
}

/* The owner goes in if it need not wait, nor take the mutex; a fast path that calls nothing needs no frame on
 * the stack. False: outside, and the slow path is to be tried. */
static inline bool thread_cache_try_enter(struct thread_cache *cache) {
    if (!THREAD_CACHE_KNOWS_MEMBARRIER) {
        thread_cache_enter(cache);
        return true;
    }
    atomic_store_explicit(&cache->inside, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* as in thread_cache_enter */
    if (__builtin_expect(!atomic_load_explicit(&cache->visited, memory_order_acquire), 1))
        return true;
    atomic_store_explicit(&cache->inside, false, memory_order_release);
    return false;
}

/* Out again after that. */
static inline void thread_cache_quit(struct thread_cache *cache) {
    if (THREAD_CACHE_KNOWS_MEMBARRIER)
        atomic_store_explicit(&cache->inside, false, memory_order_release);
    else
        thread_cache_leave(cache);
}

/* Others go in and out. */
void thread_cache_visit(struct thread_cache *cache);
void thread_cache_part(struct thread_cache *cache);

/* The thread's pieces of a stream heap. NULL when there are none yet. Inside. */
static inline struct thread_bins *thread_cache_find(struct thread_cache *cache,
                                                    const struct stream_heap *stream_heap) {
    for (struct thread_bins *found = cache->all; found != NULL; found = found->next)
        if (found->stream_heap == stream_heap)
            return found;
    return NULL;
}

/* Takes a piece that suits from a bin, or NULL; puts one there. Inside. */
struct piece *thread_bins_take(struct thread_bins *own, unsigned size_class, uint64_t size_bytes);
void thread_bins_put(struct thread_bins *own, unsigned size_class, struct piece *piece);

/* Gives all pieces to the stream heap. Inside or visiting. Takes the stream heap's lock, once. */
void thread_bins_flush(struct thread_bins *own);

/* Adds a stream heap. Returns NULL without memory. Inside. */
struct thread_bins *thread_cache_add(struct thread_cache *cache, struct stream_heap *stream_heap);

/* Gives all pieces back, of one stream heap (or of all: NULL); with idle_only those of stream heaps not
 * touched since the last call with it. Inside or visiting. */
void thread_cache_flush(struct thread_cache *cache, const struct stream_heap *stream_heap, bool idle_only);

/* Empties the caches of a client, but for one's (or of all: NULL), as thread_cache_flush() does. So any
 * thread may take what they had from the stream heaps. */
void thread_caches_collect(struct list *caches, const struct thread_cache *except,
                           const struct stream_heap *stream_heap, bool idle_only);

/* Empties the caches of a client of the pieces of one pool, and makes their threads take the slow path to it.
 */
void thread_caches_flush_pool(struct list *caches, uint32_t pool);

/* Detaches every cache from a client that closes. The pieces go nowhere: the stream heaps are freed next. */
void thread_caches_detach(struct list *caches);

/* Locks the list of a client's caches against threads that begin and end. */
void thread_caches_lock(void);
void thread_caches_unlock(void);

#endif
