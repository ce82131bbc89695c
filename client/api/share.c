/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that several processes have: named by a token, sent, attached, and written again, in stream order.
 * The fences that other processes wait for are words of the board (client/session/board.h). The daemon knows
 * which sessions have a block, and the fences that they released it behind.
 */
#include <inttypes.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/api/shared.h"
#include "client/cache/split_off.h"
#include "client/session/call_time.h"
#include "client/session/error.h"
#include "client/session/lease.h"

/* Between two questions for holders whose fences are not on the board. */
#define REUSE_PAUSE_NS     50000L
#define REUSE_PAUSE_NS_MAX 1000000L

/* How a buffer is sent. */
struct sending {
    uint32_t takers, flags; /* PROTO_SEND_… */
    uint64_t lifetime_ns;
};

/* Makes a request for a name for a block, or for a parcel of it. The daemon tells those who attach the size.
 * NULL, with the error text set, where there is no memory. */
static struct request *token_request(struct gpupool_client *client, uint64_t size_bytes,
                                     const struct sending *sending) {
    struct request *request =
        connection_request(&client->session.connection, sending == NULL ? PROTO_SHARE : PROTO_SEND);

    if (request == NULL)
        return NULL;
    if (sending == NULL)
        request->message.share = (struct proto_share){.size_bytes = size_bytes};
    else
        request->message.send = (struct proto_send){.share.size_bytes = size_bytes,
                                                    .lifetime_ns = sending->lifetime_ns,
                                                    .takers = sending->takers,
                                                    .flags = sending->flags};
    return request;
}

/* Exchanges a request for a token of this lease. */
static int ask_token(struct gpupool_client *client, struct request **request,
                     const struct proto_lease_name *lease) {
    struct proto_message *message = &(*request)->message;

    message->share.lease = lease->lease; /* SEND begins with it */
    message->share.generation = lease->generation;
    int r = connection_exchange(&client->session.connection, request,
                                connection_deadline_ns(&client->session.connection, 0));
    const struct proto_token_reply *reply = r == 0 ? &(*request)->message.token : NULL;
    if (reply != NULL && (reply->lease != lease->lease || reply->generation != lease->generation))
        return connection_refuse(&client->session.connection, "a token of another lease");
    return r;
}

/* Has the daemon make a token for a buffer's block, or a parcel. A buffer that has no lease of its own gets
 * one. */
