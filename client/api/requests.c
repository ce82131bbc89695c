/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/requests.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/high_fd.h"
#include "base/thread.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/session/call_time.h"
#include "client/session/submit.h"

/* The first slots of a table that has none. */
#define SLOTS_FIRST 16u

void requests_init(struct requests *requests) {
    pthread_mutex_init(&requests->lock, NULL);
    pthread_cond_init(&requests->changed, NULL);
    requests->wake_fd = -1;
}

void requests_deinit(struct requests *requests) {
    free(requests->slots);
    requests->wake_fd = close_fd(requests->wake_fd);
    pthread_cond_destroy(&requests->changed);
    pthread_mutex_destroy(&requests->lock);
}

void open_request_free(struct open_request *request) {
    if (request == NULL)
        return;
    close_fd(request->fd);
    free(request);
}

/* --- the table --- */

/* Makes free slots. Locked. 0 or NO_MEMORY. */
static int add_slots_locked(struct requests *requests) {
    uint32_t count = requests->n_slots == 0 ? SLOTS_FIRST : requests->n_slots * 2;
    struct request_slot *slots = realloc(requests->slots, count * sizeof *slots);

    if (slots == NULL)
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory for the list of requests");
    for (uint32_t i = requests->n_slots; i < count; i++)
        slots[i] = (struct request_slot){.next_free = i + 1 < count ? i + 2 : 0};
    requests->first_free = requests->n_slots + 1;
    requests->slots = slots;
    requests->n_slots = count;
    return 0;
}

static int enter(struct requests *requests, struct open_request *request) {
    int r = 0;

    pthread_mutex_lock(&requests->lock);
    if (requests->first_free == 0)
        r = add_slots_locked(requests);
    if (r == 0) {
        uint32_t place = requests->first_free;
        struct request_slot *slot = &requests->slots[place - 1];
        requests->first_free = slot->next_free;
        slot->request = request;
        request->number = (uint64_t)++slot->generation << 32 | place;
    }
    pthread_mutex_unlock(&requests->lock);
    return r;
}

/* The request of a number. NULL, with the error text set: there is none. Locked. */
static struct open_request *find_locked(const struct requests *requests, uint64_t number) {
    uint32_t place = (uint32_t)number;
    struct open_request *request =
        place != 0 && place <= requests->n_slots ? requests->slots[place - 1].request : NULL;

    if (request != NULL && request->number == number)
        return request;
    error_set(GPUPOOL_E_STALE, "no such request: it was ended before, or never begun with this client");
    return NULL;
}

static void leave_locked(struct requests *requests, const struct open_request *request) {
    uint32_t place = (uint32_t)request->number;
    struct request_slot *slot = &requests->slots[place - 1];

    slot->request = NULL;
    slot->next_free = requests->first_free;
    requests->first_free = place;
}

/* --- steps --- */

static int say_cancelled(void) {
    return error_set(GPUPOOL_E_CANCELLED, "cancelled by gpupool_request_cancel()");
}

/* Ends the steps of a request: r, and the buffer. The buffer of a request that was cancelled goes back. */
static void complete(struct gpupool_client *client, struct open_request *request, int r) {
    struct requests *requests = &client->requests;
    uint64_t one = 1;

    if (r == 0)
        request->buffer = buffer_of_miss(client, &request->miss);
    pthread_mutex_lock(&requests->lock);
    if (r == 0 && request->is_cancelled) {
        pthread_mutex_unlock(&requests->lock);
        buffer_give_back(client, &request->buffer);
        r = say_cancelled();
        pthread_mutex_lock(&requests->lock);
    }
    request->result = r;
    if (r < 0)
        error_save(request->text);
    request->is_complete = true;
    if (request->fd >= 0)
        (void)!write(request->fd, &one, sizeof one); /* its first and only one: there is room for it */
    pthread_cond_broadcast(&requests->changed);
    pthread_mutex_unlock(&requests->lock);
}

/* One round of the runner. Returns whether anything happened before the deadline, such as a question of the
 * daemon that the runner watches for. */
static bool run(struct gpupool_client *client, bool watches, uint64_t deadline_ns);

static void *runner_main(void *argument) {
    struct gpupool_client *client = argument;
    struct requests *requests = &client->requests;
    bool stops = false;

    while (!stops) {
        (void)run(client, false, NS_FOREVER);
        pthread_mutex_lock(&requests->lock);
        stops = requests->stops;
        pthread_mutex_unlock(&requests->lock);
    }
    return NULL;
}

/* Whether the runner is a thread of the program. */
static bool uses_loop(const struct gpupool_client *client) {
    return purger_has_loop(&client->cache.purger);
}

static int fail(const char *what, int error) {
    return error_set(GPUPOOL_E_NO_MEMORY, "%s: %s (%s)%s", what, strerrorname_np(error),
                     strerrordesc_np(error), error_advice(error));
}

