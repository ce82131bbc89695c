/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's session when one daemon follows another over the same socket: messages that come twice. The false
 * daemon stands for both daemons. (Most tests of the client run with copies of all answers besides: unit/…_copies.)
 */
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "tests/bounded.h"
#include "tests/unit/asking.h"
#include "tests/unit/client_fixture.h"

/* The message that the daemon before may have sent. */
static struct {
    struct proto_message lease;
    bool is_kept; /* it is to be sent again before the next answer */
    bool has_flag;
    struct proto_message unanswered;
    _Atomic unsigned n_ends;
    /* a daemon that is not there */
    _Atomic bool is_away;
    struct false_session *session;
    struct proto_message held; /* the last request but ASK_ALIVE that came meanwhile */
    _Atomic uint64_t asked;    /* the last ASK_ALIVE; 0: none */
    _Atomic unsigned n_held, n_asked;
} before;

static void send_copy(struct false_daemon *daemon, struct false_session *session) {
    before.lease.header.flags = before.has_flag ? PROTO_AGAIN : 0;
    false_send(session, &before.lease, &daemon->host_segments[FALSE_POOL_HOST],
               proto_message_fds(&before.lease));
    before.is_kept = false;
}

static struct proto_message make_lease(struct false_daemon *daemon, struct false_session *session,
                                       uint64_t request) {
    bool is_new = !session->described[FALSE_POOL_HOST];

    session->described[FALSE_POOL_HOST] = true;
    if (is_new)
        session->unconfirmed = FALSE_POOL_HOST;
    return false_lease_message(daemon, request, FALSE_POOL_HOST, 512, is_new);
}

/* Answers ACQUIRE by a LEASE, of which a copy comes before the next answer. */
static bool answer_twice(struct false_daemon *daemon, struct false_session *session,
                         const struct proto_message *request) {
    if (before.is_kept)
        send_copy(daemon, session);
    if (request->header.operation != PROTO_ACQUIRE)
        return false;
    before.lease = make_lease(daemon, session, request->header.request);
    false_send(session, &before.lease, &daemon->host_segments[FALSE_POOL_HOST],
               proto_message_fds(&before.lease));
    before.is_kept = true;
    return true;
}

static void a_copy_that_comes_after_opened_is_not_opened_again(void **state) {
    (void)state;
    struct gpupool_client *client = start(answer_twice);
    struct gpupool_buffer buffer;
    size_t count;

    before.has_flag = true;
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 512, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_ok(gpupool_pools(client, NULL, 0, &count));
    assert_ok(gpupool_pools(client, NULL, 0, &count));
    assert_int_equal(daemon_.opened, 1); /* the daemon fails the test where it comes twice */
    memset(buffer.data, 1, 512);
    gpupool_close(client);
}

static void an_answer_that_comes_twice_unannounced_breaks_the_connection(void **state) {
    (void)state;
    struct gpupool_client *client = start(answer_twice);
    struct gpupool_buffer buffer;
    size_t count;

    before.has_flag = false;
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 512, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_error(gpupool_pools(client, NULL, 0, &count), GPUPOOL_E_PROTOCOL);
    assert_text_has("a reply to no request");
    gpupool_close(client);
}

/* Sends the flag with each message, as if the first copy had never left the daemon before. */
static void mark_as_copy(const struct proto_message *message, struct false_packet *packet) {
    if (message->header.request != 0)
        packet->bytes[offsetof(struct proto_header, flags)] |= PROTO_AGAIN;
}

static void a_copy_whose_first_one_was_never_sent_is_the_answer(void **state) {
    (void)state;
    struct gpupool_buffer buffer;
    struct gpupool_client *client;

    false_alter = mark_as_copy;
    client = start(NULL);
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 512, NULL, GPUPOOL_NOW, 0, &buffer));
    false_daemon_await(&daemon_, &daemon_.opened, 1);
    memset(buffer.data, 1, 512);
    assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    assert_int_equal(daemon_.releases, 1);
    gpupool_close(client);
    false_alter = NULL;
}

