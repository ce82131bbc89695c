/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/farewell.h"

#include <pthread.h>

#include "base/cleanup.h"
#include "base/lock.h"
#include "client/api/binding.h"
#include "client/session/call_time.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list clients = {&clients, &clients};
static struct gpupool_client *leaving; /* says farewell, and is not in the list */
static pthread_cond_t has_left = PTHREAD_COND_INITIALIZER;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

/* --- the list, which a forked child finds whole --- */

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void) {
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void) {
    leaving = NULL; /* in a thread of the parent */
    pthread_cond_init(&has_left, NULL);
    pthread_mutex_unlock(&lock);
}

static void prepare(void) {
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void farewell_enter(struct gpupool_client *client) {
    pthread_once(&prepared, prepare);
    LOCKED(&lock);
    list_append(&clients, &client->link);
}

void farewell_remove(struct gpupool_client *client) {
    LOCKED(&lock);
    while (leaving == client)
        pthread_cond_wait(&has_left, &lock);
    list_remove(&client->link);
}

/* --- the farewell --- */

static void leave(struct gpupool_client *client) {
    struct session *session = &client->session;
    uint64_t end_ns = connection_deadline_ns(&session->connection, 0);
    _cleanup_(call_time_end) struct call_time time = call_time_begin_until(end_ns);

    if (devices_synchronize_until(&session->devices, end_ns))
        session_leave(session);
}

/* Takes the next client to leave out of the list. NULL: there is none. A parent's client is none, nor is one
 * whose daemon is gone: no daemon gives its memory to others before the process ends. */
static struct gpupool_client *take_next(void) {
    LOCKED(&lock);
    list_for_each_entry(struct gpupool_client, client, &clients, link) {
        if (!gpupool_internal_is_connected(client))
            continue;
        list_remove(&client->link);
        list_init(&client->link);
        leaving = client;
        return client;
    }
    return NULL;
}

static void end_leaving(void) {
    LOCKED(&lock);
    leaving = NULL;
    pthread_cond_broadcast(&has_left);
}

void gpupool_internal_say_farewell(void) {
    for (struct gpupool_client *client; (client = take_next()) != NULL;) {
        leave(client);
        end_leaving();
    }
}
