/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's session when one daemon follows another over the same socket: messages that come twice. The false
 * daemon stands for both daemons. (Most tests of the client run with copies of all answers besides: unit/…_copies.)
 */
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/unit/client_fixture.h"

/* The message that the daemon before may have sent. */
static struct {
    struct proto_message lease;
    bool is_kept; /* it is to be sent again before the next answer */
    bool has_flag;
    struct proto_message unanswered;
    _Atomic unsigned n_ends;
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
    };
    fixture_init();
    int failed = cmocka_run_group_tests_name("client_restart", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
