/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer's calls. */
#include <inttypes.h>

#include "base/clock.h"
#include "client/api/client.h"
#include "client/objects/channel/channel.h"
#include "client/session/error.h"

/* The word that tells the producer of releases. */
static const _Atomic uint64_t *releases_of(const struct gpupool_channel *channel) {
    return &channel->pages.view.consumers[channel->pages.place - 1]->releases;
}

/* A producer that drops frames faster than they can be claimed leaves none to be received. */
#define OVERRUNS_MAX 64u

/* Receives, again where all was dropped before it could be claimed. The lock is held. */
static enum receiver_result next(struct gpupool_channel *channel, struct receiver_element *ret_element,
                                 bool *wakes) {
    enum receiver_result result = RECEIVER_OVERRUN;

    if (channel->has_waiting) {
        channel->has_waiting = false;
        *ret_element = channel->waiting;
        return RECEIVER_OK;
    }
    channel->told = channel_state_word(&channel->pages.view, PROTO_CHANNEL_PRODUCER);
    for (unsigned n = 0; n < OVERRUNS_MAX && result == RECEIVER_OVERRUN; n++) {
        bool again = false;
        result = receiver_next(&channel->receiver, ret_element, &again);
        *wakes = *wakes || again;
    }
    return result == RECEIVER_OVERRUN ? RECEIVER_EMPTY : result;
}

/* Whether waiting can help: a producer is there, or none was yet. */
static bool may_come(uint64_t told) {
    enum proto_channel_state state = proto_channel_state_of(told);
    return state == PROTO_CHANNEL_TAKEN || state == PROTO_CHANNEL_EMPTY;
}

/* Receives, and announces sleep where there is nothing. The lock is held. */
static enum receiver_result look(struct gpupool_channel *channel, bool may_sleep,
                                 struct receiver_element *ret_element, struct channel_sleep *ret_sleep,
                                 bool *ret_sleeps, bool *wakes) {
    enum receiver_result result = next(channel, ret_element, wakes);

    *ret_sleeps = false;
    if (result != RECEIVER_EMPTY || !may_sleep)
        return result;
    receiver_sleep_begin(&channel->receiver, ret_sleep);
    result = next(channel, ret_element, wakes);
    *ret_sleeps = result == RECEIVER_EMPTY && may_come(channel->told);
    if (!*ret_sleeps)
        receiver_sleep_end(&channel->receiver);
    return result;
}

/* The frame is lost. */
static void note_lost(struct gpupool_channel *channel, uint64_t sequence) {
    if (channel->n_lost == 0 || sequence != channel->lost_last + 1)
        channel->lost_first = sequence;
    channel->lost_last = sequence;
    channel->n_lost++;
}

void channel_settle_locked(struct gpupool_channel *channel) {
    while (channel->n_awaited > 0) {
        const struct channel_awaited *first = &channel->awaited[channel->first_awaited];
        enum proto_board_state state = channel_fence_state(channel, first->fence);
        if (state == PROTO_BOARD_PENDING)
            break;
        if (state == PROTO_BOARD_LOST) {
            note_lost(channel, first->sequence);
            channel->untold = first->session;
        }
        channel->first_awaited = (channel->first_awaited + 1) % CHANNEL_AWAITED_MAX;
        channel->n_awaited--;
    }
}

static int say_lost(const struct gpupool_channel *channel, uint64_t session) {
    return error_set(GPUPOOL_E_LOST,
                     "channel '%s': session %" PRIu64 " ended before its GPU work on frames %" PRIu64
                     " to %" PRIu64
                     " was done: they have not the contents that were meant, and are received no more",
                     channel->name, session, channel->lost_first, channel->lost_last);
}

/* LOST, with its text: awaited frames are lost, and no call has told of it. Else 0. The lock is held. */
static int check_awaited_locked(struct gpupool_channel *channel) {
    channel_settle_locked(channel);
    int r = channel->untold != 0 ? say_lost(channel, channel->untold) : 0;
    channel->untold = 0;
    return r;
}