/* Sees to it that questions are answered: starts the runner, or has the program's loop watch. Locked. 0 or
 * NO_MEMORY. */
static int prepare_to_ask_locked(struct gpupool_client *client) {
    struct requests *requests = &client->requests;
    struct connection *connection = &client->session.connection;

    if (requests->wake_fd < 0) {
        _cleanup_(close_fdp) int fd = high_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (fd < 0)
            return fail("an eventfd for requests", errno);
        int error = uses_loop(client) ? purger_watch(&client->cache.purger, fd) : 0;
        if (error < 0)
            return fail("epoll", -error);
        requests->wake_fd = take_fd(&fd);
        connection_watch(connection, requests->wake_fd);
    }
    if (uses_loop(client)) {
        int error = requests->n_asking == 0 ? purger_watch_connection(&client->cache.purger, connection->fd,
                                                                      PURGER_READS_REQUESTS, true)
                                            : 0;
        return error < 0 ? fail("epoll", -error) : 0;
    }
    if (requests->has_thread)
        return 0;
    int error = thread_create(&requests->thread, NULL, runner_main, client);
    if (error != 0)
        return fail("the thread that completes requests", error);
    requests->has_thread = requests->has_runner = true;
    return 0;
}

/* Sends the question of a request. 0: from now on the request is the runner's. Errors: the question has not
 * gone out, and this is what the request is to be told instead. */
static int ask(struct gpupool_client *client, struct open_request *request) {
    struct requests *requests = &client->requests;
    const struct question *question = &request->miss.question;
    struct request *asked = question->request;

    pthread_mutex_lock(&requests->lock);
    int r = request->is_cancelled ? say_cancelled() : prepare_to_ask_locked(client);
    if (r == 0) {
        requests->n_asking++;
        request->question_id = connection_enlist(asked, question->deadline_ns, request);
    }
    pthread_mutex_unlock(&requests->lock);
    if (r == 0) {
        miss_was_enlisted(&request->miss, request->question_id);
        connection_submit(asked);
    }
    return r;
}

/* Goes on from what a step returned. */
static void proceed(struct gpupool_client *client, struct open_request *request, int r) {
    while (r == MISS_WAITS) {
        int refusal = ask(client, request);
        if (refusal == 0)
            return;
        question_drop(&request->miss.question, QUESTION_IS_UNSENT);
        r = miss_answer(&request->miss, refusal);
    }
    complete(client, request, r);
}

/* Takes the daemon's answer to a question. */
static void advance(struct gpupool_client *client, struct open_request *request) {
    _cleanup_(call_time_end) struct call_time time = call_time_begin_until(request->end_ns);
    _cleanup_(bringing_endp) struct session *bringing = bringing_begin(&client->session);
    struct requests *requests = &client->requests;
    struct question *question = &request->miss.question;

    pthread_mutex_lock(&requests->lock);
    request->question_id = 0;
    bool is_cancelled = request->is_cancelled;
    if (--requests->n_asking == 0 && uses_loop(client))
        (void)purger_watch_connection(&client->cache.purger, client->session.connection.fd,
                                      PURGER_READS_REQUESTS, false);
    pthread_mutex_unlock(&requests->lock);

    int r = connection_collect(&question->request);
    if (is_cancelled) {
        question_drop(question, r);
        r = say_cancelled();
    }
    proceed(client, request, miss_answer(&request->miss, r));
}

static bool run(struct gpupool_client *client, bool watches, uint64_t deadline_ns) {
    struct connection *connection = &client->session.connection;
    const struct request *answered;
    bool any = false;

    while ((answered = connection_next_completed(connection)) != NULL) {
        advance(client, answered->owner);
        any = true;
    }
    return any || connection_run(connection, watches, deadline_ns);
}

/* --- the calls --- */

int requests_begin(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                   uint64_t timeout_ns, uint32_t flags, uint64_t *ret_number) {
    struct requests *requests = &client->requests;
    _cleanup_(open_request_freep) struct open_request *request = calloc(1, sizeof *request);

    if (request == NULL)
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory for a request");
    request->fd = -1;
    request->pool = pool;
    request->flags = flags;
    request->size_bytes = size_bytes;
    request->stream = stream;
    request->end_ns = call_time_end_ns(timeout_ns);
    int r = enter(requests, request);
    if (r < 0)
        return r;
    _cleanup_(call_time_end) struct call_time time = call_time_begin_until(request->end_ns);
    _cleanup_(bringing_endp) struct session *bringing = bringing_begin(&client->session);
    r = buffer_begin_acquire(client, pool, size_bytes, stream, timeout_ns, flags, 0, &request->miss);
    if (r < 0) {
        pthread_mutex_lock(&requests->lock);
        leave_locked(requests, request);
        pthread_mutex_unlock(&requests->lock);
        return r;
    }
    *ret_number = request->number;
    proceed(client, take_ptr(&request), r);
    return 0;
}

