/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/held.h"

#include <stdlib.h>

#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/session.h"

void held_init(struct holdings *held) {
    pthread_mutex_init(&held->lock, NULL);
    pthread_rwlock_init(&held->bringing, NULL);
}

void held_forget(struct holdings *held) {
    for (unsigned i = 0; i < HELD_BUCKETS; i++)
        while (held->buckets[i] != NULL) {
            struct held_lease *lease = held->buckets[i];
            held->buckets[i] = lease->next;
            free(lease);
        }
}

void held_deinit(struct holdings *held) {
    held_forget(held);
    pthread_rwlock_destroy(&held->bringing);
    pthread_mutex_destroy(&held->lock);
}

static struct held_lease **bucket_of(struct holdings *held, uint64_t lease) {
    return &held->buckets[lease % HELD_BUCKETS];
}

static bool is_of(const struct held_lease *held, uint64_t lease, uint64_t generation) {
    return held->lease == lease && held->generation == generation;
}

void held_add(struct holdings *held, uint64_t lease, uint64_t generation, uint64_t segment) {
    struct held_lease *entry = malloc(sizeof *entry);

    pthread_mutex_lock(&held->lock);
    if (entry == NULL) {
        held->is_incomplete = true;
    } else {
        *entry = (struct held_lease){
            .next = *bucket_of(held, lease), .lease = lease, .generation = generation, .segment = segment};
        *bucket_of(held, lease) = entry;
    }
    pthread_mutex_unlock(&held->lock);
}

void held_end(struct holdings *held, uint64_t lease, uint64_t generation) {
    pthread_mutex_lock(&held->lock);
    for (struct held_lease **at = bucket_of(held, lease), *entry; (entry = *at) != NULL;) {
        if (!is_of(entry, lease, generation)) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        free(entry);
    }
    pthread_mutex_unlock(&held->lock);
}

int held_release(struct holdings *held, uint64_t lease, uint64_t generation, struct fence fence) {
    bool any = false;

    pthread_mutex_lock(&held->lock);
    for (struct held_lease *entry = *bucket_of(held, lease); entry != NULL; entry = entry->next) {
        if (!is_of(entry, lease, generation) || entry->is_released)
            continue;
        entry->is_released = any = true;
        entry->fence = fence;
    }
    any = any || held->is_incomplete;
    pthread_mutex_unlock(&held->lock);
    return any ? 0 : error_set(GPUPOOL_E_STALE, "the buffer was released before");
}

/* Marks the segments of leases that are not released, or whose fences are not ready. */
static void mark_held(struct session *session) {
    struct holdings *held = &session->held;

    pthread_mutex_lock(&held->lock);
    for (unsigned i = 0; i < HELD_BUCKETS; i++)
        for (const struct held_lease *entry = held->buckets[i]; entry != NULL; entry = entry->next)
            if (!entry->is_released || !fence_is_ready(session, entry->fence))
                segments_mark(&session->segments, entry->segment);
    pthread_mutex_unlock(&held->lock);
}

/* Whether nothing can come from the daemon any more, and nothing has come that its caller has not seen. */
static bool is_silent(struct connection *connection) {
    pthread_mutex_lock(&connection->lock);
    bool is = connection->broken != 0 && !connection->reading && list_is_empty(&connection->completed);
    pthread_mutex_unlock(&connection->lock);
    return is;
}

/* Memory that went to the daemon behind fences, before the connection broke, is listed nowhere. The GPU may
 * use it until they are ready. */
static void close_what_is_left(struct session *session, bool is_busy) {
    bool is_done = fences_are_ready(&session->fences);
    uint64_t id;
    uint32_t pool;

    while (segments_find_unmarked(&session->segments, !is_busy, is_done, &id, &pool))
        (void)rows_remove_segment(session, id, pool);
}

void session_let_go(struct session *session, bool (*mark)(void *owner), void *owner) {
    struct holdings *held = &session->held;
    char text[ERROR_TEXT_SIZE];

    if (!is_silent(&session->connection) || pthread_rwlock_trywrlock(&held->bringing) != 0)
        return;
    if (is_silent(&session->connection) && !held->is_incomplete) {
        error_save(text);
        segments_unmark(&session->segments);
        bool is_busy = mark != NULL && mark(owner);
        mark_held(session);
        rows_mark(session);
        close_what_is_left(session, is_busy);
        error_restore(text);
    }
    pthread_rwlock_unlock(&held->bringing);
}

bool session_is_over(struct session *session) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    if (!connection_is_up(&session->connection))
        connection_hear_end(&session->connection);
    bool is = connection_check(&session->connection) != 0;
    error_restore(text);
    return is;
}

struct session *bringing_begin(struct session *session) {
    pthread_rwlock_rdlock(&session->held.bringing);
    return session;
}

void bringing_endp(struct session **session) {
    pthread_rwlock_unlock(&(*session)->held.bringing);
}