/* Does not answer ACQUIRE before the next request. */
static bool answer_late_and_twice(struct false_daemon *daemon, struct false_session *session,
                                  const struct proto_message *request) {
    if (request->header.operation == PROTO_ACQUIRE) {
        before.unanswered = *request;
        return true;
    }
    if (request->header.operation == PROTO_RELEASE) {
        daemon->releases++;
        false_send_ok(session, request->header.request);
        return true;
    }
    if (before.unanswered.header.operation != 0) {
        before.lease = make_lease(daemon, session, before.unanswered.header.request);
        before.has_flag = false;
        send_copy(daemon, session);
        before.has_flag = true;
        send_copy(daemon, session);
        send_copy(daemon, session);
        before.unanswered.header.operation = 0;
    }
    return false;
}

static void a_lease_that_comes_late_and_twice_is_released_once(void **state) {
    (void)state;
    struct gpupool_client *client = start(answer_late_and_twice);
    struct gpupool_buffer buffer;
    size_t count;

    client->session.connection.answer_timeout_ns = IMPATIENT_NS;
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 512, NULL, GPUPOOL_NOW, 0, &buffer),
                 GPUPOOL_E_TIMED_OUT);
    client->session.connection.answer_timeout_ns = PATIENT_NS;
    for (unsigned i = 0; i < 3; i++)
        assert_ok(gpupool_pools(client, NULL, 0, &count));
    assert_int_equal(daemon_.opened, 1);
    assert_int_equal(daemon_.releases, 1);
    gpupool_close(client);
}

/* Ends before it greets, three times. */
static bool end_before_the_greeting(struct false_daemon *daemon, struct false_session *session,
                                    const struct proto_message *request) {
    if (request->header.operation != PROTO_HELLO || before.n_ends == 3)
        return false;
    before.n_ends++;
    shutdown(session->fd, SHUT_RDWR);
    (void)daemon;
    return true;
}

static void a_client_whose_daemon_ends_before_it_greets_connects_again(void **state) {
    (void)state;
    struct gpupool_client *client = start(end_before_the_greeting);
    struct gpupool_buffer buffer;

    assert_int_equal(before.n_ends, 3);
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 512, NULL, GPUPOOL_NOW, 0, &buffer));
    gpupool_close(client);
}

/* As one that stops for good. */
static bool end_with_a_word(struct false_daemon *daemon, struct false_session *session,
                            const struct proto_message *request) {
    (void)daemon;
    before.n_ends++;
    false_send_error(session, before.has_flag ? request->header.request : 0, PROTO_E_SHUTDOWN, "stopping");
    shutdown(session->fd, SHUT_RDWR);
    return true;
}

static void a_client_that_is_sent_away_does_not_connect_again(void **state) {
    (void)state;
    struct gpupool_options options = options_for(daemon_.path);
    struct gpupool_client *client = NULL;

    daemon_.handle = end_with_a_word;
    false_daemon_run(&daemon_);
    for (unsigned i = 0; i < 2; i++) {
        before.has_flag = i == 0;
        assert_error(gpupool_open(&options, &client), GPUPOOL_E_SHUTDOWN);
        assert_int_equal(before.n_ends, i + 1);
    }
}

/* --- the connection's state --- */

static void count(struct false_daemon *daemon, _Atomic unsigned *counter) {
    pthread_mutex_lock(&daemon->lock);
    ++*counter;
    pthread_cond_broadcast(&daemon->changed);
    pthread_mutex_unlock(&daemon->lock);
}

/* Keeps what comes while no daemon is there. */
static bool hold_while_away(struct false_daemon *daemon, struct false_session *session,
                            const struct proto_message *request) {
    before.session = session;
    if (!before.is_away)
        return false;
    if (request->header.operation == PROTO_ASK_ALIVE) {
        before.asked = request->header.request;
        count(daemon, &before.n_asked);
    } else {
        before.held = *request;
        count(daemon, &before.n_held);
    }
    return true;
}

static bool greet_and_hold(struct false_daemon *daemon, struct false_session *session,
                           const struct proto_message *request) {
    return hold_while_away(daemon, session, request) || greet_with_timer(daemon, session, request);
}

static void go_away(void) {
    before.is_away = true;
    false_end_alive(before.session);
}

/* As the next daemon does. */
static void come_back(void) {
    before.is_away = false;
    false_send_alive(before.session, before.asked);
}

static enum gpupool_connection_state state_of(struct gpupool_client *client) {
    enum gpupool_connection_state connection_state;

    assert_ok(gpupool_connection_state(client, &connection_state));
    return connection_state;
}

