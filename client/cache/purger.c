/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/purger.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/high_fd.h"
#include "base/thread.h"
#include "client/cache/answering.h"
#include "client/cache/cache.h"
#include "client/cache/thread_cache.h"
#include "client/session/error.h"
#include "client/session/session.h"

void purger_init(struct purger *purger) {
    purger->reclaim_fd = purger->stop_fd = purger->watch_fd = purger->decay_fd = purger->owed_fd =
        purger->state_fd = -1;
    pthread_mutex_init(&purger->look_lock, NULL);
}

void purger_deinit(struct purger *purger) {
    purger->watch_fd = close_fd(purger->watch_fd);
    purger->decay_fd = close_fd(purger->decay_fd);
    purger->owed_fd = close_fd(purger->owed_fd);
    purger->state_fd = close_fd(purger->state_fd);
    purger->stop_fd = close_fd(purger->stop_fd);
    purger->reclaim_fd = close_fd(purger->reclaim_fd);
    pthread_mutex_destroy(&purger->look_lock);
}

static int fail(const char *what, int error) {
    return error_set(GPUPOOL_E_NO_MEMORY, "%s: %s (%s)%s", what, strerrorname_np(error),
                     strerrordesc_np(error), error_advice(error));
}

/* Gives back what lies idle, or what the daemon asks for. */
static int give_back(struct cache *cache, bool asked) {
    uint64_t bytes;
    return asked ? answering_answer(cache) : cache_give_back(cache, true, &bytes);
}

/* --- the descriptors --- */

int purger_watch(const struct purger *purger, int fd) {
    int r = epoll_ctl(purger->watch_fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN});
    if (r < 0 && errno == EEXIST) /* the connection's, of which the end is watched */
        r = epoll_ctl(purger->watch_fd, EPOLL_CTL_MOD, fd, &(struct epoll_event){.events = EPOLLIN});
    return r < 0 ? -errno : 0;
}

int purger_watch_connection(struct purger *purger, int fd, unsigned for_what, bool reads) {
    int r = 0;

    pthread_mutex_lock(&purger->look_lock);
    unsigned before = purger->reads;
    purger->reads = reads ? before | for_what : before & ~for_what;
    if (purger->reads != 0 && before == 0) {
        r = purger_watch(purger, fd);
    } else if (purger->reads == 0 && before != 0) {
        int operation = purger->is_over ? EPOLL_CTL_DEL : EPOLL_CTL_MOD; /* its end is still watched */
        (void)epoll_ctl(purger->watch_fd, operation, fd, &(struct epoll_event){0});
    }
    if (r < 0)
        purger->reads = before;
    pthread_mutex_unlock(&purger->look_lock);
    return r;
}

/* Watches for questions of the daemon, for the end of the connection, and for the time of the decay. */
static int start_watch(struct purger *purger, int connection_fd) {
    purger->watch_fd = high_fd(epoll_create1(EPOLL_CLOEXEC));
    if (purger->watch_fd < 0 || (purger->reclaim_fd >= 0 && purger_watch(purger, purger->reclaim_fd) < 0) ||
        epoll_ctl(purger->watch_fd, EPOLL_CTL_ADD, connection_fd, &(struct epoll_event){0}) < 0)
        return fail("epoll", errno);
    purger->state_fd = high_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (purger->state_fd < 0 || purger_watch(purger, purger->state_fd) < 0)
        return fail("eventfd", errno);
    if (purger->decay_ns == GPUPOOL_FOREVER)
        return 0;
    uint64_t decay_ns = purger->decay_ns < NS_PER_MS ? NS_PER_MS : purger->decay_ns;
    struct timespec decay = {(time_t)(decay_ns / NS_PER_S), (long)(decay_ns % NS_PER_S)};
    purger->decay_fd = high_fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (purger->decay_fd < 0 ||
        timerfd_settime(purger->decay_fd, 0, &(struct itimerspec){decay, decay}, NULL) < 0 ||
        purger_watch(purger, purger->decay_fd) < 0)
        return fail("timerfd", errno);
    return 0;
}