/* *ret_told: the state of the producer's place, where there was nothing. *ret_lost: LOST, where earlier frames are lost and
 * there is no element; else 0. */
static enum receiver_result receive(struct gpupool_channel *channel, uint64_t deadline_ns,
                                    struct receiver_element *ret_element, uint64_t *ret_told, int *ret_lost) {
    enum receiver_result result = RECEIVER_EMPTY;
    bool wakes = false, sleeps;
    struct channel_sleep sleep;

    pthread_mutex_lock(&channel->lock);
    *ret_lost = check_awaited_locked(channel);
    if (*ret_lost < 0) {
        pthread_mutex_unlock(&channel->lock);
        return result;
    }
    watch_disarm_locked(channel);
    for (;;) {
        bool may_sleep = deadline_ns != 0 && clock_now_ns() < deadline_ns;
        result = look(channel, may_sleep, ret_element, &sleep, &sleeps, &wakes);
        if (!sleeps)
            break;
        pthread_mutex_unlock(&channel->lock);
        (void)word_wait(&sleep, deadline_ns);
        pthread_mutex_lock(&channel->lock);
        receiver_sleep_end(&channel->receiver);
    }
    if (result == RECEIVER_EMPTY || result == RECEIVER_ENDED) {
        *ret_lost = check_awaited_locked(channel); /* a producer that died since has lost no more */
        watch_arm_locked(channel);
    }
    *ret_told = channel->told;
    pthread_mutex_unlock(&channel->lock);
    if (wakes)
        word_wake(releases_of(channel));
    return result;
}

/* Nothing is there to be received. */
static int say_empty(const struct gpupool_channel *channel, uint64_t told) {
    switch (proto_channel_state_of(told)) {
    case PROTO_CHANNEL_DYING:
    case PROTO_CHANNEL_VACANT:
        return error_set(GPUPOOL_E_VACANT,
                         "channel '%s': the producer has died, and all that it sent was received",
                         channel->name);
    case PROTO_CHANNEL_EMPTY:
        return error_set(GPUPOOL_E_TIMED_OUT, "channel '%s': no producer has joined yet", channel->name);
    default:
        return error_set(GPUPOOL_E_TIMED_OUT, "channel '%s': no frame came in the time", channel->name);
    }
}

static int release_slot(struct gpupool_channel *channel, uint32_t slot, struct channel_fence fence) {
    bool wakes = false;

    pthread_mutex_lock(&channel->lock);
    enum receiver_result result = receiver_release(&channel->receiver, slot, fence, &wakes);
    pthread_mutex_unlock(&channel->lock);
    if (wakes)
        word_wake(releases_of(channel));
    return result == RECEIVER_OK
               ? 0
               : error_set(GPUPOOL_E_INVALID, "channel '%s': slot %u holds no frame that was received",
                           channel->name, slot);
}

/* The next call receives the frame. */
static void put_back(struct gpupool_channel *channel, const struct receiver_element *element) {
    pthread_mutex_lock(&channel->lock);
    channel->waiting = *element;
    channel->has_waiting = true;
    watch_arm_locked(channel);
    pthread_mutex_unlock(&channel->lock);
}

/* A frame could not be given to the caller. One that will never be written is passed over. Returns the error. */
static int fail_frame(struct gpupool_channel *channel, const struct receiver_element *element, int error) {
    char text[ERROR_TEXT_SIZE];

    if (error != GPUPOOL_E_LOST && error != GPUPOOL_E_PROTOCOL) {
        put_back(channel, element);
        return error_prefix(error, "channel '%s': frame %" PRIu64 " is received by the next call",
                            channel->name, element->sequence);
    }
    error_save(text);
    (void)release_slot(channel, element->slot, (struct channel_fence){0});
    error_restore(text);
    return error == GPUPOOL_E_LOST ? error
                                   : error_prefix(error, "channel '%s': frame %" PRIu64 " is passed over",
                                                  channel->name, element->sequence);
}

