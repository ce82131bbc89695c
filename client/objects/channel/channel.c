/* SPDX-License-Identifier: Apache-2.0 */
#include "client/objects/channel/channel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/api/name.h"
#include "client/api/shared.h"
#include "client/session/call_time.h"
#include "client/session/error.h"

#define SLOTS_DEFAULT     8u
#define CONSUMERS_DEFAULT 1u

_Static_assert(GPUPOOL_CHANNEL_CONSUMERS_MAX == PROTO_CHANNEL_CONSUMERS_MAX &&
                   GPUPOOL_CHANNEL_SLOTS_MAX == PROTO_CHANNEL_SLOTS_MAX &&
                   GPUPOOL_CHANNEL_METADATA_MAX == PROTO_CHANNEL_METADATA_MAX &&
                   GPUPOOL_CHANNEL_KEEP == PROTO_MAKE_CHANNEL_KEEP &&
                   (int)GPUPOOL_CHANNEL_FAIL == (int)PROTO_CHANNEL_FAIL &&
                   (int)GPUPOOL_CHANNEL_LEFT == (int)PROTO_CHANNEL_LEFT &&
                   GPUPOOL_CHANNEL_ANY_CONSUMER == PROTO_CHANNEL_ANY_CONSUMER,
               "the numbers are the wire's");

/* --- the channels of a client --- */

struct channels {
    struct client_attachment attachment;
    pthread_mutex_t lock;
    struct list all; /* gpupool_channel.link */
};

/* The client closes: its channels have no memory and no place any more. */
static void channels_end(struct client_attachment *attachment, bool is_child) {
    struct channels *channels = container_of(attachment, struct channels, attachment);

    list_for_each_entry_safe(struct gpupool_channel, channel, &channels->all, link) {
        watch_end(channel->watch, is_child);
        channel->watch = NULL;
        if (!is_child)
            channel_pages_close(&channel->pages);
        channel->client = NULL;
        list_remove(&channel->link);
    }
    free(channels);
}

static struct channels *channels_of(struct gpupool_client *client) {
    struct client_attachment *found = client_attachment_of(client, channels_end);

    if (found != NULL)
        return container_of(found, struct channels, attachment);
    struct channels *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    made->attachment.end = channels_end;
    pthread_mutex_init(&made->lock, NULL);
    list_init(&made->all);
    found = client_attach(client, &made->attachment);
    if (found != &made->attachment)
        free(made);
    return container_of(found, struct channels, attachment);
}

/* --- texts and streams --- */

const char *channel_describe_place(const struct gpupool_channel *channel, unsigned place,
                                   char text[static CHANNEL_PLACE_TEXT]) {
    static const char *const states[] = {
        [PROTO_CHANNEL_EMPTY] = "in which no process was yet",
        [PROTO_CHANNEL_TAKEN] = "of session",
        [PROTO_CHANNEL_DYING] = "whose process died, and may still have work on the GPU: session",
        [PROTO_CHANNEL_VACANT] = "whose process died: session",
        [PROTO_CHANNEL_LEFT] = "which was left by session",
    };
    const struct proto_channel_place *there = &channel->pages.view.roll->places[place];
    enum proto_channel_state state = proto_channel_state_of(atomic_load(&there->state));
    char which[32] = "the producer's place", session[32] = "";

    if (place != PROTO_CHANNEL_PRODUCER)
        snprintf(which, sizeof which, "consumer place %u", place);
    if (state != PROTO_CHANNEL_EMPTY)
        snprintf(session, sizeof session, " %" PRIu64, atomic_load(&there->session));
    snprintf(text, CHANNEL_PLACE_TEXT, "%s, %s%s", which,
             state <= PROTO_CHANNEL_LEFT ? states[state] : "in no state", session);
    return text;
}

int channel_fail(const struct gpupool_channel *channel, int error) {
    return error_prefix(error, "channel '%s'", channel->name);
}

int channel_refuse(const struct gpupool_channel *channel, unsigned place) {
    char text[CHANNEL_PLACE_TEXT];

    return error_set(
        GPUPOOL_E_PROTOCOL,
        "channel '%s': the page of %s does not check out: end that process, and make the channel anew",
        channel->name, channel_describe_place(channel, place, text));
}

