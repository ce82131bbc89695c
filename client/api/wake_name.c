/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that wake, or change their generation (<gpupool/names.h>): the buffers of a reader get those of another generation
 * at their addresses. The states of a name are those of client/api/name.h. The steps:
 *
 * 1. The daemon is asked for the name. Its layout is compared.
 * 2. Each buffer of the generation is taken: a lease on it, its segments imported, its place compared. The name has its
 *    former buffers meanwhile.
 * 3. The CPU waits for the GPU work on the former buffers, if they are mapped, and has the stream wait for the
 *    publisher's.
 * 4. The mappings change, buffer by buffer (own_row_change()). If one fails, those before it change back.
 * 5. The former leases go back.
 *
 * A failure up to step 3 only gives back what step 2 took.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/api/name.h"
#include "client/session/call_time.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/own_row.h"

/* A buffer of the generation that is to come. */
struct taken {
    struct proto_lease lease;
    uint64_t segment; /* its first one */
    struct own_change change;
    bool is_in; /* it is in the row, and the change leads back to the former one */
    struct sleeper
        *sleeper; /* of the former buffer: in the table, or for the table where the name cannot be awake */
};

/* One call of gpupool_wake_name(). */
struct waking {
    struct gpupool_client *client;
    struct gpupool_name *name;
    struct opening opening;
    struct proto_named named; /* the generation */
    size_t n_taken;
    struct taken taken[PROTO_NAME_BUFFERS_MAX];
};

/* --- 1: the generation --- */

static int check_layout(const struct waking *waking) {
    const struct gpupool_name *name = waking->name;
    const struct proto_named *named = &waking->named;
    bool is_same = named->layout == name->layout && named->count == name->count;

    for (uint32_t i = 0; is_same && i < named->count; i++)
        is_same = named->buffers[i].size_bytes == name->buffers[i].size_bytes;
    return is_same ? 0
                   : error_set(GPUPOOL_E_INVALID,
                               "generation %" PRIu64 " has another layout than generation %" PRIu64
                               ": close the name, and open it anew",
                               named->generation, name->generation);
}

/* --- 2: its buffers --- */

/* Takes a lease by the daemon's name of a block. *ret_segment: its first one. */
static int take_lease(struct gpupool_client *client, const struct proto_token *token,
                      struct proto_lease *ret_lease, struct segment **ret_segment) {
    struct connection *connection = &client->session.connection;
    _cleanup_(shared_unreservep) struct shared_lease *note = shared_reserve();

    if (note == NULL)
        return GPUPOOL_E_NO_MEMORY;
    _cleanup_(request_recyclep) struct request *request = connection_request(connection, PROTO_ATTACH);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.attach = *token;
    int r = connection_exchange(connection, &request, connection_deadline_ns(connection, 0));
    if (r < 0)
        return r;
    *ret_lease = request->message.lease;
    *ret_segment = request->segment;
    const struct proto_lease_name lease = {.lease = ret_lease->lease, .generation = ret_lease->generation};
    shared_note(&client->shared, &note, &lease, 0, NULL);
    fences_show(&client->session.fences);
    return 0;
}

static void give_lease_back(struct gpupool_client *client, const struct proto_lease *lease) {
    lease_give_back(&client->session, lease);
    shared_end(&client->shared, lease->lease, lease->generation);
}

/* Prepares a lease for the place of a buffer. */
static int prepare(struct waking *waking, size_t i, const struct proto_lease *lease,
                   const struct segment *segment, struct taken *taken) {
    struct session *session = &waking->client->session;
    const struct gpupool_buffer *buffer = &waking->name->buffers[i];
    struct pool pool, former;

    int r = pools_find(session, lease->pool, &pool);
    if (r == 0)
        r = pools_find(session, buffer->pool, &former);
    if (r == 0 && (pool.kind != former.kind || memcmp(pool.uuid, former.uuid, sizeof pool.uuid) != 0))
        r = error_set(GPUPOOL_E_INVALID,
                      "the buffer lies on another device than the one in whose place it is to be");
    if (r == 0 && !pool.is_movable)
        r = buffer_refuse_pool(&pool);
    if (r == 0)
        r = own_row_prepare(session, buffer_lease(buffer, NULL), lease, segment, pool.uuid, &taken->change);
    return r;
}

