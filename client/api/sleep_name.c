/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that sleep (<gpupool/names.h>): the buffers of a reader are unmapped all, and their leases go back. The states of
 * a name are those of client/api/name.h. Up to the first lease that goes back, a step that fails is undone.
 */
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

/* A buffer that the program put to sleep by itself is not the name's to unmap or to map. */
static int check_buffers(struct gpupool_client *client, const struct gpupool_name *name, const char *call) {
    for (size_t i = 0; i < name->count; i++) {
        const struct sleeper *sleeper = sleepers_find(&client->sleepers, &name->buffers[i]);
        if (sleeper != NULL && !sleeper->is_of_name)
            return error_set(GPUPOOL_E_INVALID, "%s: buffer %zu sleeps by itself: gpupool_wake() it before",
                             call, i);
    }
    return 0;
}

int name_enter_opened(struct gpupool_client *client, const char *call, const struct gpupool_name *name,
                      void *stream) {
    int r = client_enter(client);

    if (r < 0)
        return r;
    if (name == NULL)
        return error_set(GPUPOOL_E_INVALID, "%s: no name", call);
    if (!name->can_sleep)
        return error_set(GPUPOOL_E_INVALID, "%s: '%s' was opened without GPUPOOL_NAME_CAN_SLEEP", call,
                         name->text);
    return stream == GPUPOOL_OWN_STREAM ? buffer_refuse_own_stream(call) : check_buffers(client, name, call);
}

/* One call of gpupool_sleep_name() on a name that is awake. */
struct falling_asleep {
    struct gpupool_client *client;
    struct gpupool_name *name;
    struct sleeper *sleepers[PROTO_NAME_BUFFERS_MAX]; /* not in the table yet */
};

static void free_sleepers(struct falling_asleep *falling) {
    for (size_t i = 0; i < falling->name->count; i++)
        free(falling->sleepers[i]);
}

static int make_sleepers(struct falling_asleep *falling) {
    for (size_t i = 0; i < falling->name->count; i++) {
        falling->sleepers[i] = sleeper_of_name(buffer_lease(&falling->name->buffers[i], NULL));
        if (falling->sleepers[i] == NULL)
            return error_no_memory();
    }
    return 0;
}

static void enter_all(struct falling_asleep *falling) {
    for (size_t i = 0; i < falling->name->count; i++)
        sleepers_add(&falling->client->sleepers, take_ptr(&falling->sleepers[i]));
    falling->name->is_asleep = true;
}

/* Maps the first buffers of a name again. Returns whether the name is all mapped then. */
static bool map_back(struct falling_asleep *falling, size_t count) {
    struct session *session = &falling->client->session;
    char text[ERROR_TEXT_SIZE];
    bool is_mapped = true;

    error_save(text);
    for (size_t i = 0; i < count; i++)
        is_mapped = own_row_map(session, buffer_lease(&falling->name->buffers[i], NULL)) == 0 && is_mapped;
    error_restore(text);
    return is_mapped;
}

void name_unmap(struct gpupool_client *client, const struct gpupool_name *name) {
    char text[ERROR_TEXT_SIZE];
    bool is_unmapped;

    error_save(text);
    for (size_t i = 0; i < name->count; i++)
        (void)own_row_unmap(&client->session, buffer_lease(&name->buffers[i], NULL), &is_unmapped);
    error_restore(text);
}

/* Unmaps all buffers, or none. Where the driver does neither, all that goes are unmapped, and the name sleeps. */
static int unmap(struct falling_asleep *falling) {
    const struct gpupool_name *name = falling->name;

    for (size_t i = 0; i < name->count; i++) {
        bool is_unmapped;
        int r = own_row_unmap(&falling->client->session, buffer_lease(&name->buffers[i], NULL), &is_unmapped);
        if (r == 0)
            continue;
        if (map_back(falling, i) && !is_unmapped)
            return r;
        name_unmap(falling->client, name);
        enter_all(falling);
        return error_prefix(r, "the name sleeps, and its memory is leased still: gpupool_wake_name() it");
    }
    enter_all(falling);
    return 0;
}