int channel_enter(struct gpupool_channel *channel, bool as_producer, const void *stream, const char *call) {
    if (channel == NULL)
        return error_set(GPUPOOL_E_INVALID, "%s: no channel", call);
    if (channel->client == NULL)
        return error_set(GPUPOOL_E_INVALID, "%s: the channel's client is closed", call);
    int r = client_enter(channel->client);
    if (r < 0)
        return r;
    if (channel->is_producer != as_producer)
        return error_set(GPUPOOL_E_INVALID, "%s: this process is %s of '%s'", call,
                         channel->is_producer ? "the producer" : "a consumer", channel->name);
    return stream == GPUPOOL_OWN_STREAM ? buffer_refuse_own_stream(call) : 0;
}

static struct proto_board_fence on_board_of(struct channel_fence fence) {
    return (struct proto_board_fence){
        .slot = (uint32_t)(fence.word >> 32), .word = (uint32_t)fence.word - 1, .value = fence.value};
}

enum proto_board_state channel_fence_state(struct gpupool_channel *channel, struct channel_fence fence) {
    const struct proto_board_fence on_board = on_board_of(fence);
    return board_state(&channel->client->session, &on_board);
}

int channel_order(struct gpupool_channel *channel, struct channel_fence fence, void *stream,
                  bool *ret_is_pending) {
    struct session *session = &channel->client->session;
    const struct proto_board_fence on_board = on_board_of(fence);
    const struct gpu *gpu = NULL;
    unsigned device;

    *ret_is_pending = fence.word != 0 && board_state(session, &on_board) == PROTO_BOARD_PENDING;
    if (!*ret_is_pending)
        return 0;
    if (!board_may_have(session, &on_board))
        return error_set(GPUPOOL_E_PROTOCOL, "a fence that no process of this user has left");
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), channel->client->alloc_timeout_ns);
    int r = stream == GPUPOOL_NO_STREAM
                ? 0
                : buffer_find_stream(channel->client, &channel->ring, stream, &gpu, &device);
    return r < 0         ? r
           : gpu == NULL ? board_wait(session, &on_board, deadline_ns)
                         : board_order(session, &on_board, device, stream, deadline_ns);
}

int channel_leave_fence(struct gpupool_channel *channel, void *stream, struct channel_fence *ret_fence) {
    struct proto_board_fence fence;
    const struct gpu *gpu;
    unsigned device;
    bool is_left;

    *ret_fence = (struct channel_fence){0};
    if (stream == GPUPOOL_NO_STREAM)
        return 0;
    int r = buffer_find_stream(channel->client, &channel->ring, stream, &gpu, &device);
    if (r < 0 || gpu == NULL)
        return r;
    r = fences_enqueue_on_board(&channel->client->session, device, stream, &fence, &is_left);
    if (r == 0 && is_left)
        *ret_fence = channel_fence_make(fence.slot, fence.word, fence.value);
    return r;
}

/* --- making --- */

/* The options, with defaults, checked. */
static int read_options(const struct gpupool_channel_options *given,
                        struct gpupool_channel_options *ret_options) {
    static const char call[] = "gpupool_channel_make";

    if (given == NULL || given->struct_size != sizeof *given)
        return error_set(GPUPOOL_E_INVALID, "%s: the options were not made from GPUPOOL_CHANNEL_OPTIONS_INIT",
                         call);
    *ret_options = *given;
    ret_options->policy = given->policy == 0 ? GPUPOOL_CHANNEL_WAIT : given->policy;
    ret_options->slots = given->slots == 0 ? SLOTS_DEFAULT : given->slots;
    ret_options->consumers = given->consumers == 0 ? CONSUMERS_DEFAULT : given->consumers;
    if (given->slot_bytes == 0 || given->slot_bytes > PROTO_SIZE_MAX / PROTO_CHANNEL_SLOTS_MAX / 2)
        return error_set(GPUPOOL_E_INVALID, "%s: slot_bytes %" PRIu64 " is out of range", call,
                         given->slot_bytes);
    ret_options->slot_bytes =
        (given->slot_bytes + CHANNEL_SLOT_ALIGN - 1) / CHANNEL_SLOT_ALIGN * CHANNEL_SLOT_ALIGN;
    const struct proto_channel_capacities capacities = {ret_options->slot_bytes, ret_options->slots,
                                                        ret_options->metadata_bytes, ret_options->consumers,
                                                        ret_options->policy};
    if (!proto_channel_are_valid(&capacities))
        return error_set(
            GPUPOOL_E_INVALID,
            "%s: %u slots, %u consumers, %u bytes of metadata, policy %u: a channel has %u to %u slots, 1 to "
            "%u consumers, up to %u bytes of metadata and a policy of enum gpupool_channel_policy",
            call, ret_options->slots, ret_options->consumers, ret_options->metadata_bytes,
            ret_options->policy, PROTO_CHANNEL_SLOTS_MIN, PROTO_CHANNEL_SLOTS_MAX,
            PROTO_CHANNEL_CONSUMERS_MAX, PROTO_CHANNEL_METADATA_MAX);
    return (given->flags & ~GPUPOOL_CHANNEL_KEEP) == 0
               ? 0
               : error_set(GPUPOOL_E_INVALID, "%s: unknown flags: %#" PRIx32, call, given->flags);
}