static int take(struct waking *waking, size_t i) {
    struct gpupool_client *client = waking->client;
    const struct gpupool_buffer *buffer = &waking->name->buffers[i];
    struct taken *taken = &waking->taken[i];
    struct sleeper *sleeper = waking->name->is_asleep ? sleepers_find(&client->sleepers, buffer)
                                                      : sleeper_of_name(buffer_lease(buffer, NULL));
    struct segment *segment = NULL;
    struct proto_lease lease = {0};

    if (sleeper == NULL)
        return error_no_memory();
    int r = take_lease(client, &waking->named.buffers[i].token, &lease, &segment);
    if (r == 0) {
        r = prepare(waking, i, &lease, segment, taken);
        if (r < 0)
            give_lease_back(client, &lease);
    }
    if (r < 0) {
        if (!waking->name->is_asleep)
            free(sleeper);
        return error_prefix(r, "buffer %zu", i);
    }
    taken->lease = lease;
    taken->segment = segment->id;
    taken->sleeper = sleeper;
    waking->n_taken++;
    return 0;
}

/* Ends what was taken. Keeps the error's text. */
static void give_taken_back(struct waking *waking) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (size_t i = 0; i < waking->n_taken; i++) {
        struct taken *taken = &waking->taken[i];
        own_change_free(&taken->change);
        give_lease_back(waking->client, &taken->lease);
        if (!waking->name->is_asleep)
            free(taken->sleeper);
        *taken = (struct taken){0};
    }
    waking->n_taken = 0;
    error_restore(text);
}

/* --- 3: work --- */

static int settle_work(struct waking *waking) {
    struct gpupool_client *client = waking->client;
    const struct gpupool_name *name = waking->name;
    void *stream = waking->opening.stream;
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), client->alloc_timeout_ns);
    const struct gpu *gpu;
    unsigned device;
    int r = 0;

    for (size_t i = 0; r == 0 && i < name->count; i++) {
        if (stream != GPUPOOL_NO_STREAM)
            r = buffer_find_stream(client, &name->buffers[i], stream, &gpu, &device);
        if (r == 0 && !name->is_asleep)
            r = buffer_wait(client, &name->buffers[i], stream, deadline_ns);
    }
    for (uint32_t i = 0; r == 0 && i < name->count; i++) {
        const struct shared_fence fence = name_fence(&waking->named, i);
        r = buffer_wait_for_writer(client, &name->buffers[i], stream, &fence);
    }
    return r;
}

/* --- 4: mappings --- */

static int change(struct waking *waking, size_t i) {
    struct taken *taken = &waking->taken[i];
    int r = own_row_change(&waking->client->session, &taken->change);

    if (r == 0)
        taken->is_in = !taken->is_in;
    return r;
}

/* Changes the first buffers back. Returns whether the name is as it was. */
static bool change_back(struct waking *waking, size_t count) {
    const struct gpupool_name *name = waking->name;
    char text[ERROR_TEXT_SIZE];
    bool is_back = true;

    error_save(text);
    for (size_t i = 0; i < count; i++)
        is_back = change(waking, i) == 0 && is_back;
    error_restore(text);
    return is_back && (name->is_asleep || own_row_is_mapped(&waking->client->session,
                                                            buffer_lease(&name->buffers[count], NULL)));
}

/* *ret_is_torn: the call fails, and the name is not as it was. */
static int change_all(struct waking *waking, bool *ret_is_torn) {
    *ret_is_torn = false;
    for (size_t i = 0; i < waking->n_taken; i++) {
        int r = change(waking, i);
        if (r < 0) {
            *ret_is_torn = !change_back(waking, i);
            return r;
        }
    }
    return 0;
}

/* --- 5: leases --- */

/* Has a buffer of the name be the one in its row, and lists the segments of the former one, whose lease goes back. */
static void commit_buffer(struct waking *waking, size_t i, struct offered *offered) {
    struct gpupool_client *client = waking->client;
    struct gpupool_buffer *buffer = &waking->name->buffers[i];
    struct taken *taken = &waking->taken[i];
    const struct gpupool_buffer former = *buffer;

    buffer->lease = taken->lease.lease;
    buffer->generation = taken->lease.generation;
    buffer->pool = taken->lease.pool;
    held_add(&client->session.held, buffer->lease, buffer->generation, taken->segment);
    if (waking->name->is_asleep && !taken->sleeper->has_block)
        return;
    buffer_end_lease(client, &former);
    name_add_offered(client, offered, former.pool, taken->change.segments, taken->change.count);
}