static struct gpupool_client *start_restarting(struct gpupool_options *options) {
    struct gpupool_client *client = NULL;

    daemon_.shows_alive = true;
    if (daemon_.handle == NULL)
        daemon_.handle = hold_while_away;
    false_daemon_run(&daemon_);
    options->socket = daemon_.path;
    assert_ok(gpupool_open(options, &client));
    size_t n_pools;
    assert_ok(gpupool_pools(client, NULL, 0, &n_pools)); /* and all that came before is answered */
    return client;
}

static void the_state_follows_the_daemons(void **state) {
    (void)state;
    struct gpupool_options options = options_for(NULL);
    struct gpupool_client *client = start_restarting(&options);
    struct gpupool_buffer buffer;

    assert_int_equal(state_of(client), GPUPOOL_CONNECTION_THERE);
    for (unsigned i = 1; i <= 3; i++) {
        go_away();
        assert_int_equal(state_of(client), GPUPOOL_CONNECTION_AWAY);
        false_daemon_await(&daemon_, &before.n_asked, i);
        assert_int_equal(state_of(client), GPUPOOL_CONNECTION_AWAY);
        assert_int_equal(gpupool_is_connected(client), 1);
        assert_int_equal(before.n_asked, i);
        come_back();
        assert_int_equal(state_of(client), GPUPOOL_CONNECTION_THERE);
        assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 512, NULL, GPUPOOL_NOW, 0, &buffer));
    }
    /* Two ends in a row: the answer comes with a pipe that has hung up. */
    go_away();
    assert_int_equal(state_of(client), GPUPOOL_CONNECTION_AWAY);
    false_daemon_await(&daemon_, &before.n_asked, 4);
    come_back();
    go_away();
    assert_int_equal(state_of(client), GPUPOOL_CONNECTION_AWAY);
    false_daemon_await(&daemon_, &before.n_asked, 5);
    false_daemon_stop(&daemon_);
    assert_int_equal(state_of(client), GPUPOOL_CONNECTION_LOST);
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 512, NULL, GPUPOOL_NOW, 0, &buffer),
                 GPUPOOL_E_DISCONNECTED);
    assert_int_equal(state_of(client), GPUPOOL_CONNECTION_LOST);
    assert_error(gpupool_connection_state(client, NULL), GPUPOOL_E_INVALID);
    assert_error(gpupool_connection_state(NULL, &(enum gpupool_connection_state){0}), GPUPOOL_E_INVALID);
    gpupool_close(client);
}

static void an_old_daemon_is_there_until_it_is_lost(void **state) {
    (void)state;
    struct gpupool_options options = options_for(NULL);

    daemon_.version = 1;
    struct gpupool_client *client = start_restarting(&options);
    before.is_away = true; /* it is asked nothing */
    assert_int_equal(state_of(client), GPUPOOL_CONNECTION_THERE);
    assert_int_equal(before.asked, 0);
    false_daemon_stop(&daemon_);
    assert_int_equal(state_of(client), GPUPOOL_CONNECTION_LOST);
    gpupool_close(client);
}

/* --- the callback --- */

#define CHANGES_MAX 16u

static struct {
    _Atomic unsigned n;
    enum gpupool_connection_state states[CHANGES_MAX];
} changes;

static void note_change(void *argument, enum gpupool_connection_state connection_state) {
    if (argument != &changes || changes.n >= CHANGES_MAX)
        abort();
    changes.states[changes.n] = connection_state;
    count(&daemon_, &changes.n);
}

static struct gpupool_options options_with_callback(uint32_t flags) {
    struct gpupool_options options = options_for(NULL);

    changes.n = 0;
    options.flags = flags;
    options.decay_ns = GPUPOOL_FOREVER;
    options.connection_changed = note_change;
    options.connection_changed_argument = &changes;
    return options;
}

