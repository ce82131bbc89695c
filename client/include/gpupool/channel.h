/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_CHANNEL_H
#define GPUPOOL_CHANNEL_H
/**
 * Channels: frames from one process to others, without a copy and without a message to the daemon.
 *
 * A channel has one *producer* and 1 to 16 *consumers*, each in a *place*. Its memory is a buffer of a pool, host or
 * device memory, in equal *slots*. The producer loans a free slot, writes a frame there, and sends it. Each consumer
 * receives each frame in order, and releases it. The slot is free again when all consumers have released it. On the
 * GPU, all of that is in stream order: the calls do not wait for kernels.
 *
 *     producer   gpupool_channel_loan() ──▶ writes ──▶ gpupool_channel_send()
 *     consumer   gpupool_channel_receive() ──▶ reads ──▶ gpupool_channel_release()
 *
 * All capacities are fixed when the channel is made. A place is a queue from the first frame on, also while no
 * process is in it. The *policy* says what a loan does when no slot is free.
 *
 * When a process dies, the others see it at once. Frames that a dead producer had sent can be received. Frames that a
 * dead consumer had received and not released are received again by the process that takes its place next, which
 * then goes on where the dead one was. A slot is not written while GPU work of a dead process may read it. A place that
 * was left in order (gpupool_channel_leave()) holds nothing back, and the next process in it begins with the frames
 * that are sent from then on.
 *
 * Elements pass while the daemon is away. It is needed to make, join and leave.
 *
 * One thread at a time loans, and one receives. Sending, returning and releasing may be done by other threads.
 * Calls return 0 or a negative GPUPOOL_E_…, and need a daemon that knows channels (else VERSION).
 */
#include <gpupool/gpupool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUPOOL_CHANNEL_CONSUMERS_MAX 16u
#define GPUPOOL_CHANNEL_SLOTS_MAX     1024u
#define GPUPOOL_CHANNEL_METADATA_MAX  1024u

/** A loan without a free slot. */
enum gpupool_channel_policy {
    GPUPOOL_CHANNEL_WAIT = 1, /**< waits, up to its timeout */
    GPUPOOL_CHANNEL_DROP_OLDEST =
        2,                    /**< takes the slot of the oldest frame that no consumer has received yet */
    GPUPOOL_CHANNEL_FAIL = 3, /**< EXHAUSTED */
};

#define GPUPOOL_CHANNEL_KEEP                                                                                 \
    1u /**< it stays when no process is in it and its maker is gone; see gpupool_unpublish() */

/** The capacities of a channel. Start from GPUPOOL_CHANNEL_OPTIONS_INIT. */
struct gpupool_channel_options {
    size_t struct_size;      /**< set by the initialiser */
    uint32_t pool;           /**< whose memory the slots are */
    uint32_t policy;         /**< enum gpupool_channel_policy; 0: WAIT */
    uint64_t slot_bytes;     /**< of the largest frame; slots lie at multiples of 512 bytes */
    uint32_t slots;          /**< 2 to GPUPOOL_CHANNEL_SLOTS_MAX; 0: 8 */
    uint32_t consumers;      /**< 1 to GPUPOOL_CHANNEL_CONSUMERS_MAX; 0: 1 */
    uint32_t metadata_bytes; /**< that go with a frame, at most; up to GPUPOOL_CHANNEL_METADATA_MAX */
    uint32_t flags;          /**< GPUPOOL_CHANNEL_KEEP */
};
#define GPUPOOL_CHANNEL_OPTIONS_INIT                                                                         \
    { sizeof(struct gpupool_channel_options), 0, 0, 0, 0, 0, 0, 0 }

/** Places. Consumers are 1 and up. */
#define GPUPOOL_CHANNEL_PRODUCER     0u
#define GPUPOOL_CHANNEL_ANY_CONSUMER UINT32_MAX

/** A place of a channel, that this process is in. */
struct gpupool_channel;