static int ask_to_make(struct gpupool_client *client, const char text[static PROTO_NAME_TEXT_SIZE],
                       const struct gpupool_channel_options *options, const struct proto_lease_name *lease) {
    struct connection *connection = &client->session.connection;
    _cleanup_(request_recyclep) struct request *request = connection_request(connection, PROTO_MAKE_CHANNEL);

    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.make_channel = (struct proto_make_channel){
        .lease = lease->lease,
        .generation = lease->generation,
        .slot_bytes = options->slot_bytes,
        .n_slots = options->slots,
        .metadata_bytes = options->metadata_bytes,
        .n_consumers = options->consumers,
        .policy = options->policy,
        .flags = options->flags,
    };
    memcpy(request->message.make_channel.name, text, PROTO_NAME_TEXT_SIZE);
    return connection_exchange(connection, &request, connection_deadline_ns(connection, 0));
}

/* Makes a channel of a buffer. */
static int make_of(struct gpupool_client *client, const char text[static PROTO_NAME_TEXT_SIZE],
                   const struct gpupool_channel_options *options, const struct gpupool_buffer *buffer) {
    struct proto_lease_name lease;
    struct shared_fence fence;

    int r = buffer_share(client, buffer, GPUPOOL_NO_STREAM, "gpupool_channel_make", &lease, &fence);
    return r < 0 ? r : ask_to_make(client, text, options, &lease);
}

int gpupool_channel_make(struct gpupool_client *client, const char *name,
                         const struct gpupool_channel_options *options) {
    char text[PROTO_NAME_TEXT_SIZE], error[ERROR_TEXT_SIZE];
    struct gpupool_channel_options wanted = {0};
    struct gpupool_buffer buffer;
    int r = name_enter(client, "gpupool_channel_make", name, text);

    if (r == 0)
        r = read_options(options, &wanted);
    if (r < 0)
        return r;
    /* The first who writes a slot is another process, perhaps: earlier work on the memory has to be over. */
    r = gpupool_acquire(client, wanted.pool, wanted.slot_bytes * wanted.slots, GPUPOOL_NO_STREAM,
                        client->alloc_timeout_ns, 0, &buffer);
    if (r == 0) {
        r = make_of(client, text, &wanted, &buffer);
        error_save(error);
        (void)gpupool_release(client, &buffer, GPUPOOL_NO_STREAM); /* the channel has it */
        error_restore(error);
    }
    return error_end(r < 0 ? error_prefix(r, "making channel '%s'", text) : 0);
}

/* --- joining and leaving --- */

static int ask_to_join(struct gpupool_client *client, const char text[static PROTO_NAME_TEXT_SIZE],
                       uint32_t place, uint64_t timeout_ns, struct proto_channel_reply *ret_reply) {
    struct connection *connection = &client->session.connection;
    _cleanup_(request_recyclep) struct request *request = connection_request(connection, PROTO_JOIN_CHANNEL);

    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.join_channel = (struct proto_join_channel){.timeout_ns = timeout_ns, .place = place};
    memcpy(request->message.join_channel.name, text, PROTO_NAME_TEXT_SIZE);
    int r =
        connection_exchange_watching(connection, &request, connection_deadline_ns(connection, timeout_ns));
    if (r == 0)
        *ret_reply = request->message.channel;
    return r;
}

static int ask_to_leave(struct gpupool_client *client, uint64_t id, unsigned place) {
    struct connection *connection = &client->session.connection;
    _cleanup_(request_recyclep) struct request *request = connection_request(connection, PROTO_LEAVE_CHANNEL);

    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.leave_channel = (struct proto_channel_page_name){.channel = id, .page = place};
    return connection_exchange(connection, &request, connection_deadline_ns(connection, 0));
}