bool requests_is_complete(struct gpupool_client *client, uint64_t number) {
    struct requests *requests = &client->requests;

    pthread_mutex_lock(&requests->lock);
    const struct open_request *request = find_locked(requests, number);
    bool is_complete = request != NULL && request->is_complete;
    pthread_mutex_unlock(&requests->lock);
    return is_complete;
}

int requests_fd(struct gpupool_client *client, uint64_t number) {
    struct requests *requests = &client->requests;
    int r = GPUPOOL_E_STALE;

    pthread_mutex_lock(&requests->lock);
    struct open_request *request = find_locked(requests, number);
    if (request != NULL && request->fd < 0)
        request->fd = high_fd(eventfd(request->is_complete, EFD_CLOEXEC | EFD_NONBLOCK));
    if (request != NULL)
        r = request->fd >= 0 ? request->fd : fail("an eventfd for the request", errno);
    pthread_mutex_unlock(&requests->lock);
    return r;
}

int requests_cancel(struct gpupool_client *client, uint64_t number) {
    struct requests *requests = &client->requests;
    uint64_t id = 0;
    int r = GPUPOOL_E_STALE;

    pthread_mutex_lock(&requests->lock);
    struct open_request *request = find_locked(requests, number);
    if (request != NULL) {
        r = 0;
        if (!request->is_complete && !request->is_cancelled) {
            request->is_cancelled = true;
            id = request->question_id;
        }
    }
    pthread_mutex_unlock(&requests->lock);
    if (id != 0)
        connection_cancel(&client->session.connection, id);
    return r;
}

int requests_end(struct gpupool_client *client, uint64_t number, struct open_request **ret_request) {
    struct requests *requests = &client->requests;
    const struct connection_questions *questions = &client->session.connection.questions;
    bool watches = questions->fd >= 0;

    pthread_mutex_lock(&requests->lock);
    struct open_request *request = find_locked(requests, number);
    if (request != NULL && request->is_ending) {
        error_set(GPUPOOL_E_STALE, "another thread is ending this request");
        request = NULL;
    }
    if (request == NULL) {
        pthread_mutex_unlock(&requests->lock);
        return GPUPOOL_E_STALE;
    }
    request->is_ending = true;
    while (!request->is_complete) {
        if (requests->has_runner) {
            pthread_cond_wait(&requests->changed, &requests->lock);
            continue;
        }
        requests->has_runner = true;
        pthread_mutex_unlock(&requests->lock);
        (void)run(client, watches, NS_FOREVER);
        watches = watches && questions->answer(questions->owner);
        pthread_mutex_lock(&requests->lock);
        requests->has_runner = false;
        pthread_cond_broadcast(&requests->changed);
    }
    leave_locked(requests, request);
    pthread_mutex_unlock(&requests->lock);
    *ret_request = request;
    return 0;
}

void requests_dispatch(struct gpupool_client *client) {
    struct requests *requests = &client->requests;

    pthread_mutex_lock(&requests->lock);
    bool is_runner = !requests->has_runner && requests->wake_fd >= 0;
    if (is_runner)
        requests->has_runner = true;
    pthread_mutex_unlock(&requests->lock);
    if (!is_runner)
        return;
    while (run(client, false, 0)) {
    }
    pthread_mutex_lock(&requests->lock);
    requests->has_runner = false;
    pthread_cond_broadcast(&requests->changed);
    pthread_mutex_unlock(&requests->lock);
}

/* --- the end --- */

static void stop_thread(struct gpupool_client *client) {
    struct requests *requests = &client->requests;

    if (!requests->has_thread)
        return;
    pthread_mutex_lock(&requests->lock);
    requests->stops = true;
    pthread_mutex_unlock(&requests->lock);
    submit_wake(&client->session.connection);
    pthread_join(requests->thread, NULL);
    requests->has_thread = requests->has_runner = false;
}

void requests_close(struct gpupool_client *client) {
    struct requests *requests = &client->requests;
    struct connection *connection = &client->session.connection;
    const struct request *answered;

    pthread_mutex_lock(&requests->lock);
    for (uint32_t i = 0; i < requests->n_slots; i++)
        if (requests->slots[i].request != NULL)
            requests->slots[i].request->is_cancelled = true;
    pthread_mutex_unlock(&requests->lock);
    stop_thread(client);
    connection_abandon_submitted(connection);
    while ((answered = connection_next_completed(connection)) != NULL)
        advance(client, answered->owner); /* a request that is cancelled asks no more */
    for (uint32_t i = 0; i < requests->n_slots; i++) {
        open_request_free(requests->slots[i].request);
        requests->slots[i].request = NULL;
    }
}

void requests_forget(struct requests *requests) {
    for (uint32_t i = 0; i < requests->n_slots; i++) {
        struct open_request *request = requests->slots[i].request;
        if (request != NULL && request->question_id != 0)
            miss_forget(&request->miss);
        free(request);
    }
    free(requests->slots);
}
