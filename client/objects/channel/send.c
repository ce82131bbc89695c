/* SPDX-License-Identifier: Apache-2.0 */
/* The producer's calls. */
#include <inttypes.h>

#include "base/clock.h"
#include "client/api/client.h"
#include "client/objects/channel/channel.h"
#include "client/session/error.h"

/* Looks for a slot, and announces sleep where there is none. The lock is held. */
static enum sender_result look(struct gpupool_channel *channel, bool may_sleep, struct sender_loan *ret_loan,
                               struct channel_sleep *ret_sleep) {
    enum sender_result result = sender_find_slot(&channel->sender, ret_loan);

    if (result != SENDER_FULL || !may_sleep)
        return result;
    sender_sleep_begin(&channel->sender, ret_sleep);
    result = sender_find_slot(&channel->sender, ret_loan);
    if (result != SENDER_FULL)
        sender_sleep_end(&channel->sender);
    return result;
}

/* Finds a slot, and waits for one up to the deadline. */
static enum sender_result find_slot(struct gpupool_channel *channel, uint64_t deadline_ns,
                                    struct sender_loan *ret_loan) {
    bool waits = channel->pages.view.capacities.policy == PROTO_CHANNEL_WAIT;
    struct channel_sleep sleep;
    enum sender_result result;

    pthread_mutex_lock(&channel->lock);
    watch_disarm_locked(channel);
    for (;;) {
        bool may_sleep = waits && deadline_ns != 0 && clock_now_ns() < deadline_ns;
        result = look(channel, may_sleep, ret_loan, &sleep);
        if (result != SENDER_FULL || !may_sleep)
            break;
        pthread_mutex_unlock(&channel->lock);
        (void)word_wait(&sleep, deadline_ns);
        pthread_mutex_lock(&channel->lock);
        sender_sleep_end(&channel->sender);
    }
    if (result == SENDER_FULL)
        watch_arm_locked(channel);
    pthread_mutex_unlock(&channel->lock);
    return result;
}

static int say_full(const struct gpupool_channel *channel) {
    char text[CHANNEL_PLACE_TEXT];

    return channel->sender.place == 0
               ? error_set(GPUPOOL_E_EXHAUSTED,
                           "channel '%s': all of its %" PRIu64 " slots are loaned: send or return some",
                           channel->name, channel->pages.view.capacities.n_slots)
               : error_set(GPUPOOL_E_EXHAUSTED, "channel '%s' is full: %s has not released the oldest frame",
                           channel->name, channel_describe_place(channel, channel->sender.place, text));
}

/* Has the stream wait for the work of others on a slot. */
static int order_behind(struct gpupool_channel *channel, const struct sender_loan *loan, void *stream) {
    bool is_pending;
    int r = 0;

    for (unsigned i = 0; r == 0 && i < loan->n_fences; i++)
        r = channel_order(channel, loan->fences[i], stream, &is_pending);
    return r;
}

int gpupool_channel_loan(struct gpupool_channel *channel, void *stream, uint64_t timeout_ns,
                         struct gpupool_frame *ret_frame) {
    struct sender_loan loan;
    int r = channel_enter(channel, true, stream, "gpupool_channel_loan");

    if (r < 0)
        return r;
    if (ret_frame == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_channel_loan: ret_frame is NULL");
    uint64_t deadline_ns = timeout_ns == GPUPOOL_NOW ? 0 : clock_deadline_ns(clock_now_ns(), timeout_ns);
    switch (find_slot(channel, deadline_ns, &loan)) {
    case SENDER_OK:
        break;
    case SENDER_FULL:
        return say_full(channel);
    default:
        return channel_refuse(channel, channel->sender.place);
    }
    r = order_behind(channel, &loan, stream);
    if (r < 0) {
        pthread_mutex_lock(&channel->lock);
        sender_give_back(&channel->sender, loan.slot, (struct channel_fence){0});
        pthread_mutex_unlock(&channel->lock);
        return channel_fail(channel, r);
    }
    *ret_frame = (struct gpupool_frame){.data = channel_slot_memory(channel, loan.slot),
                                        .size_bytes = channel->pages.view.capacities.slot_bytes,
                                        .slot = loan.slot};
    return error_end(0);
}

int gpupool_channel_send(struct gpupool_channel *channel, const struct gpupool_frame *frame,
                         uint64_t size_bytes, const void *metadata, uint64_t metadata_bytes, void *stream) {
    struct sender_element element = {
        .size_bytes = size_bytes, .metadata = metadata, .metadata_bytes = metadata_bytes};
    bool wakes = false;
    int r = channel_enter(channel, true, stream, "gpupool_channel_send");

    if (r < 0)
        return r;
    if (frame == NULL || (metadata == NULL && metadata_bytes > 0))
        return error_set(GPUPOOL_E_INVALID, "gpupool_channel_send: frame is NULL, or metadata with a size");
    r = channel_leave_fence(channel, stream, &element.fence);
    if (r < 0)
        return channel_fail(channel, r);
    element.session = channel->client->session.id;
    pthread_mutex_lock(&channel->lock);
    enum sender_result result = sender_send(&channel->sender, frame->slot, &element, &wakes);
    pthread_mutex_unlock(&channel->lock);
    if (result != SENDER_OK)
        return error_set(GPUPOOL_E_INVALID,
                         "channel '%s': slot %u is not loaned, or %" PRIu64 " bytes with %" PRIu64
                         " of metadata are more than %" PRIu64 " and %" PRIu64,
                         channel->name, frame->slot, size_bytes, metadata_bytes,
                         channel->pages.view.capacities.slot_bytes,
                         channel->pages.view.capacities.metadata_bytes);
    if (wakes)
        word_wake(&channel->pages.view.producer->head);
    return error_end(0);
}

int gpupool_channel_return(struct gpupool_channel *channel, const struct gpupool_frame *frame, void *stream) {
    struct channel_fence fence;
    int r = channel_enter(channel, true, stream, "gpupool_channel_return");

    if (r < 0)
        return r;
    if (frame == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_channel_return: frame is NULL");
    r = channel_leave_fence(channel, stream, &fence);
    if (r < 0)
        return channel_fail(channel, r);
    pthread_mutex_lock(&channel->lock);
    bool is_loaned =
        frame->slot < channel->pages.view.capacities.n_slots && channel->sender.slots[frame->slot].is_loaned;
    if (is_loaned)
        sender_give_back(&channel->sender, frame->slot, fence);
    pthread_mutex_unlock(&channel->lock);
    return is_loaned ? error_end(0)
                     : error_set(GPUPOOL_E_INVALID, "channel '%s': slot %u is not loaned", channel->name,
                                 frame->slot);
}