static int name_block(struct gpupool_client *client, const struct gpupool_buffer *buffer, struct piece *piece,
                      const struct sending *sending, struct proto_token *ret_token) {
    _cleanup_(shared_unreservep) struct shared_lease *note = shared_reserve();
    _cleanup_(request_recyclep) struct request *request = token_request(client, buffer->size_bytes, sending);
    bool is_named = false;

    if (note == NULL || request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    int r = piece == NULL ? 0 : cache_split_off(&client->cache, piece, &request, &is_named);
    if (r < 0)
        return r;
    struct proto_lease_name lease = buffer_lease(buffer, piece);
    r = is_named ? 0 : ask_token(client, &request, &lease);
    if (r == 0)
        *ret_token = request->message.token.token;
    /* A parcel may have been made even where no answer came: the buffer is released as one that others have.
     */
    if (sending != NULL)
        shared_note(&client->shared, &note, &lease, 0, NULL);
    else if (r == 0)
        shared_note(&client->shared, &note, &lease, buffer->size_bytes, ret_token);
    return r;
}

/* Finds the token of a buffer that this client shared before. */
static bool find_token(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                       const struct piece *piece, struct proto_token *ret_token) {
    struct proto_lease_name lease = buffer_lease(buffer, piece);

    return (piece == NULL || piece->split_off) &&
           shared_find_token(&client->shared, lease.lease, lease.generation, buffer->size_bytes, ret_token);
}

/* Leaves the fence that readers of a shared buffer wait for, behind the work on the stream. */
static int leave_for_readers(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                             struct shared_fence *ret_fence) {
    const struct gpu *gpu;
    unsigned device;
    bool is_left;

    *ret_fence = (struct shared_fence){0};
    if (stream == GPUPOOL_NO_STREAM)
        return 0;
    int r = buffer_find_stream(client, buffer, stream, &gpu, &device);
    if (r < 0 || gpu == NULL)
        return r;
    r = fences_enqueue_on_board(&client->session, device, stream, &ret_fence->fence, &is_left);
    if (r == 0 && is_left)
        ret_fence->session = client->session.id;
    return r;
}

/* sending: NULL: the buffer is shared, and not sent. */
static int share(struct gpupool_client *client, const struct gpupool_buffer *buffer, struct piece *piece,
                 void *stream, const struct sending *sending, struct proto_token *ret_name,
                 struct shared_fence *ret_fence) {
    int r = buffer_check_awake(client, buffer);

    if (r == 0)
        r = leave_for_readers(client, buffer, stream, ret_fence);
    return r == 0 && (sending != NULL || !find_token(client, buffer, piece, ret_name))
               ? name_block(client, buffer, piece, sending, ret_name)
               : r;
}

/* Begins a call that shares a buffer. */
static int enter(struct gpupool_client *client, const struct gpupool_buffer *buffer, const char *call,
                 struct piece **ret_piece) {
    int r = buffer_enter(client, buffer, call, ret_piece);
    if (r == 0)
        r = shared_check(client);
    if (r < 0)
        return r;
    return buffer->size_bytes > buffer->capacity_bytes || buffer->capacity_bytes > PROTO_SIZE_MAX
               ? error_set(GPUPOOL_E_INVALID, "%s: not a buffer: size %" PRIu64, call, buffer->size_bytes)
               : 0;
}

/* call: the public function; doing: what it does, for its errors. */
static int enter_and_share(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                           const struct sending *sending, const char *call, const char *doing,
                           struct gpupool_token *ret_token) {
    struct piece *piece = NULL;
    struct shared_fence fence;
    struct proto_token name;
    int r = enter(client, buffer, call, &piece);
    if (r < 0)
        return r;
    if (ret_token == NULL)
        return error_set(GPUPOOL_E_INVALID, "%s: ret_token is NULL", call);
    r = share(client, buffer, piece, stream, sending, &name, &fence);
    if (r == 0)
        token_make(&name, &fence, ret_token);
    return error_end(r < 0 ? buffer_fail(r, doing, buffer) : 0);
}

int buffer_share(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                 const char *call, struct proto_lease_name *ret_lease, struct shared_fence *ret_fence) {
    struct piece *piece = NULL;
    struct proto_token name;
    int r = enter(client, buffer, call, &piece);
    if (r == 0)
        r = share(client, buffer, piece, stream, NULL, &name, ret_fence);
    if (r < 0)
        return buffer_fail(r, "publishing", buffer);
    *ret_lease = buffer_lease(buffer, piece);
    return 0;
}

int gpupool_share(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                  struct gpupool_token *ret_token) {
    return enter_and_share(client, buffer, stream, NULL, "gpupool_share", "sharing", ret_token);
}

static int enter_and_send(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                          const struct sending *sending, struct gpupool_token *ret_token) {
    int r = client_enter(client);

    if (r < 0)
        return r;
    if (sending->takers == 0)
        return error_set(
            GPUPOOL_E_INVALID,
            "gpupool_send: takers is 0: name how many calls of gpupool_attach() the token serves");
    if (sending->lifetime_ns == 0 || sending->lifetime_ns > PROTO_PARCEL_NS_MAX)
        return error_set(GPUPOOL_E_INVALID,
                         "gpupool_send: lifetime_ns %" PRIu64 ": 1 to %" PRIu64
                         " (a day), so that what nobody takes comes back",
                         sending->lifetime_ns, (uint64_t)PROTO_PARCEL_NS_MAX);
    return enter_and_share(client, buffer, stream, sending, "gpupool_send", "sending", ret_token);
}

int gpupool_send(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                 uint32_t takers, uint64_t lifetime_ns, struct gpupool_token *ret_token) {
    const struct sending sending = {.takers = takers, .lifetime_ns = lifetime_ns};
    return enter_and_send(client, buffer, stream, &sending, ret_token);
}

int gpupool_send_held(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                      uint32_t takers, uint64_t lifetime_ns, struct gpupool_token *ret_token) {
    const struct sending sending = {.takers = takers, .flags = PROTO_SEND_HELD, .lifetime_ns = lifetime_ns};
    return enter_and_send(client, buffer, stream, &sending, ret_token);
}

int gpupool_revoke(struct gpupool_client *client, const struct gpupool_token *token) {
    struct shared_fence fence;
    struct proto_token name;
    int r = client_enter(client);

    if (r < 0)
        return r;
    if (token == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_revoke: token is NULL");
    if (!token_read(token, &name, &fence))
        return error_set(GPUPOOL_E_NO_TOKEN, "revoking what was sent: these bytes are no token");
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&client->session.connection, PROTO_REVOKE);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.revoke = name;
    r = connection_exchange(&client->session.connection, &request,
                            connection_deadline_ns(&client->session.connection, 0));
    return error_end(r < 0 ? error_prefix(r, "revoking what was sent") : 0);
}

/* Makes what comes on the stream wait for a fence on the board, and the caller itself where there is no
 * stream or no GPU. */
static int wait_for_other(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                          const struct proto_board_fence *fence) {
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), client->alloc_timeout_ns);
    const struct gpu *gpu = NULL;
    unsigned device;
    int r = stream == GPUPOOL_NO_STREAM ? 0 : buffer_find_stream(client, buffer, stream, &gpu, &device);

    return r < 0         ? r
           : gpu == NULL ? board_wait(&client->session, fence, deadline_ns)
                         : board_order(&client->session, fence, device, stream, deadline_ns);
}