static void the_librarys_thread_tells_of_each_change(void **state) {
    (void)state;
    struct gpupool_options options = options_with_callback(0);
    struct gpupool_client *client = start_restarting(&options);

    for (unsigned i = 1; i <= 3; i++) {
        go_away();
        false_daemon_await(&daemon_, &before.n_asked, i);
        false_daemon_await(&daemon_, &changes.n, 2 * i - 1);
        assert_int_equal(changes.states[2 * i - 2], GPUPOOL_CONNECTION_AWAY);
        come_back(); /* no call reads the answer */
        false_daemon_await(&daemon_, &changes.n, 2 * i);
        assert_int_equal(changes.states[2 * i - 1], GPUPOOL_CONNECTION_THERE);
    }
    false_daemon_stop(&daemon_);
    for (uint64_t end_ns = clock_now_ns() + PATIENT_NS;
         changes.states[changes.n - 1] != GPUPOOL_CONNECTION_LOST;)
        assert_true(clock_now_ns() < end_ns);
    gpupool_close(client);
}

static bool is_readable(int fd, int timeout_ms) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, timeout_ms) == 1;
}

#define PATIENT_MS ((int)(PATIENT_NS / NS_PER_MS))

static void the_programs_loop_tells_of_each_change(void **state) {
    (void)state;
    struct gpupool_options options = options_with_callback(GPUPOOL_OPEN_NO_THREAD);
    struct gpupool_client *client = start_restarting(&options);
    int fd = gpupool_fd(client);

    while (is_readable(fd, 0))
        assert_ok(gpupool_dispatch(client));
    for (unsigned i = 1; i <= 3; i++) {
        go_away();
        assert_true(is_readable(fd, PATIENT_MS));
        assert_ok(gpupool_dispatch(client));
        assert_int_equal(changes.n, 2 * i - 1);
        assert_int_equal(changes.states[2 * i - 2], GPUPOOL_CONNECTION_AWAY);
        false_daemon_await(&daemon_, &before.n_asked, i);
        while (is_readable(fd, 0)) /* of the pause no more is to be done */
            assert_ok(gpupool_dispatch(client));
        come_back();
        while (changes.n < 2 * i) {
            assert_true(is_readable(fd, PATIENT_MS));
            assert_ok(gpupool_dispatch(client));
        }
        assert_int_equal(changes.states[2 * i - 1], GPUPOOL_CONNECTION_THERE);
        while (is_readable(fd, 0))
            assert_ok(gpupool_dispatch(client));
    }
    /* Pauses that the loop does not see are told all the same. */
    for (unsigned i = 4; i <= 5; i++) {
        go_away();
        assert_int_equal(state_of(client), GPUPOOL_CONNECTION_AWAY);
        false_daemon_await(&daemon_, &before.n_asked, i);
        come_back();
        assert_int_equal(state_of(client), GPUPOOL_CONNECTION_THERE);
        assert_int_equal(changes.n, 6);
    }
    assert_true(is_readable(fd, PATIENT_MS));
    assert_ok(gpupool_dispatch(client));
    assert_int_equal(changes.n, 10);
    for (unsigned i = 6; i < 10; i++)
        assert_int_equal(changes.states[i], i % 2 == 0 ? GPUPOOL_CONNECTION_AWAY : GPUPOOL_CONNECTION_THERE);
    /* The end is told once. */
    false_daemon_stop(&daemon_);
    while (changes.states[changes.n - 1] != GPUPOOL_CONNECTION_LOST) {
        assert_true(is_readable(fd, PATIENT_MS));
        assert_ok(gpupool_dispatch(client));
    }
    assert_false(is_readable(fd, 0));
    gpupool_close(client);
}

/* --- questions --- */

/* The next daemon asks before the client knows that it is there. */
static void a_question_in_a_pause_is_answered_behind_it(void **state) {
    (void)state;
    struct gpupool_options options = options_for(NULL);

    options.flags = GPUPOOL_OPEN_NO_THREAD;
    options.decay_ns = GPUPOOL_FOREVER;
    asking_begin();
    daemon_.handle = greet_and_hold;
    struct gpupool_client *client = start_restarting(&options);
    struct gpupool_buffer buffer;

    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 512, NULL, GPUPOOL_NOW, 0, &buffer));
    go_away();
    mark(client, true);
    ask();
    while (is_readable(gpupool_fd(client), 0))
        assert_ok(gpupool_dispatch(client));
    false_daemon_await(&daemon_, &before.n_asked, 1);
    assert_int_equal(daemon_.n_reclaimed, 0);
    come_back();
    for (uint64_t end_ns = clock_now_ns() + PATIENT_NS; daemon_.n_reclaimed == 0;) {
        assert_true(clock_now_ns() < end_ns);
        if (is_readable(gpupool_fd(client), 1)) /* the last one is counted after the client has said it */
            assert_ok(gpupool_dispatch(client));
    }
    mark(client, false);
    gpupool_close(client);
    asking_fd = close_fd(asking_fd);
}

