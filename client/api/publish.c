/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing buffers under a name, and what becomes of names (<gpupool/names.h>). */
#include <inttypes.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fnv.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/api/name.h"
#include "client/api/shared.h"
#include "client/session/error.h"
#include "proto/text.h"

_Static_assert(GPUPOOL_NAME_BUFFERS_MAX == PROTO_NAME_BUFFERS_MAX &&
                   GPUPOOL_NAME_DIRECTORY_MAX == PROTO_DIRECTORY_BYTES_MAX &&
                   GPUPOOL_NAME_TEXT_SIZE == PROTO_NAME_TEXT_SIZE,
               "the limits are the wire's");
_Static_assert(GPUPOOL_NAME_KEEP == PROTO_PUBLISH_KEEP && GPUPOOL_NAME_LIVE == PROTO_PUBLISH_LIVE &&
                   GPUPOOL_NAME_SAME_LAYOUT == PROTO_PUBLISH_SAME_LAYOUT,
               "so are the flags");

static int check_version(const struct gpupool_client *client, const char *call) {
    return client->session.connection.version < PROTO_VERSION_NAMES
               ? error_set(GPUPOOL_E_VERSION, "%s: the daemon is older than names: update gpupoold", call)
               : 0;
}

int name_enter(struct gpupool_client *client, const char *call, const char *name,
               char text[static PROTO_NAME_TEXT_SIZE]) {
    int r = client_enter(client);

    if (r < 0)
        return r;
    size_t length = name == NULL ? 0 : strnlen(name, PROTO_NAME_TEXT_SIZE);
    if (length == 0 || length == PROTO_NAME_TEXT_SIZE || !text_is_printable(name, length))
        return error_set(GPUPOOL_E_INVALID, "%s: a name has 1 to %u bytes of printable UTF-8", call,
                         PROTO_NAME_TEXT_SIZE - 1);
    memset(text, 0, PROTO_NAME_TEXT_SIZE);
    memcpy(text, name, length);
    return check_version(client, call);
}

/* Exchanges a request that is answered at once. */
static int exchange(struct gpupool_client *client, struct request **request) {
    struct connection *connection = &client->session.connection;
    return connection_exchange(connection, request, connection_deadline_ns(connection, 0));
}

static int write_part(struct gpupool_client *client, const uint8_t *bytes, uint32_t offset_bytes,
                      uint32_t n_bytes) {
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&client->session.connection, PROTO_WRITE_DIRECTORY);

    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    struct proto_directory_part *part = &request->message.write_directory;
    part->offset_bytes = offset_bytes;
    part->n_bytes = n_bytes;
    memcpy(part->bytes, bytes + offset_bytes, n_bytes);
    return exchange(client, &request);
}

static int write_directory(struct gpupool_client *client, const struct gpupool_publication *publication) {
    uint32_t left = (uint32_t)publication->directory_bytes, done = 0;
    int r = 0;

    for (uint32_t n; r == 0 && left > 0; left -= n, done += n) {
        n = left < PROTO_DIRECTORY_PART_MAX ? left : PROTO_DIRECTORY_PART_MAX;
        r = write_part(client, publication->directory, done, n);
    }
    return r;
}

static uint64_t layout_of(const struct gpupool_buffer *buffers, size_t count,
                          const struct gpupool_publication *publication) {
    uint64_t hash = FNV_FIRST;

    for (size_t i = 0; i < count; i++) {
        hash = fnv_hash(hash, &buffers[i].size_bytes, sizeof buffers[i].size_bytes);
        hash = fnv_hash(hash, &buffers[i].kind, sizeof buffers[i].kind);
    }
    return fnv_hash(hash, publication->directory, publication->directory_bytes);
}

/* Gives each buffer a lease of its own that others may have, and a fence behind its work. */
static int name_buffers(struct gpupool_client *client, const struct gpupool_buffer *buffers, size_t count,
                        void *stream, struct proto_publish *publish) {
    for (size_t i = 0; i < count; i++) {
        struct proto_lease_name lease;
        struct shared_fence fence;
        int r = buffer_share(client, &buffers[i], stream, "gpupool_publish", &lease, &fence);
        if (r < 0)
            return r;
        publish->buffers[i] = (struct proto_publish_buffer){
            .lease = lease.lease,
            .generation = lease.generation,
            .size_bytes = buffers[i].size_bytes,
            .fence = fence.fence,
            .has_fence = fence.session != 0,
        };
    }
    return 0;
}

/* The daemon ended between the parts of the directory and the publication, and the next one does not know the
 * parts: they are written again. */
#define PUBLISH_TRIES 4u

static int ask_to_publish(struct gpupool_client *client, const struct proto_publish *publish,
                          uint64_t *ret_generation) {
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&client->session.connection, PROTO_PUBLISH);

    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.publish = *publish;
    int r = exchange(client, &request);
    if (r == 0)
        *ret_generation = request->message.published.generation;
    return r;
}