/* A stream waits for the frame. The oldest awaited one is waited for where there are too many. */
static int await_later(struct gpupool_channel *channel, const struct receiver_element *element) {
    bool is_pending;
    int r = 0;

    pthread_mutex_lock(&channel->lock);
    while (r == 0 && channel->n_awaited == CHANNEL_AWAITED_MAX) {
        struct channel_fence oldest = channel->awaited[channel->first_awaited].fence;
        pthread_mutex_unlock(&channel->lock);
        r = channel_order(channel, oldest, GPUPOOL_NO_STREAM, &is_pending);
        pthread_mutex_lock(&channel->lock);
        if (r == 0)
            channel_settle_locked(channel);
    }
    if (r == 0) {
        uint32_t last = (channel->first_awaited + channel->n_awaited++) % CHANNEL_AWAITED_MAX;
        channel->awaited[last] =
            (struct channel_awaited){element->sequence, element->session, element->fence};
    }
    pthread_mutex_unlock(&channel->lock);
    return r;
}

/* Has the stream wait until the frame is written. LOST: it never will be. */
static int await_frame(struct gpupool_channel *channel, const struct receiver_element *element,
                       void *stream) {
    bool is_pending;
    int r = channel_order(channel, element->fence, stream, &is_pending);

    if (r < 0 || element->fence.word == 0)
        return r;
    switch (channel_fence_state(channel, element->fence)) {
    case PROTO_BOARD_LOST:
        pthread_mutex_lock(&channel->lock);
        channel_settle_locked(channel); /* earlier frames are noted before */
        channel->untold = 0;
        note_lost(channel, element->sequence);
        r = say_lost(channel, element->session);
        pthread_mutex_unlock(&channel->lock);
        return r;
    case PROTO_BOARD_PENDING:
        return await_later(channel, element);
    default:
        return 0;
    }
}

int gpupool_channel_receive(struct gpupool_channel *channel, void *stream, uint64_t timeout_ns,
                            struct gpupool_frame *ret_frame) {
    struct receiver_element element;
    uint64_t told;
    int r = channel_enter(channel, false, stream, "gpupool_channel_receive");

    if (r < 0)
        return r;
    if (ret_frame == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_channel_receive: ret_frame is NULL");
    uint64_t deadline_ns = timeout_ns == GPUPOOL_NOW ? 0 : clock_deadline_ns(clock_now_ns(), timeout_ns);
    enum receiver_result result = receive(channel, deadline_ns, &element, &told, &r);
    if (r < 0)
        return r;
    switch (result) {
    case RECEIVER_OK:
        break;
    case RECEIVER_EMPTY:
        return say_empty(channel, told);
    case RECEIVER_ENDED:
        return error_set(GPUPOOL_E_ENDED,
                         "channel '%s': the producer has left, and all that it sent was received",
                         channel->name);
    default:
        return channel_refuse(channel, PROTO_CHANNEL_PRODUCER);
    }
    r = await_frame(channel, &element, stream);
    if (r < 0)
        return fail_frame(channel, &element, r);
    *ret_frame = (struct gpupool_frame){.data = channel_slot_memory(channel, element.slot),
                                        .size_bytes = element.size_bytes,
                                        .metadata = element.metadata,
                                        .metadata_bytes = element.metadata_bytes,
                                        .sequence = element.sequence,
                                        .missed = element.missed,
                                        .slot = element.slot,
                                        .is_again = element.is_again};
    return error_end(0);
}

int gpupool_channel_release(struct gpupool_channel *channel, const struct gpupool_frame *frame,
                            void *stream) {
    struct channel_fence fence;
    int r = channel_enter(channel, false, stream, "gpupool_channel_release");

    if (r < 0)
        return r;
    if (frame == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_channel_release: frame is NULL");
    r = channel_leave_fence(channel, stream, &fence);
    if (r == 0)
        r = release_slot(channel, frame->slot, fence);
    return error_end(r < 0 ? channel_fail(channel, r) : 0);
}