/* The program's loop makes the steps. */
static int start_loop(struct cache *cache) {
    struct purger *purger = &cache->purger;

    if (purger->reclaim != NULL) {
        purger->owed_fd = high_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (purger->owed_fd < 0 || purger_watch(purger, purger->owed_fd) < 0)
            return fail("eventfd", errno);
    }
    cache->session->connection.questions = (struct connection_questions){
        .fd = purger->reclaim_fd, .answer = purger_answer_waiting, .owner = cache};
    return 0;
}

/* --- the thread --- */

static void *purger_main(void *argument) {
    struct cache *cache = argument;
    struct purger *purger = &cache->purger;
    struct pollfd ready = {.fd = purger->watch_fd, .events = POLLIN};

    thread_cache_register(); /* beside the program: what this thread visits needs it */
    while (!atomic_load(&purger->stops)) {
        int n = poll(&ready, 1, -1);
        if (n < 0 && errno != EINTR)
            return NULL;
        if (!atomic_load(&purger->stops))
            (void)purger_step(cache);
    }
    return NULL;
}

static int start_thread(struct cache *cache) {
    struct purger *purger = &cache->purger;

    purger->stop_fd = high_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (purger->stop_fd < 0 || purger_watch(purger, purger->stop_fd) < 0)
        return fail("eventfd", errno);
    purger->runs = true;
    int error = thread_create(&purger->thread, NULL, purger_main, cache);
    purger->runs = error == 0;
    return error == 0 ? 0 : fail("the thread that gives idle memory back", error);
}