/* The memory of the slots: a consumer has it for reading alone, where its pool can. */
static int attach_ring(struct gpupool_channel *channel, const struct proto_channel_reply *reply) {
    const struct shared_fence none = {.session = 0};
    struct pool pool;
    int r = pools_find(&channel->client->session, reply->pool, &pool);

    if (r == 0)
        r = buffer_attach(channel->client, &reply->token, &none, GPUPOOL_NO_STREAM,
                          pool.is_movable && !channel->is_producer ? GPUPOOL_READ_ONLY : 0, &channel->ring);
    if (r == 0 && channel->ring.capacity_bytes / reply->n_slots < reply->slot_bytes) {
        buffer_end_lease(channel->client, &channel->ring);
        r = connection_refuse(&channel->client->session.connection,
                              "slots that are smaller than they should be");
    }
    return r;
}

/* Begins with the words of the place, or goes on with those of the process before. */
static int begin_place(struct gpupool_channel *channel) {
    const struct channel_view *view = &channel->pages.view;
    unsigned place = channel->pages.place;
    bool wakes = false, is_good;

    if (channel->is_producer)
        is_good = sender_init(&channel->sender, view, channel->pages.own) == SENDER_OK;
    else
        is_good = receiver_init(&channel->receiver, view, place, channel->pages.own, &wakes) == RECEIVER_OK;
    if (wakes)
        word_wake(&view->consumers[place - 1]->releases);
    return is_good ? 0 : channel_refuse(channel, place);
}

/* Opens a place that the session has taken. */
static int open_place(struct gpupool_channel *channel, const struct proto_channel_reply *reply) {
    int r = board_need(&channel->client->session);

    if (r == 0)
        r = channel_pages_open(&channel->client->session, reply, &channel->pages);
    if (r < 0)
        return r;
    r = attach_ring(channel, reply);
    if (r == 0) {
        r = begin_place(channel);
        if (r == 0)
            return 0;
        buffer_end_lease(channel->client, &channel->ring);
    }
    channel_pages_close(&channel->pages);
    return r;
}

static int join(struct gpupool_client *client, struct channels *channels,
                const char text[static PROTO_NAME_TEXT_SIZE], uint32_t place, uint64_t timeout_ns,
                struct gpupool_channel **ret_channel) {
    _cleanup_(call_time_end) struct call_time time = call_time_begin(timeout_ns);
    _cleanup_(freep) struct gpupool_channel *channel = calloc(1, sizeof *channel);
    struct proto_channel_reply reply;
    char error[ERROR_TEXT_SIZE];

    if (channel == NULL)
        return error_no_memory();
    int r = ask_to_join(client, text, place, timeout_ns, &reply);
    if (r < 0)
        return r;
    channel->client = client;
    channel->id = reply.channel;
    channel->is_producer = reply.place == PROTO_CHANNEL_PRODUCER;
    channel->stride_bytes = reply.slot_bytes;
    memcpy(channel->name, text, sizeof channel->name);
    list_init(&channel->link);
    r = open_place(channel, &reply);
    if (r < 0) {
        error_save(error);
        (void)ask_to_leave(client, reply.channel, reply.place);
        error_restore(error);
        return r;
    }
    pthread_mutex_init(&channel->lock, NULL);
    pthread_mutex_lock(&channels->lock);
    list_append(&channels->all, &channel->link);
    pthread_mutex_unlock(&channels->lock);
    *ret_channel = take_ptr(&channel);
    return 0;
}

int gpupool_channel_join(struct gpupool_client *client, const char *name, uint32_t place, uint64_t timeout_ns,
                         struct gpupool_channel **ret_channel) {
    char text[PROTO_NAME_TEXT_SIZE];
    int r = name_enter(client, "gpupool_channel_join", name, text);

    if (r < 0)
        return r;
    if (ret_channel == NULL ||
        (place > GPUPOOL_CHANNEL_CONSUMERS_MAX && place != GPUPOOL_CHANNEL_ANY_CONSUMER))
        return error_set(
            GPUPOOL_E_INVALID,
            "gpupool_channel_join: ret_channel is NULL, or place %u is none: 0 is the producer's, those of "
            "consumers are 1 to %u",
            place, GPUPOOL_CHANNEL_CONSUMERS_MAX);
    struct channels *channels = channels_of(client);
    if (channels == NULL)
        return error_no_memory();
    r = join(client, channels, text, place, timeout_ns, ret_channel);
    return error_end(r < 0 ? error_prefix(r, "joining channel '%s'", text) : 0);
}