int buffer_wait_for_writer(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                           const struct shared_fence *fence) {
    int r = fence->session == 0 ? 0 : board_need(&client->session);
    if (fence->session == 0 || r < 0)
        return r;
    if (!board_may_have(&client->session, &fence->fence))
        return error_set(GPUPOOL_E_NO_TOKEN, "the token names work that no process of this user has");
    r = wait_for_other(client, buffer, stream, &fence->fence);
    if (r < 0)
        return r;
    switch (board_state(&client->session, &fence->fence)) {
    case PROTO_BOARD_LOST:
        return shared_fail(fence);
    case PROTO_BOARD_PENDING:
        return shared_await(&client->shared, fence);
    case PROTO_BOARD_READY:
        break;
    }
    return 0;
}

int buffer_attach(struct gpupool_client *client, const struct proto_token *name,
                  const struct shared_fence *fence, void *stream, uint32_t flags,
                  struct gpupool_buffer *ret_buffer) {
    _cleanup_(call_time_end) struct call_time time = call_time_begin(client->alloc_timeout_ns);
    _cleanup_(bringing_endp) struct session *bringing = bringing_begin(&client->session);
    char text[ERROR_TEXT_SIZE];
    struct grant grant;
    _cleanup_(shared_unreservep) struct shared_lease *note = shared_reserve();

    if (note == NULL)
        return GPUPOOL_E_NO_MEMORY;
    struct request *request = connection_request(&client->session.connection, PROTO_ATTACH);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.attach = *name;
    const struct lease_access access = {.access = (flags & GPUPOOL_READ_ONLY) != 0 ? GPU_ACCESS_READ
                                                                                   : GPU_ACCESS_READ_WRITE,
                                        .is_own = (flags & GPUPOOL_CAN_SLEEP) != 0};
    int r = lease_take(&client->session, request, connection_deadline_ns(&client->session.connection, 0),
                       access, &grant);
    if (r < 0)
        return r;
    *ret_buffer = buffer_of_grant(client, &grant);
    const struct proto_lease_name lease = buffer_lease(ret_buffer, NULL);
    shared_note(&client->shared, &note, &lease, 0, NULL);
    r = buffer_wait_for_writer(client, ret_buffer, stream, fence);
    if (r == 0)
        return 0;
    error_save(text);
    buffer_end_lease(client, ret_buffer);
    error_restore(text);
    return r;
}

