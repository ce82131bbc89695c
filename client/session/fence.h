/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_FENCE_H
#define CLIENT_SESSION_FENCE_H
/*
 * The fences of a client (client/core/fence.h). Memory can leave its stream, for another stream, thread or
 * process, behind a fence, so that no thread waits for the stream: the next user looks at the word.
 *
 * A client owns one set. Each stream that leaves a fence has a word of the page (proto/page.h): each (device,
 * stream), and for the per-thread default stream 0x2, which is another one in each thread under one name,
 * each (device, thread). Its values ascend by one with each fence, and are written in that order: value and
 * write are made under the word's lock. A word whose last value has arrived has no write under way, and is
 * given to another stream when all are taken; its values go on ascending, so what waits for an older one is
 * not misled.
 *
 * A client has a second set of the same kind for fences that streams of other processes wait for: its words
 * are those of the session's slot on the board (client/session/board.h), PROTO_BOARD_WORDS of them.
 *
 * The page is asked for, and its words registered with the driver, by the first fence. Where that fails,
 * where the device cannot write words, or where PROTO_PAGE_FENCES streams are busy all at once,
 * fences_enqueue() waits for the stream instead: slower, and as safe.
 *
 * Locks: the set's, which is held over the first fence's exchange with the daemon; then a word's, which is
 * held over the driver's enqueueing. Neither is held when another object's lock is taken.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "client/core/fence.h"
#include "proto/page.h"
#include "proto/proto.h"

struct gpu;
struct session;

#define FENCE_BUCKETS 128u /* a few of the PROTO_PAGE_FENCES words in each */

struct fence_word {
    struct list link; /* in its bucket; in none: its stream has ended */
    unsigned device;
    void *stream;
    uint64_t thread; /* 0 but for the per-thread default stream */
    unsigned users;  /* calls that are about to enqueue; under the set's lock */
    pthread_mutex_t lock;
    uint64_t value; /* of the last fence */
};

struct fences {
    uint64_t name; /* of the client, in the fences of the program: random, not 0 */
    pthread_mutex_t lock;
    bool is_on_board;      /* the words are on the board, and registered with it; else in the page */
    bool tried;            /* page or board was asked for */
    const struct gpu *gpu; /* that the words are registered with; NULL: not, and every fence is a wait */
    struct fence_array array;
    struct fence_word *words; /* n_words */
    unsigned n_words;
    unsigned count;           /* of them in use */
    unsigned next;            /* where to look for one to give to another stream */
    struct list buckets[FENCE_BUCKETS];
};

/* Which thread this is; numbers are not used again, so that a new thread's stream is never taken for an old
 * one. Never 0. */
uint64_t fence_thread_number(void);

void fences_init(struct fences *fences);

/* Takes the words away from the driver. The devices are idle, or this process will never say that they are.
 */
void fences_close(struct fences *fences);

/* Frees bookkeeping. fences_forget: in a forked child, where locks and the driver's part are the parent's. */
void fences_deinit(struct fences *fences);
void fences_forget(struct fences *fences);

/* Enqueues a fence on a stream: it is ready when all work that was enqueued before is done. *ret_fence may be
 * FENCE_NONE: then that work is done already. Never waits for the GPU but as said above. Thread-safe. 0;
 * CAPTURING (the stream is being captured into a graph: nothing was enqueued), DRIVER. */
int fences_enqueue(struct session *session, unsigned device, void *stream, struct fence *ret_fence);

/* As fences_enqueue(), on the board: *ret_fence names a fence that other processes can wait for. False in
 * *ret_is_left: there is none, because the work is done. */
int fences_enqueue_on_board(struct session *session, unsigned device, void *stream,
                            struct proto_board_fence *ret_fence, bool *ret_is_left);

/* Whether a word of the set has reached a value, or a stream is to write it. */
bool fences_may_have(struct fences *fences, uint32_t word, uint64_t value);

/* Whether the work before all fences that were left is done. Thread-safe. */
bool fences_are_ready(struct fences *fences);

/* The stream ends. Its pending writes reach words that no other stream has before they are done: the next
 * stream under this handle gets others. It may have one for each device: memory of any device can be released
 * on it, and host memory goes by the first. Thread-safe. */
void fences_leave_stream(struct fences *fences, const void *stream);

/* The daemon hands on what lies behind fences once it has seen them arrive, and says so in a message.
 * ThreadSanitizer knows nothing of what another process sees, and would call the next use a race: it is shown
 * the words that have arrived. Does nothing without it. */
void fences_show(struct fences *fences);

/* Whether the work before a fence is done. A load. */
bool fence_is_ready(const struct session *session, struct fence fence);

/* Waits for a fence on the CPU, looking at it ever more rarely. device: the one with the work before the
 * fence, which is asked whether it works; -1: none is asked, and the caller's deadline ends the wait on a
 * device that failed. 0, TIMED_OUT, DRIVER. */
int fence_wait(const struct session *session, struct fence fence, int device, uint64_t deadline_ns);

/* Makes another stream of this process wait for a fence, on the GPU. 0, CAPTURING, DRIVER. */
int fence_order(struct session *session, struct fence fence, unsigned device, void *stream);

#endif