/* --- timeouts --- */

static struct {
    struct gpupool_client *client;
    int result;
} asking;

static void *ask_for_pools(void *argument) {
    size_t n_pools;
    (void)argument;
    asking.result = gpupool_pools(asking.client, NULL, 0, &n_pools);
    return NULL;
}

/* A thread whose request has no timeout of its own, and whose time for an answer is over. */
static pthread_t start_asking(struct gpupool_client *client) {
    pthread_t thread;

    client->session.connection.answer_timeout_ns = IMPATIENT_NS;
    asking.client = client;
    go_away();
    assert_int_equal(pthread_create(&thread, NULL, ask_for_pools, NULL), 0);
    false_daemon_await(&daemon_, &before.n_held, 1);
    false_daemon_await(&daemon_, &before.n_asked, 1); /* at the end of its time it looked, and asked */
    return thread;
}

static void an_answer_has_its_time_again_when_the_daemon_is_back(void **state) {
    (void)state;
    struct gpupool_options options = options_for(NULL);
    struct gpupool_client *client = start_restarting(&options);
    pthread_t thread = start_asking(client);

    client->session.connection.answer_timeout_ns = PATIENT_NS;
    come_back();
    false_daemon_serve(&daemon_, before.session, &before.held);
    assert_int_equal(test_join(thread, NULL), 0);
    assert_ok(asking.result);
    gpupool_close(client);
}

static void a_daemon_that_is_back_and_does_not_answer_is_not_waited_for(void **state) {
    (void)state;
    struct gpupool_options options = options_for(NULL);
    struct gpupool_client *client = start_restarting(&options);
    pthread_t thread = start_asking(client);

    come_back();
    assert_int_equal(test_join(thread, NULL), 0);
    assert_int_equal(asking.result, GPUPOOL_E_TIMED_OUT);
    client->session.connection.answer_timeout_ns = PATIENT_NS;
    false_daemon_serve(&daemon_, before.session, &before.held);
    gpupool_close(client);
}

static void a_call_keeps_its_own_timeout_while_no_daemon_is_there(void **state) {
    (void)state;
    struct gpupool_options options = options_for(NULL);
    struct gpupool_client *client = start_restarting(&options);
    struct gpupool_buffer buffer;

    go_away();
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 512, NULL, IMPATIENT_NS, 0, &buffer),
                 GPUPOOL_E_TIMED_OUT);
    assert_text_has("the daemon has ended, and no other one");
    false_daemon_await(&daemon_, &before.n_asked, 1);
    come_back();
    false_daemon_serve(&daemon_, before.session, &before.held);
    assert_int_equal(state_of(client), GPUPOOL_CONNECTION_THERE);
    gpupool_close(client);
}

static int set_up_restart(void **state) {
    memset(&before, 0, sizeof before);
    return set_up(state);
}
#define RESTART_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_restart, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        RESTART_TEST(a_copy_that_comes_after_opened_is_not_opened_again),
        RESTART_TEST(an_answer_that_comes_twice_unannounced_breaks_the_connection),
        RESTART_TEST(a_copy_whose_first_one_was_never_sent_is_the_answer),
        RESTART_TEST(a_lease_that_comes_late_and_twice_is_released_once),
        RESTART_TEST(a_client_whose_daemon_ends_before_it_greets_connects_again),
        RESTART_TEST(a_client_that_is_sent_away_does_not_connect_again),
        RESTART_TEST(the_state_follows_the_daemons),
        RESTART_TEST(an_old_daemon_is_there_until_it_is_lost),
        RESTART_TEST(the_librarys_thread_tells_of_each_change),
        RESTART_TEST(the_programs_loop_tells_of_each_change),
        RESTART_TEST(a_question_in_a_pause_is_answered_behind_it),
        RESTART_TEST(an_answer_has_its_time_again_when_the_daemon_is_back),
        RESTART_TEST(a_daemon_that_is_back_and_does_not_answer_is_not_waited_for),
        RESTART_TEST(a_call_keeps_its_own_timeout_while_no_daemon_is_there),
    };
    fixture_init();
    int failed = cmocka_run_group_tests_name("client_restart", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