int gpupool_attach(struct gpupool_client *client, const struct gpupool_token *token, void *stream,
                   uint32_t flags, struct gpupool_buffer *ret_buffer) {
    struct gpupool_buffer buffer;
    struct shared_fence fence;
    struct proto_token name;
    int r = client_enter(client);
    if (r == 0)
        r = shared_check(client);
    if (r < 0)
        return r;
    if (token == NULL || ret_buffer == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_attach: no token, or ret_buffer is NULL");
    if (stream == GPUPOOL_OWN_STREAM)
        return buffer_refuse_own_stream("gpupool_attach");
    if ((flags & ~(GPUPOOL_READ_ONLY | GPUPOOL_CAN_SLEEP)) != 0)
        return error_set(GPUPOOL_E_INVALID, "gpupool_attach: unknown flags: %#" PRIx32, flags);
    if (!token_read(token, &name, &fence))
        return error_set(GPUPOOL_E_NO_TOKEN, "attaching a shared buffer: these bytes are no token");
    r = buffer_attach(client, &name, &fence, stream, flags, &buffer);
    if (r < 0)
        return error_prefix(r, "attaching a shared buffer"); /* the token is a secret: not into any log */
    *ret_buffer = buffer;
    return error_end(0);
}

/* Asks who else has a lease's block. */
static int ask_holders(struct gpupool_client *client, const struct proto_lease_name *lease,
                       struct proto_holders *ret_holders) {
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&client->session.connection, PROTO_ASK_HOLDERS);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.ask_holders = *lease;
    int r = connection_exchange(&client->session.connection, &request,
                                connection_deadline_ns(&client->session.connection, 0));
    if (r == 0)
        *ret_holders = request->message.holders;
    return r;
}

/* Asks who else has a block until all that released it are named, or are through. */
static int find_holders(struct gpupool_client *client, const struct proto_lease_name *lease,
                        struct proto_holders *ret_holders) {
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), client->alloc_timeout_ns);
    long pause_ns = REUSE_PAUSE_NS;

    for (unsigned n_asks = 1;; n_asks++) {
        int r = ask_holders(client, lease, ret_holders);
        if (r < 0)
            return r;
        /* Their releases may lie in their sockets, which the daemon reads in turns with this one's. */
        if (ret_holders->n_holding > 0 && n_asks < PROTO_HOLDERS_ASKS)
            continue;
        if (ret_holders->n_holding > 0)
            return error_set(GPUPOOL_E_SHARED, "others have it too, by %s: wait until they have released it",
                             COUNT_TEXT(ret_holders->n_holding, "lease"));
        if (ret_holders->n_left == 0)
            return 0;
        if (clock_now_ns() >= deadline_ns)
            return error_set(GPUPOOL_E_TIMED_OUT, "GPU work of those that released it is not done yet");
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        pause_ns = 2 * pause_ns < REUSE_PAUSE_NS_MAX ? 2 * pause_ns : REUSE_PAUSE_NS_MAX;
    }
}

/* Has the stream wait for those that released the block. */
static int reuse(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                 const struct proto_lease_name *lease, void *stream) {
    _cleanup_(call_time_end) struct call_time time = call_time_begin(client->alloc_timeout_ns);
    struct proto_holders holders;
    int r = find_holders(client, lease, &holders);

    if (r == 0 && holders.count > 0)
        r = board_need(&client->session);
    for (uint32_t i = 0; r == 0 && i < holders.count; i++)
        if (board_may_have(&client->session, &holders.fences[i]))
            r = wait_for_other(client, buffer, stream, &holders.fences[i]);
    return r;
}

int gpupool_reuse(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream) {
    struct piece *piece = NULL;
    int r = buffer_enter(client, buffer, "gpupool_reuse", &piece);
    if (r == 0)
        r = shared_check(client);
    if (r < 0)
        return r;
    if (stream == GPUPOOL_OWN_STREAM)
        return buffer_refuse_own_stream("gpupool_reuse");
    struct proto_lease_name lease = buffer_lease(buffer, piece);
    r = buffer_check_awake(client, buffer);
    if (r == 0 && (piece == NULL || piece->split_off) &&
        shared_is_noted(&client->shared, lease.lease, lease.generation))
        r = reuse(client, buffer, &lease, stream);
    return error_end(r < 0 ? buffer_fail(r, "using again", buffer) : 0);
}