/** A slot that was loaned, or a frame that was received. The caller's, by value. */
struct gpupool_frame {
    void *data;           /**< in the channel's memory; a frame that was received is not written */
    uint64_t size_bytes;  /**< of the frame; of a slot that was loaned: its capacity */
    const void *metadata; /**< of a frame that was received; until it is released */
    uint64_t metadata_bytes;
    uint64_t sequence; /**< of a frame that was received: 1, 2, … */
    uint64_t missed;   /**< frames before it that were dropped since the one received before */
    uint32_t slot;
    uint32_t is_again; /**< 1: a process before had received it, and died before it released it */
    uint64_t reserved[2];
};

/**
 * Makes a channel under a name (as those of <gpupool/names.h>). Processes then join it, this one too. It lasts while a
 * process is in it, or this client is open; with GPUPOOL_CHANNEL_KEEP until gpupool_unpublish().
 * @return 0; INVALID: a capacity is out of range, or the name stands for something; EXHAUSTED and what else
 * gpupool_acquire() says; LIMIT; DRIVER: the daemon has no descriptors left, a few of which a channel takes; VERSION, …
 */
GPUPOOL_API int gpupool_channel_make(struct gpupool_client *client, const char *name,
                                     const struct gpupool_channel_options *options);

/**
 * Takes a place of a channel. Waits until the channel is made and the place is free: one whose process died is when
 * that process's GPU work is over.
 * @param place GPUPOOL_CHANNEL_PRODUCER, a consumer's number, or GPUPOOL_CHANNEL_ANY_CONSUMER: one whose process died
 * comes first, then one that was never taken
 * @param ret_channel the caller's, until gpupool_channel_leave(); untouched on failure
 * @return 0; NO_NAME: not in the time; INVALID: no channel has this name, but buffers; PROTOCOL: a process before left a
 * page that does not check out; and as gpupool_attach()
 */
GPUPOOL_API int gpupool_channel_join(struct gpupool_client *client, const char *name, uint32_t place,
                                     uint64_t timeout_ns, struct gpupool_channel **ret_channel);

/**
 * Leaves the place, and frees the object. Frames that were received and not released are released, and loans are given
 * back: this process's GPU work on those has to be over. Frames that a producer sent can be received still. Waits on the
 * CPU for GPU work behind which this process sent or released slots, up to the option alloc_timeout_ns.
 * Accepts NULL. After gpupool_close() of its client it frees memory alone.
 * @return 0; TIMED_OUT: that work is not done, and the place is not left
 */
GPUPOOL_API int gpupool_channel_leave(struct gpupool_channel *channel);

/**
 * Producer: loans a free slot.
 * @param stream the one that writes the frame: it waits, on the GPU, for the consumers' work on the slot.
 * GPUPOOL_NO_STREAM: the call waits for it
 * @param timeout_ns how long to wait for a free slot, with the policy WAIT
 * @return 0; EXHAUSTED: none is free (the text says whose place holds the oldest); PROTOCOL: a consumer's page does not
 * check out; CAPTURING, DRIVER, TIMED_OUT, INVALID, FORKED
 */
GPUPOOL_API int gpupool_channel_loan(struct gpupool_channel *channel, void *stream, uint64_t timeout_ns,
                                     struct gpupool_frame *ret_frame);

/**
 * Producer: sends the frame in a slot that was loaned. The slot is the channel's then.
 * @param size_bytes of the frame, from 0 to the slot's
 * @param metadata copied; may be NULL where metadata_bytes is 0
 * @param stream behind whose work the frame is complete; GPUPOOL_NO_STREAM: it is
 * @return 0; INVALID: not loaned, or too large; CAPTURING, DRIVER: nothing was sent
 */
GPUPOOL_API int gpupool_channel_send(struct gpupool_channel *channel, const struct gpupool_frame *frame,
                                     uint64_t size_bytes, const void *metadata, uint64_t metadata_bytes,
                                     void *stream GPUPOOL_STREAM_OPTIONAL);

