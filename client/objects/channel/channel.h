/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_CHANNEL_CHANNEL_H
#define CLIENT_OBJECTS_CHANNEL_CHANNEL_H
/*
 * A place of a channel (<gpupool/channel.h>): the pages, the memory of the slots, and the sender or the receiver that
 * works on them (client/core/sender.h, receiver.h), which decides. This object acts: it orders streams, leaves fences,
 * sleeps and wakes.
 *
 * One lock guards the sender or the receiver. It is not held while a thread sleeps or waits for the GPU. A thread that
 * sleeps has announced it in the page; only one does at a time.
 *
 * A client that closes takes the channel's mappings with it (`client` is NULL then). The caller frees the object.
 */
#include <gpupool/channel.h>
#include <pthread.h>

#include "base/list.h"
#include "client/core/receiver.h"
#include "client/core/sender.h"
#include "client/session/channel_pages.h"
#include "client/session/word_wait.h"

struct gpu;
struct watch;

/* Frames that were received in stream order, and that may not be written yet. */
#define CHANNEL_AWAITED_MAX 256u

struct gpupool_channel {
    struct gpupool_client *client; /* NULL: closed */
    struct list link;              /* among the client's */
    uint64_t id;
    char name[PROTO_NAME_TEXT_SIZE];
    struct channel_pages pages;
    struct gpupool_buffer ring;
    uint64_t stride_bytes; /* of two slots */
    pthread_mutex_t lock;
    bool is_producer;
    /* Of a consumer: the state of the producer's place that its last call without a frame went by. */
    uint64_t told;
    /* Of a consumer: a frame that was received, and not given to the caller, because the GPU work that writes it did
     * not end in time, or a call of the driver failed. The next call has it. */
    bool has_waiting;
    struct receiver_element waiting;
    /* Of a consumer: frames whose fences a stream waits for, in the order in which they were received. Where the
     * producer died before such a fence, the frame has not the contents that were meant: it is lost. */
    struct channel_awaited {
        uint64_t sequence, session; /* of the frame; that left the fence */
        struct channel_fence fence;
    } awaited[CHANNEL_AWAITED_MAX];
    uint32_t first_awaited, n_awaited;
    uint64_t n_lost, lost_first, lost_last; /* frames so far; the sequences of the last ones in a row */
    uint64_t untold;     /* the session by which awaited ones are lost that no call has told of; 0: none */
    struct watch *watch; /* NULL: no descriptor was asked for */
    union {
        struct sender sender;
        struct receiver receiver;
    };
};

/* Slots lie at multiples of so many bytes. */
#define CHANNEL_SLOT_ALIGN UINT64_C(512)

/* Begins a call: the channel is there, of a client that is open, in the process that joined it; and this process is in
 * the place that the call is for. INVALID, FORKED. */
int channel_enter(struct gpupool_channel *channel, bool as_producer, const void *stream, const char *call);

/* Says the channel's name before an error's text. Returns the error. */
int channel_fail(const struct gpupool_channel *channel, int error);

/* PROTOCOL: what the page of a place says does not check out. */
int channel_refuse(const struct gpupool_channel *channel, unsigned place);

/* Has a stream wait for a fence on the board, or the caller itself, where there is no stream. *ret_is_pending: the fence
 * was not ready. 0, TIMED_OUT, CAPTURING, DRIVER. */
int channel_order(struct gpupool_channel *channel, struct channel_fence fence, void *stream,
                  bool *ret_is_pending);

/* The state of a fence on the board, which is not 0. */
enum proto_board_state channel_fence_state(struct gpupool_channel *channel, struct channel_fence fence);

/* Looks which awaited frames are written by now, and notes those that are lost. The lock is held. */
void channel_settle_locked(struct gpupool_channel *channel);

/* Leaves a fence behind the work on a stream; none without a stream. 0, CAPTURING, DRIVER. */
int channel_leave_fence(struct gpupool_channel *channel, void *stream, struct channel_fence *ret_fence);

/* The memory of a slot. */
static inline void *channel_slot_memory(const struct gpupool_channel *channel, uint32_t slot) {
    return (char *)channel->ring.data + slot * channel->stride_bytes;
}

/* "the producer's place, which process 7 …" of a place: for texts. */
#define CHANNEL_PLACE_TEXT 160u
const char *channel_describe_place(const struct gpupool_channel *channel, unsigned place,
                                   char text[static CHANNEL_PLACE_TEXT]);

/* --- watch.c */

/* A call has had nothing: the descriptor becomes readable when that may change. The lock is held. */
void watch_arm_locked(struct gpupool_channel *channel);

/* The next call begins. The lock is held. */
void watch_disarm_locked(struct gpupool_channel *channel);

/* Ends the thread. Accepts NULL. is_child: there is none. */
void watch_end(struct watch *watch, bool is_child);

#endif