static void commit(struct waking *waking) {
    struct gpupool_name *name = waking->name;
    struct offered offered = {0};

    for (size_t i = 0; i < waking->n_taken; i++) {
        struct taken *taken = &waking->taken[i];
        if (name->is_asleep)
            sleepers_remove(&waking->client->sleepers, taken->sleeper);
        commit_buffer(waking, i, &offered);
        own_change_free(&taken->change);
        free(taken->sleeper);
    }
    name->generation = waking->named.generation;
    name->flags = waking->named.flags;
    name->is_asleep = false;
    name_offer(waking->client, &offered);
}

/* The driver maps neither generation. Each buffer is the one that is in its row, unmapped where the driver unmaps it, and
 * sleeps. */
static void leave_asleep(struct waking *waking) {
    struct sleepers *sleepers = &waking->client->sleepers;
    struct gpupool_name *name = waking->name;
    struct offered offered = {0};
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (size_t i = 0; i < waking->n_taken; i++) {
        struct taken *taken = &waking->taken[i];
        if (taken->is_in)
            commit_buffer(waking, i, &offered);
        else
            give_lease_back(waking->client, &taken->lease);
        taken->sleeper->has_block = taken->sleeper->has_block || taken->is_in;
        if (!name->is_asleep)
            sleepers_add(sleepers, taken->sleeper);
        sleepers_rename(sleepers, taken->sleeper, buffer_lease(&name->buffers[i], NULL));
        own_change_free(&taken->change);
    }
    name->is_asleep = true;
    name_unmap(waking->client, name);
    name_offer(waking->client, &offered);
    error_restore(text);
}

/* --- the call --- */

/* Has the name be awake with the generation that was asked for, or leaves it as it was. */
static int have_generation(struct waking *waking) {
    _cleanup_(bringing_endp) struct session *bringing = bringing_begin(&waking->client->session);
    bool is_torn = false;
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < waking->named.count; i++)
        r = take(waking, i);
    if (r == 0)
        r = settle_work(waking);
    if (r == 0)
        r = change_all(waking, &is_torn);
    if (r == 0) {
        commit(waking);
    } else if (is_torn) {
        leave_asleep(waking);
        r = error_prefix(r, "the name sleeps: gpupool_wake_name() it");
    } else {
        give_taken_back(waking);
    }
    return r;
}

static int wake(struct waking *waking) {
    const struct opening *opening = &waking->opening;
    _cleanup_(call_time_end) struct call_time time = call_time_begin(clock_left_ns(opening->deadline_ns));

    for (unsigned n = 1;; n++) {
        int r = name_ask(opening, &waking->named);
        if (r == 0)
            r = check_layout(waking);
        if (r == 0)
            r = name_check_access(opening->may_write, &waking->named);
        if (r < 0)
            return r;
        r = have_generation(waking);
        if (r == 0 || !name_is_replaced(r) || n == NAME_OPEN_TRIES)
            return r;
    }
}

int gpupool_wake_name(struct gpupool_client *client, struct gpupool_name *name, uint64_t generation,
                      void *stream, uint64_t timeout_ns) {
    int r = name_enter_opened(client, "gpupool_wake_name", name, stream);

    if (r == 0)
        r = shared_check(client);
    if (r < 0)
        return r;
    if (!name->is_asleep && name->generation >= generation)
        return error_end(0);
    struct waking *waking = calloc(1, sizeof *waking);
    if (waking == NULL)
        return error_no_memory();
    waking->client = client;
    waking->name = name;
    waking->opening = (struct opening){.client = client,
                                       .generation = generation,
                                       .may_write = name->may_write,
                                       .can_sleep = true,
                                       .stream = stream,
                                       .deadline_ns = clock_deadline_ns(clock_now_ns(), timeout_ns)};
    memcpy(waking->opening.text, name->text, sizeof name->text);
    r = wake(waking);
    free(waking);
    return error_end(r < 0 ? error_prefix(r, "waking '%s'", name->text) : 0);
}