/* Releases what a consumer holds. */
static void release_held(struct gpupool_channel *channel) {
    const struct channel_view *view = &channel->pages.view;
    bool wakes = false;

    for (uint32_t slot = 0; slot < view->capacities.n_slots; slot++)
        if (channel->receiver.slots[slot] != 0)
            (void)receiver_release(&channel->receiver, slot, (struct channel_fence){0}, &wakes);
    if (wakes)
        word_wake(&view->consumers[channel->pages.place - 1]->releases);
}

/* The fence behind which this place's work on a slot is done. */
static struct channel_fence last_fence(const struct gpupool_channel *channel, uint32_t slot) {
    const struct channel_view *view = &channel->pages.view;
    const struct proto_channel_fence *words =
        channel->is_producer ? &channel_slot(view, slot)->fence
                             : &view->consumers[channel->pages.place - 1]->marks[slot].fence;
    struct channel_fence fence;

    return channel_fence_read(words, &fence) ? fence : (struct channel_fence){0};
}

/* Waits for the work of this process on all slots. */
static int wait_for_work(struct gpupool_channel *channel) {
    bool is_pending;
    int r = 0;

    for (uint32_t slot = 0; r == 0 && slot < channel->pages.view.capacities.n_slots; slot++)
        r = channel_order(channel, last_fence(channel, slot), GPUPOOL_NO_STREAM, &is_pending);
    return r;
}

static void forget(struct gpupool_channel *channel) {
    if (channel->client != NULL) {
        struct channels *channels = channels_of(channel->client);
        pthread_mutex_lock(&channels->lock);
        list_remove(&channel->link);
        pthread_mutex_unlock(&channels->lock);
    }
    pthread_mutex_destroy(&channel->lock);
    free(channel);
}

int gpupool_channel_leave(struct gpupool_channel *channel) {
    int r = 0;

    if (channel == NULL)
        return error_end(0);
    if (channel->client == NULL) {
        forget(channel);
        return error_end(0);
    }
    r = client_enter(channel->client);
    if (r == 0)
        r = wait_for_work(channel);
    if (r < 0)
        return r == GPUPOOL_E_FORKED ? r : channel_fail(channel, r);
    watch_end(channel->watch, false);
    channel->watch = NULL;
    if (!channel->is_producer)
        release_held(channel);
    /* Where the daemon is gone there is no place to leave, and the memory needs no release. */
    (void)ask_to_leave(channel->client, channel->id, channel->pages.place);
    buffer_end_lease(channel->client, &channel->ring);
    channel_pages_close(&channel->pages);
    forget(channel);
    return error_end(0);
}

/* --- looking --- */

/* Fills in the results of earlier calls. */
static void look_at_calls(struct gpupool_channel *channel, struct gpupool_channel_info *info) {
    pthread_mutex_lock(&channel->lock);
    channel_settle_locked(channel);
    info->has_waiting = channel->has_waiting;
    info->lost = channel->n_lost;
    info->lost_first = channel->lost_first;
    info->lost_last = channel->lost_last;
    pthread_mutex_unlock(&channel->lock);
}

int gpupool_channel_look(struct gpupool_channel *channel, struct gpupool_channel_info *ret_info) {
    int r = channel_enter(channel, channel != NULL && channel->is_producer, NULL, "gpupool_channel_look");

    if (r < 0)
        return r;
    if (ret_info == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_channel_look: ret_info is NULL");
    const struct channel_view *view = &channel->pages.view;
    const struct proto_channel_capacities *capacities = &view->capacities;
    struct gpupool_channel_info info = {
        .options = {.struct_size = sizeof info.options,
                    .pool = channel->ring.pool,
                    .policy = (uint32_t)capacities->policy,
                    .slot_bytes = capacities->slot_bytes,
                    .slots = (uint32_t)capacities->n_slots,
                    .consumers = (uint32_t)capacities->n_consumers,
                    .metadata_bytes = (uint32_t)capacities->metadata_bytes},
        .place = channel->pages.place,
        .sent = atomic_load(&view->producer->head),
    };
    for (unsigned i = 0; i <= capacities->n_consumers; i++) {
        const struct proto_channel_place *place = &view->roll->places[i];
        info.places[i].state = proto_channel_state_of(atomic_load(&place->state));
        info.places[i].session = atomic_load(&place->session);
        uint64_t next = i > 0 ? atomic_load(&view->consumers[i - 1]->received) : 0;
        info.places[i].received = next > 0 ? next - 1 : 0;
    }
    if (!channel->is_producer)
        look_at_calls(channel, &info);
    *ret_info = info;
    return error_end(0);
}
