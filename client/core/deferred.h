/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_DEFERRED_H
#define CLIENT_CORE_DEFERRED_H
/*
 * The deferred pieces of a stream heap: released, but on another stream than the one that orders the stream
 * heap's memory, or in a stream heap that no stream orders. Each stands behind a fence of the stream that it
 * was released on, and is neither in a thread's bin nor free in the stream heap's heap before that is ready.
 * They wait in queues, one for each word, because the fences of a word become ready in order: a caller that
 * needs memory looks at the heads.
 *
 * A stream heap owns its queues; all functions want the stream heap's lock held. The fences are those of
 * stream_heap->fences.
 */
#include "client/core/fence.h"
#include "client/core/stream_heap.h"

struct deferred_queue {
    struct list link; /* in stream_heap->deferred, or in stream_heap->deferred_spare while it is empty */
    uint32_t word;
    uint64_t newest; /* of the fences that pieces here wait for */
    struct piece *first, *last;
};

/* Makes sure that the next deferred_push_locked() with this fence cannot fail. 0 or -ENOMEM. */
int deferred_reserve_locked(struct stream_heap *stream_heap, struct fence fence);

/* Puts a piece behind a fence, for which there is a reserve. Its generation is even. */
void deferred_push_locked(struct stream_heap *stream_heap, struct piece *piece, struct fence fence);

/* Gives what is ready to the stream heap's heap, at most limit pieces: looks at the heads of the queues.
 * Pieces beyond the limit have their turn next time. False: nothing was ready. */
bool deferred_settle_locked(struct stream_heap *stream_heap, unsigned limit);

/* The newest fence of up to capacity queues. Returns how many. */
unsigned deferred_fences_locked(const struct stream_heap *stream_heap, struct fence *fences,
                                unsigned capacity);

/* Gives what stands behind a fence, or an earlier one of the same word, to the stream heap's heap: something
 * else orders its next use from now on. */
void deferred_order_locked(struct stream_heap *stream_heap, struct fence fence);

/* Takes up to capacity pieces of at least minimum_bytes, or in extents of which nothing is in use, out of the
 * stream heap, and says what has to be released behind which fence. Returns how many; fewer than capacity:
 * that is all. */
size_t deferred_reclaim_locked(struct stream_heap *stream_heap, uint64_t minimum_bytes,
                               struct stream_heap_part *ret_parts, size_t capacity);

/* As deferred_reclaim_locked(), for pieces that begin between two addresses. */
size_t deferred_reclaim_between_locked(struct stream_heap *stream_heap, const char *start, const char *end,
                                       struct stream_heap_part *ret_parts, size_t capacity);

/* Whether a word reaches one value after another: cyclically, as proto_fence_is_ready() has it. */
static inline bool deferred_is_after(uint64_t value, uint64_t other) {
    return (int64_t)(value - other) > 0;
}

/* The queue of a word. NULL: none. A process has few streams that release what others acquired, so few words
 * are in a stream heap's list. */
static inline struct deferred_queue *deferred_find_queue(const struct stream_heap *stream_heap,
                                                         uint32_t word) {
    list_for_each_entry(struct deferred_queue, queue, &stream_heap->deferred, link) {
        if (queue->word == word)
            return queue;
    }
    return NULL;
}

#endif
