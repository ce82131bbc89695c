/* SPDX-License-Identifier: Apache-2.0 */
/* Opening names, and waiting for them (<gpupool/names.h>). */
#include <inttypes.h>
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
#include "client/session/own_row.h"

int name_ask(const struct opening *opening, struct proto_named *ret_named) {
    struct connection *connection = &opening->client->session.connection;
    uint64_t timeout_ns = clock_left_ns(opening->deadline_ns);
    _cleanup_(request_recyclep) struct request *request = connection_request(connection, PROTO_OPEN_NAME);

    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.open_name = (struct proto_open_name){
        .generation = opening->generation,
        .timeout_ns = timeout_ns,
        .flags = opening->flags,
    };
    memcpy(request->message.open_name.name, opening->text, sizeof opening->text);
    int r =
        connection_exchange_watching(connection, &request, connection_deadline_ns(connection, timeout_ns));
    if (r == 0)
        *ret_named = request->message.named;
    return r;
}

static int read_part(const struct opening *opening, const struct proto_named *named, uint8_t *directory,
                     uint32_t *done_bytes) {
    struct connection *connection = &opening->client->session.connection;
    _cleanup_(request_recyclep) struct request *request =
        connection_request(connection, PROTO_READ_DIRECTORY);

    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.read_directory =
        (struct proto_read_directory){.generation = named->generation, .offset_bytes = *done_bytes};
    memcpy(request->message.read_directory.name, opening->text, sizeof opening->text);
    int r = connection_exchange(connection, &request, connection_deadline_ns(connection, 0));
    if (r < 0)
        return r;
    const struct proto_directory_part *part = &request->message.directory;
    if (part->offset_bytes != *done_bytes || part->n_bytes > named->directory_bytes - *done_bytes)
        return connection_refuse(connection, "another part of a directory than was asked for");
    memcpy(directory + *done_bytes, part->bytes, part->n_bytes);
    *done_bytes += part->n_bytes;
    return 0;
}

static int read_directory(const struct opening *opening, const struct proto_named *named,
                          struct gpupool_name *name) {
    uint32_t done_bytes = 0;
    int r = 0;

    if (named->directory_bytes == 0)
        return 0;
    name->directory = malloc(named->directory_bytes);
    if (name->directory == NULL)
        return error_no_memory();
    while (r == 0 && done_bytes < named->directory_bytes)
        r = read_part(opening, named, name->directory, &done_bytes);
    name->directory_bytes = done_bytes;
    return r;
}

struct shared_fence name_fence(const struct proto_named *named, uint32_t i) {
    const struct proto_named_buffer *buffer = &named->buffers[i];

    return (struct shared_fence){.fence = buffer->fence, .session = buffer->has_fence ? named->session : 0};
}

/* A buffer that is to sleep lies in whole segments: then those of another generation can take their place. */
static int check_whole(const struct opening *opening, const struct gpupool_buffer *buffer) {
    if (!opening->can_sleep ||
        own_row_is_whole(&opening->client->session, buffer_lease(buffer, NULL), buffer->capacity_bytes))
        return 0;
    return error_set(
        GPUPOOL_E_INVALID,
        "a buffer of the set shares its segments with other memory, and cannot change in place: have "
        "the publisher acquire its buffers with GPUPOOL_CAN_SLEEP");
}

/* Attaches one buffer: read-only where its pool's segments can be mapped so. */
static int attach(const struct opening *opening, const struct proto_named *named, uint32_t i,
                  struct gpupool_name *name) {
    const struct proto_named_buffer *buffer = &named->buffers[i];
    struct shared_fence fence = name_fence(named, i);
    struct gpupool_buffer *attached = &name->buffers[name->count];
    struct pool pool;
    int r = pools_find(&opening->client->session, buffer->pool, &pool);

    if (r == 0 && opening->can_sleep && !pool.is_movable)
        r = buffer_refuse_pool(&pool);
    if (r == 0)
        r = buffer_attach(opening->client, &buffer->token, &fence, opening->stream,
                          (pool.is_movable && !opening->may_write ? GPUPOOL_READ_ONLY : 0) |
                              (opening->can_sleep ? GPUPOOL_CAN_SLEEP : 0),
                          attached);
    if (r < 0)
        return r;
    attached->size_bytes =
        buffer->size_bytes; /* its owner may have shared it anew as another number of bytes */
    name->count++;
    return check_whole(opening, attached);
}

/* Gives back what was opened of a name that could not be opened whole. */
static void give_back(struct gpupool_client *client, struct gpupool_name *name) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    while (name->count > 0)
        buffer_end_lease(client, &name->buffers[--name->count]);
    error_restore(text);
    free(name->directory);
    free(name);
}

static int open_generation(const struct opening *opening, const struct proto_named *named,
                           struct gpupool_name **ret_name) {
    struct gpupool_name *name = calloc(1, sizeof *name);

    if (name == NULL)
        return error_no_memory();
    memcpy(name->text, opening->text, sizeof name->text);
    name->generation = named->generation;
    name->layout = named->layout;
    name->flags = named->flags;
    name->may_write = opening->may_write;
    name->can_sleep = opening->can_sleep;
    int r = read_directory(opening, named, name);
    for (uint32_t i = 0; r == 0 && i < named->count; i++)
        r = attach(opening, named, i, name);
    if (r < 0) {
        give_back(opening->client, name);
        return r;
    }
    *ret_name = name;
    return 0;
}

bool name_is_replaced(int error) {
    return error == GPUPOOL_E_NO_TOKEN || error == GPUPOOL_E_STALE || error == GPUPOOL_E_NO_NAME;
}