static int publish_buffers(struct gpupool_client *client, const struct gpupool_buffer *buffers, size_t count,
                           void *stream, const struct gpupool_publication *publication,
                           struct proto_publish *publish, uint64_t *ret_generation) {
    publish->flags = publication->flags;
    publish->count = (uint32_t)count;
    publish->directory_bytes = (uint32_t)publication->directory_bytes;
    publish->layout = layout_of(buffers, count, publication);
    int r = name_buffers(client, buffers, count, stream, publish);
    if (r < 0)
        return r;
    for (unsigned n = 1;; n++) {
        /* One draft of a session: two threads do not write theirs at once. */
        pthread_mutex_lock(&client->publishing);
        r = write_directory(client, publication);
        bool is_lost = r == GPUPOOL_E_INVALID;
        if (r == 0) {
            r = ask_to_publish(client, publish, ret_generation);
            is_lost = r == GPUPOOL_E_STALE && publication->directory_bytes > 0;
        }
        pthread_mutex_unlock(&client->publishing);
        if (!is_lost || n == PUBLISH_TRIES)
            return r;
    }
}

int gpupool_publish(struct gpupool_client *client, const char *name, const struct gpupool_buffer *buffers,
                    size_t count, void *stream, const struct gpupool_publication *publication,
                    uint64_t *ret_generation) {
    static const char call[] = "gpupool_publish";
    const struct gpupool_publication none = GPUPOOL_PUBLICATION_INIT;
    struct proto_publish publish = {0};
    uint64_t generation = 0;
    int r = name_enter(client, call, name, publish.name);

    if (r < 0)
        return r;
    if (publication == NULL)
        publication = &none;
    if (publication->struct_size != sizeof *publication || publication->reserved != 0)
        return error_set(GPUPOOL_E_INVALID,
                         "%s: the publication was not made from GPUPOOL_PUBLICATION_INIT of this library's release",
                         call);
    if ((publication->flags & ~PROTO_PUBLISH_FLAGS) != 0)
        return error_set(GPUPOOL_E_INVALID, "%s: unknown flags: %#" PRIx32, call, publication->flags);
    if (buffers == NULL || count == 0 || count > PROTO_NAME_BUFFERS_MAX)
        return error_set(GPUPOOL_E_INVALID, "%s: %zu buffers: 1 to %u", call, count, PROTO_NAME_BUFFERS_MAX);
    if (publication->directory_bytes > PROTO_DIRECTORY_BYTES_MAX ||
        (publication->directory == NULL && publication->directory_bytes > 0))
        return error_set(GPUPOOL_E_INVALID,
                         "%s: a directory of %zu bytes: up to %u. Put a larger one into a buffer of the set", call,
                         publication->directory_bytes, PROTO_DIRECTORY_BYTES_MAX);
    r = publish_buffers(client, buffers, count, stream, publication, &publish, &generation);
    if (r < 0)
        return error_prefix(r, "publishing '%s'", publish.name);
    if (ret_generation != NULL)
        *ret_generation = generation;
    return error_end(0);
}

/* --- what becomes of names --- */

static int end_name(struct gpupool_client *client, const char *call, const char *name, uint64_t generation,
                    uint32_t flags) {
    char text[PROTO_NAME_TEXT_SIZE];
    int r = name_enter(client, call, name, text);

    if (r < 0)
        return r;
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&client->session.connection, PROTO_UNPUBLISH);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.unpublish = (struct proto_unpublish){.generation = generation, .flags = flags};
    memcpy(request->message.unpublish.name, text, sizeof text);
    r = exchange(client, &request);
    return error_end(r < 0 ? error_prefix(r, "%s '%s'", call, text) : 0);
}

int gpupool_unpublish(struct gpupool_client *client, const char *name, uint64_t generation) {
    return end_name(client, "gpupool_unpublish", name, generation, 0);
}

int gpupool_abandon_name(struct gpupool_client *client, const char *name) {
    return end_name(client, "gpupool_abandon_name", name, 0, PROTO_UNPUBLISH_BUILD);
}

static struct gpupool_name_info info_of(const struct proto_listed_name *listed) {
    struct gpupool_name_info info = {
        .generation = listed->generation,
        .bytes = listed->bytes,
        .layout = listed->layout,
        .session = listed->session,
        .flags = listed->flags,
        .buffers = listed->count,
    };
    memcpy(info.name, listed->name, sizeof info.name);
    return info;
}

int gpupool_names(struct gpupool_client *client, struct gpupool_name_info *names, size_t capacity,
                  size_t *ret_count) {
    size_t count = 0;
    uint64_t after = 0;
    int r = client_enter(client);

    if (r == 0)
        r = check_version(client, "gpupool_names");
    if (r < 0)
        return r;
    if (ret_count == NULL || (names == NULL && capacity > 0))
        return error_set(GPUPOOL_E_INVALID, "gpupool_names: ret_count is NULL, or names with a capacity");
    for (uint32_t n_left = 1; n_left > 0;) {
        _cleanup_(request_recyclep) struct request *request =
            connection_request(&client->session.connection, PROTO_LIST_NAMES);
        if (request == NULL)
            return GPUPOOL_E_NO_MEMORY;
        request->message.list_names.after = after;
        r = exchange(client, &request);
        if (r < 0)
            return error_prefix(r, "listing names");
        const struct proto_names *listed = &request->message.names;
        for (uint32_t i = 0; i < listed->count; i++, count++) {
            if (count < capacity)
                names[count] = info_of(&listed->names[i]);
            if (listed->names[i].id <= after)
                return connection_refuse(&client->session.connection, "names that are not in order");
            after = listed->names[i].id;
        }
        n_left = listed->count > 0 ? listed->n_left : 0;
    }
    *ret_count = count;
    return error_end(0);
}