static int fall_asleep(struct falling_asleep *falling, void *stream) {
    struct gpupool_client *client = falling->client;
    const struct gpupool_name *name = falling->name;
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), client->alloc_timeout_ns);

    int r = connection_check(&client->session.connection);
    if (r == 0)
        r = make_sleepers(falling);
    for (size_t i = 0; r == 0 && i < name->count; i++)
        r = buffer_wait(client, &name->buffers[i], stream, deadline_ns);
    return r < 0 ? r : unmap(falling);
}

/* --- leases --- */

void name_offer(struct gpupool_client *client, struct offered *offered) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    if (offered->count > 0)
        (void)lease_close_offered(&client->session, offered->pool, offered->ids, offered->count);
    error_restore(text);
    free(offered->ids);
    *offered = (struct offered){0};
}

void name_add_offered(struct gpupool_client *client, struct offered *offered, uint32_t pool,
                      const uint64_t *ids, uint32_t count) {
    if (offered->pool != pool)
        name_offer(client, offered);
    uint64_t *longer = realloc(offered->ids, (offered->count + count) * sizeof *ids);
    if (longer == NULL)
        return;
    memcpy(longer + offered->count, ids, count * sizeof *ids);
    *offered = (struct offered){.pool = pool, .ids = longer, .count = offered->count + count};
}

/* Gives the lease of a buffer back that is unmapped. */
static int give_back(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                     struct sleeper *sleeper, struct offered *offered) {
    struct session *session = &client->session;
    const struct proto_lease_name lease = sleeper->lease;
    bool is_unmapped;
    uint32_t count;

    int r = connection_check(&session->connection);
    if (r == 0)
        r = own_row_unmap(session, lease, &is_unmapped);
    if (r == 0)
        r = lease_release(session, lease.lease, lease.generation, 0, 0, FENCE_NONE);
    if (r < 0)
        return r;
    held_end(&session->held, lease.lease, lease.generation);
    shared_end(&client->shared, lease.lease, lease.generation);
    sleeper->has_block = false;
    _cleanup_(freep) uint64_t *segments = own_row_empty(session, lease, &count);
    name_add_offered(client, offered, buffer->pool, segments, count);
    return 0;
}

/* Gives back all leases that a name which sleeps has, and goes on after one that does not go. */
static int give_all_back(struct gpupool_client *client, const struct gpupool_name *name) {
    struct offered offered = {0};
    char text[ERROR_TEXT_SIZE];
    int r = 0;

    for (size_t i = 0; i < name->count; i++) {
        struct sleeper *sleeper = sleepers_find(&client->sleepers, &name->buffers[i]);
        int failure = sleeper->has_block ? give_back(client, &name->buffers[i], sleeper, &offered) : 0;
        if (failure == 0 || r < 0)
            continue;
        r = failure;
        error_save(text);
    }
    name_offer(client, &offered);
    if (r == 0)
        return 0;
    error_restore(text);
    return error_prefix(r,
                        "the name sleeps, and memory of it is leased still: call gpupool_sleep_name() again");
}

int gpupool_sleep_name(struct gpupool_client *client, struct gpupool_name *name, void *stream) {
    int r = name_enter_opened(client, "gpupool_sleep_name", name, stream);

    if (r < 0)
        return r;
    _cleanup_(call_time_end) struct call_time time = call_time_begin(client->alloc_timeout_ns);
    _cleanup_(bringing_endp) struct session *bringing = bringing_begin(&client->session);
    if (!name->is_asleep) {
        struct falling_asleep falling = {.client = client, .name = name};
        r = fall_asleep(&falling, stream);
        free_sleepers(&falling);
    }
    if (r == 0)
        r = give_all_back(client, name);
    return error_end(r < 0 ? error_prefix(r, "putting '%s' to sleep", name->text) : 0);
}