void purger_stop(struct purger *purger) {
    uint64_t one = 1;

    if (!purger->runs)
        return;
    atomic_store(&purger->stops, true);
    while (write(purger->stop_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
    pthread_join(purger->thread, NULL);
    purger->runs = false;
}

int purger_start(struct cache *cache, uint64_t decay_ns, int reclaim_fd, bool with_thread) {
    struct purger *purger = &cache->purger;

    purger->decay_ns = decay_ns;
    purger->reclaim_fd = reclaim_fd;
    int r = start_watch(purger, cache->session->connection.fd);
    if (r < 0)
        return r;
    alive_watch(&cache->session->connection, purger->watch_fd, purger->state_fd);
    return with_thread ? start_thread(cache) : start_loop(cache);
}

/* --- a step --- */

static bool is_readable(int fd) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return fd >= 0 && poll(&ready, 1, 0) == 1;
}

/* Whether a timer has gone off since the last call. The daemon's descriptor is one too. It is looked at first,
 * because another holder can have made it block, or the daemon may have set it anew. One that cannot be read
 * is watched no longer: it would be reported for ever. */
static bool has_gone_off(const struct purger *purger, int fd) {
    uint64_t count;

    if (!is_readable(fd))
        return false;
    ssize_t n = read(fd, &count, sizeof count);
    if (n != sizeof count && !(n < 0 && (errno == EAGAIN || errno == EINTR)))
        (void)epoll_ctl(purger->watch_fd, EPOLL_CTL_DEL, fd, NULL);
    return n == sizeof count;
}

/* Whether the daemon has asked since the last call, or its question was put off. */
static bool is_asked(struct purger *purger) {
    pthread_mutex_lock(&purger->look_lock);
    bool asked = has_gone_off(purger, purger->reclaim_fd) || purger->is_put_off;
    purger->is_put_off = false;
    pthread_mutex_unlock(&purger->look_lock);
    return asked;
}

/* While the daemon is away an answer would be waited for. The question may be the next daemon's, which asks once: it is
 * answered when that one is there. */
static void put_off(struct purger *purger) {
    pthread_mutex_lock(&purger->look_lock);
    purger->is_put_off = true;
    pthread_mutex_unlock(&purger->look_lock);
}

/* Gives back what the library keeps, and has the program's loop call its callback. */
static void answer_in_part(struct cache *cache) {
    uint64_t one = 1;

    answering_give_back(cache);
    (void)!write(cache->purger.owed_fd, &one,
                 sizeof one); /* readable already where there is no room for it */
}

bool purger_answer_waiting(void *owner) {
    struct cache *cache = owner;
    struct purger *purger = &cache->purger;
    char text[ERROR_TEXT_SIZE];
    bool looks_again = true;

    error_save(text);
    if (!is_asked(purger))
        looks_again = !is_readable(purger->reclaim_fd); /* another thread was quicker, or it is broken */
    else if (purger->reclaim != NULL)
        answer_in_part(cache);
    else
        looks_again = answering_answer(cache) == 0;
    error_restore(text);
    return looks_again;
}

/* How often memory is looked for that can be let go, once the daemon is gone: at most. */
#define LET_GO_S 1

/* The end of the connection would be reported for ever: from now on the timer makes the steps. */
static void end_watch(struct cache *cache) {
    const struct timespec often = {.tv_sec = LET_GO_S};
    struct purger *purger = &cache->purger;

    if (purger->is_over)
        return;
    purger->is_over = true;
    (void)epoll_ctl(purger->watch_fd, EPOLL_CTL_DEL, cache->session->connection.fd, NULL);
    if (purger->decay_fd < 0) {
        purger->decay_fd = high_fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
        if (purger->decay_fd >= 0)
            (void)purger_watch(purger, purger->decay_fd);
    }
    if (purger->decay_fd >= 0)
        (void)timerfd_settime(purger->decay_fd, 0, &(struct itimerspec){often, often}, NULL);
}

static void tell(const struct purger *purger, enum connection_state state) {
    if (purger->connection_changed != NULL)
        purger->connection_changed(purger->connection_argument, (enum gpupool_connection_state)state);
}

/* Tells the program of the connection's states since the last call: of each pause, also where it is over. n_pauses: up
 * to this state. */
static void tell_changes(struct purger *purger, enum connection_state state, unsigned n_pauses) {
    pthread_mutex_lock(&purger->look_lock);
    enum connection_state known = purger->state;
    unsigned n_new = n_pauses - purger->n_pauses;
    purger->state = state;
    purger->n_pauses = n_pauses;
    pthread_mutex_unlock(&purger->look_lock);
    for (unsigned i = 0; i < n_new && known != CONNECTION_LOST; i++) {
        if (known == CONNECTION_AWAY)
            tell(purger, CONNECTION_THERE);
        tell(purger, CONNECTION_AWAY);
        known = CONNECTION_AWAY;
    }
    if (state != known)
        tell(purger, state);
}

/* Looks how the connection is. Returns whether the daemon is away. */
static bool look_at_connection(struct cache *cache) {
    struct connection *connection = &cache->session->connection;
    struct purger *purger = &cache->purger;
    enum connection_state state;
    bool is_away;

    do /* the look itself may find that the daemon has ended, and say so there */
        state = connection_state(connection);
    while (has_gone_off(purger, purger->state_fd));
    (void)purger_watch_connection(purger, connection->fd, PURGER_READS_ALIVE, alive_is_asked(connection));
    unsigned n_pauses = alive_pauses(connection, &is_away);
    if (state != CONNECTION_LOST)
        state = is_away ? CONNECTION_AWAY : CONNECTION_THERE;
    tell_changes(purger, state, n_pauses);
    return state == CONNECTION_AWAY;
}

int purger_step(struct cache *cache) {
    struct purger *purger = &cache->purger;
    bool asked = is_asked(purger), owed = has_gone_off(purger, purger->owed_fd);
    bool decayed = has_gone_off(purger, purger->decay_fd);
    bool is_away = look_at_connection(cache);

    if (is_away && asked)
        put_off(purger);
    asked = asked && !is_away;
    decayed = decayed && !is_away;
    if (purger->is_over || session_is_over(cache->session)) {
        end_watch(cache);
        cache_let_go(cache);
    }
    if (!asked && !owed && !decayed)
        return 0;
    /* A program that wants to hear of a pause hears of it in the pause: the exchanges end with it. Late answers are
     * undone, or found done. */
    client_thread()->until_away = purger->connection_changed != NULL;
    int r = give_back(cache, asked || owed);
    client_thread()->until_away = false;
    return r;
}