int name_check_access(bool may_write, const struct proto_named *named) {
    return may_write && (named->flags & PROTO_PUBLISH_LIVE) == 0
               ? error_set(GPUPOOL_E_INVALID, "its contents are fixed: open it without GPUPOOL_NAME_WRITE")
               : 0;
}

static int open_name(const struct opening *opening, struct gpupool_name **ret_name, int *ret_builds) {
    _cleanup_(call_time_end) struct call_time time = call_time_begin(clock_left_ns(opening->deadline_ns));
    struct proto_named named;

    for (unsigned n = 1;; n++) {
        int r = name_ask(opening, &named);
        if (r < 0)
            return r;
        *ret_builds = named.state == PROTO_NAME_BUILD;
        if (*ret_builds)
            return 0;
        r = name_check_access(opening->may_write, &named);
        if (r < 0)
            return r;
        r = open_generation(opening, &named, ret_name);
        if (r == 0 || !name_is_replaced(r) || n == NAME_OPEN_TRIES)
            return r;
    }
}

/* Begins a call that opens a name. */
static int enter(struct gpupool_client *client, const char *call, const char *name, uint64_t timeout_ns,
                 uint32_t flags, void *stream, struct opening *opening) {
    *opening = (struct opening){
        .client = client,
        .may_write = (flags & GPUPOOL_NAME_WRITE) != 0,
        .can_sleep = (flags & GPUPOOL_NAME_CAN_SLEEP) != 0,
        .stream = stream,
        .deadline_ns = clock_deadline_ns(clock_now_ns(), timeout_ns),
    };
    int r = name_enter(client, call, name, opening->text);
    if (r == 0)
        r = shared_check(client);
    if (r < 0)
        return r;
    if ((flags & ~(GPUPOOL_NAME_WRITE | GPUPOOL_NAME_CAN_SLEEP)) != 0)
        return error_set(GPUPOOL_E_INVALID, "%s: unknown flags: %#" PRIx32, call, flags);
    return stream == GPUPOOL_OWN_STREAM ? buffer_refuse_own_stream(call) : 0;
}

int gpupool_open_name(struct gpupool_client *client, const char *name, uint64_t generation, uint32_t flags,
                      void *stream, uint64_t timeout_ns, struct gpupool_name **ret_name) {
    static const char call[] = "gpupool_open_name";
    struct opening opening;
    int builds, r = enter(client, call, name, timeout_ns, flags, stream, &opening);

    if (r < 0)
        return r;
    if (ret_name == NULL)
        return error_set(GPUPOOL_E_INVALID, "%s: ret_name is NULL", call);
    opening.generation = generation;
    r = open_name(&opening, ret_name, &builds);
    return error_end(r < 0 ? error_prefix(r, "opening '%s'", opening.text) : 0);
}

int gpupool_open_or_build(struct gpupool_client *client, const char *name, uint32_t flags, void *stream,
                          uint64_t timeout_ns, struct gpupool_name **ret_name, int *ret_builds) {
    static const char call[] = "gpupool_open_or_build";
    struct gpupool_name *opened = NULL;
    struct opening opening;
    int builds, r = enter(client, call, name, timeout_ns, flags, stream, &opening);

    if (r < 0)
        return r;
    if (ret_name == NULL || ret_builds == NULL)
        return error_set(GPUPOOL_E_INVALID, "%s: ret_name or ret_builds is NULL", call);
    opening.flags = PROTO_OPEN_NAME_BUILD;
    r = open_name(&opening, &opened, &builds);
    if (r < 0)
        return error_prefix(r, "opening '%s'", opening.text);
    *ret_name = opened;
    *ret_builds = builds;
    return error_end(0);
}

int gpupool_watch_name(struct gpupool_client *client, const char *name, uint64_t generation,
                       uint64_t timeout_ns, uint64_t *ret_generation) {
    static const char call[] = "gpupool_watch_name";
    struct opening opening;
    struct proto_named named;
    int r = enter(client, call, name, timeout_ns, 0, GPUPOOL_NO_STREAM, &opening);

    if (r < 0)
        return r;
    if (ret_generation == NULL)
        return error_set(GPUPOOL_E_INVALID, "%s: ret_generation is NULL", call);
    _cleanup_(call_time_end) struct call_time time = call_time_begin(timeout_ns);
    opening.generation = generation;
    opening.flags = PROTO_OPEN_NAME_CHANGE;
    r = name_ask(&opening, &named);
    if (r < 0)
        return error_prefix(r, "watching '%s'", opening.text);
    *ret_generation = named.state == PROTO_NAME_THERE ? named.generation : 0;
    return error_end(0);
}

int gpupool_close_name(struct gpupool_client *client, struct gpupool_name *name, void *stream) {
    int r = 0;

    if (name == NULL)
        return 0;
    while (client != NULL && name->count > 0) {
        r = gpupool_release(client, &name->buffers[name->count - 1], stream);
        if (r < 0)
            return r;
        name->count--;
    }
    free(name->directory);
    free(name);
    return r;
}

const struct gpupool_buffer *gpupool_name_buffers(const struct gpupool_name *name, size_t *ret_count) {
    if (ret_count != NULL)
        *ret_count = name->count;
    return name->buffers;
}

const void *gpupool_name_directory(const struct gpupool_name *name, size_t *ret_bytes) {
    if (ret_bytes != NULL)
        *ret_bytes = name->directory_bytes;
    return name->directory;
}

uint64_t gpupool_name_generation(const struct gpupool_name *name) {
    return name->generation;
}

uint64_t gpupool_name_layout(const struct gpupool_name *name) {
    return name->layout;
}

uint32_t gpupool_name_flags(const struct gpupool_name *name) {
    return name->flags;
}