/** Producer: gives a slot back that is not sent, behind the work of a stream that wrote it. */
GPUPOOL_API int gpupool_channel_return(struct gpupool_channel *channel, const struct gpupool_frame *frame,
                                       void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Consumer: receives the next frame.
 *
 * A producer may die before its GPU work on a frame is done. The frame is lost then, and the call returns LOST. A frame
 * that was not received yet is passed over. One that a stream received before, and waited for, has other contents than
 * was meant: gpupool_channel_look() tells which frames that are. Look, or receive, once the stream's work on a frame is
 * done, before its results are used.
 * @param stream the one that reads it: it waits, on the GPU, until the frame is written. GPUPOOL_NO_STREAM: the call
 * waits for it
 * @param timeout_ns how long to wait for a frame; GPUPOOL_NOW: to look
 * @return 0; TIMED_OUT: none came, or one came whose GPU work did not end in alloc_timeout_ns; ENDED: none is left, and
 * the producer has left; VACANT: none is left, and the producer has died: another one may come, and the call may be made
 * again; LOST; PROTOCOL, CAPTURING, DRIVER, INVALID, FORKED. After an error other than LOST and PROTOCOL, the next call
 * receives the same frame
 */
GPUPOOL_API int gpupool_channel_receive(struct gpupool_channel *channel, void *stream, uint64_t timeout_ns,
                                        struct gpupool_frame *ret_frame);

/** Consumer: releases a frame, behind the work of a stream that read it. @return 0; INVALID: it is not held; CAPTURING,
 * DRIVER */
GPUPOOL_API int gpupool_channel_release(struct gpupool_channel *channel, const struct gpupool_frame *frame,
                                        void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * A descriptor to watch for reading (poll, epoll; not to be read). It becomes readable when a call that had nothing
 * (EXHAUSTED, TIMED_OUT, ENDED, VACANT) may have something: make the call again, with GPUPOOL_NOW, until it has
 * nothing. It is readable at first. The first call starts a thread. The descriptor is the channel's.
 * @return 0 or more: the descriptor; DRIVER, NO_MEMORY, INVALID, FORKED
 */
GPUPOOL_API int gpupool_channel_fd(struct gpupool_channel *channel);

/** The state of a place. */
enum gpupool_channel_state {
    GPUPOOL_CHANNEL_EMPTY = 0,  /**< no process was in it yet */
    GPUPOOL_CHANNEL_TAKEN = 1,  /**< a process is in it */
    GPUPOOL_CHANNEL_DYING = 2,  /**< its process died; the process's GPU work may go on */
    GPUPOOL_CHANNEL_VACANT = 3, /**< its process died: the next one goes on */
    GPUPOOL_CHANNEL_LEFT = 4,   /**< its process left */
};

struct gpupool_channel_info {
    struct gpupool_channel_options options; /**< its capacities; flags are 0 */
    uint32_t place;                         /**< of this process */
    /** 1: a frame was received and not given to the caller, because its GPU work did not end in time or a call of the
     * driver failed. The next gpupool_channel_receive() has it. */
    uint32_t has_waiting;
    /** Of a consumer: frames that were lost to it so far, and the sequences of the last ones in a row, each inclusive; 0:
     * none. See gpupool_channel_receive(). */
    uint64_t lost, lost_first, lost_last;
    uint64_t sent; /**< frames, by all producers */
    struct {
        uint32_t state; /**< enum gpupool_channel_state */
        uint32_t reserved;
        uint64_t session;  /**< in the daemon's stats; 0: none yet */
        uint64_t received; /**< of a consumer: the sequence that it has received last */
    } places[1 + GPUPOOL_CHANNEL_CONSUMERS_MAX];
};

/** Looks at the channel. Sends no message. */
GPUPOOL_API int gpupool_channel_look(struct gpupool_channel *channel, struct gpupool_channel_info *ret_info);

#ifdef __cplusplus
}
#endif
#endif
