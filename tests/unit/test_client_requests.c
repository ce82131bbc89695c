/* SPDX-License-Identifier: Apache-2.0 */
/* Requests against a daemon that answers when the test wants: a lease that crosses the CANCEL, an old daemon,
 * one that dies. */
#include <poll.h>

#include "base/clock.h"
#include "client/session/submit.h"
#include "tests/unit/client_fixture.h"

/* The ACQUIRE that the false daemon has not answered. */
static struct proto_message held;

static void hold(const struct proto_message *request) {
    held = *request;
}

/* Answers an ACQUIRE by a lease when its CANCEL comes: both were under way at the same time. */
static bool grant_at_cancel(struct false_daemon *daemon, struct false_session *session,
                            const struct proto_message *request) {
    if (request->header.operation == PROTO_ACQUIRE) {
        hold(request);
        return true;
    }
    if (request->header.operation != PROTO_CANCEL || request->cancel.request != held.header.request)
        return false; /* which ends the test */
    false_daemon_serve(daemon, session, &held);
    return true;
}

static bool refuse_at_cancel(struct false_daemon *daemon, struct false_session *session,
                             const struct proto_message *request) {
    (void)daemon;
    if (request->header.operation == PROTO_ACQUIRE) {
        hold(request);
        return true;
    }
    if (request->header.operation != PROTO_CANCEL)
        return false;
    false_send_error(session, request->cancel.request, PROTO_E_CANCELLED, "as you wish");
    return true;
}

static uint64_t begin(struct gpupool_client *client) {
    unsigned messages = daemon_.messages;
    size_t count;
    uint64_t request;

    assert_ok(gpupool_pools(client, NULL, 0, &count)); /* so that begin asks for nothing but memory */
    assert_ok(gpupool_acquire_begin(client, FALSE_POOL_HOST, 1000, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0,
                                    &request));
    false_daemon_await(&daemon_, &daemon_.messages, messages + 2);
    return request;
}

static void a_lease_that_crosses_the_cancel_goes_back(void **state) {
    (void)state;
    struct gpupool_client *client = start(grant_at_cancel);
    struct gpupool_buffer buffer;

    for (unsigned round = 1; round <= 3; round++) {
        uint64_t request = begin(client);
        assert_ok(gpupool_request_cancel(client, request));
        assert_ok(
            gpupool_request_cancel(client, request)); /* sends nothing: the message would be a second one */
        assert_error(gpupool_acquire_end(client, request, &buffer), GPUPOOL_E_CANCELLED);
        assert_int_equal(daemon_.releases, round);
        assert_int_equal(daemon_.leases, 0);
    }
    gpupool_close(client);
}

static void a_cancel_is_answered_by_the_daemon(void **state) {
    (void)state;
    struct gpupool_client *client = start(refuse_at_cancel);
    struct gpupool_buffer buffer;
    uint64_t request = begin(client);
    struct pollfd ready = {.fd = gpupool_request_fd(client, request), .events = POLLIN};

    assert_int_equal(poll(&ready, 1, 0), 0);
    assert_ok(gpupool_request_cancel(client, request));
    assert_int_equal(poll(&ready, 1, (int)(TEST_WAIT_NS / NS_PER_MS)), 1);
    assert_error(gpupool_acquire_end(client, request, &buffer), GPUPOOL_E_CANCELLED);
    assert_int_equal(daemon_.acquires, 0);
    gpupool_close(client);
}

static void a_close_gives_up_what_the_daemon_does_not_answer(void **state) {
    (void)state;
    struct gpupool_client *client = start(refuse_at_cancel);

    for (unsigned i = 0; i < 3; i++)
        (void)begin(client);
    gpupool_close(client); /* waits for none of them */
    assert_int_equal(daemon_.byes, 1);
}

static void a_dead_daemon_completes_requests(void **state) {
    (void)state;
    struct gpupool_client *client = start(refuse_at_cancel);
    struct gpupool_buffer buffer;
    uint64_t first = begin(client), second = begin(client);

    false_daemon_stop(&daemon_);
    assert_error(gpupool_acquire_end(client, first, &buffer), GPUPOOL_E_DISCONNECTED);
    assert_error(gpupool_acquire_end(client, second, &buffer), GPUPOOL_E_DISCONNECTED);
    assert_non_null(strstr(gpupool_error_text(), "closed the connection"));
    gpupool_close(client);
}

/* Answers what it holds when the next request comes. */
static bool answer_late(struct false_daemon *daemon, struct false_session *session,
                        const struct proto_message *request) {
    if (request->header.operation == PROTO_IDLE) {
        hold(request);
        return true;
    }
    if (held.header.operation == PROTO_IDLE) {
        false_daemon_serve(daemon, session, &held);
        held = (struct proto_message){0};
    }
    false_daemon_serve(daemon, session, request);
    return true;
}

/* is_taken: the runner has it in its hands when the reply comes. */
static void expire_and_answer(struct gpupool_client *client, bool is_taken) {
    struct connection *connection = &client->session.connection;
    struct request *request = connection_request(connection, PROTO_IDLE), *completed = NULL;
    size_t count;

    assert_non_null(request);
    request->message.idle = (struct proto_idle){.pool = FALSE_POOL_HOST};
    (void)connection_enlist(request, clock_now_ns(), NULL);
    connection_submit(request);
    assert_null(connection_next_completed(connection));
    assert_true(connection_run(connection, false, 0)); /* its deadline has passed */
    if (is_taken)
        completed = connection_next_completed(connection);
    assert_ok(gpupool_pools(client, NULL, 0, &count)); /* reads both replies */
    if (!is_taken)
        completed = connection_next_completed(connection);
    assert_ptr_equal(completed, request);
    assert_ok(connection_collect(&completed));
    assert_ptr_equal(completed, request);
    request_recycle(completed);
    assert_null(connection_next_completed(connection));
}

static void a_reply_after_the_deadline_serves_a_request_that_was_not_collected(void **state) {
    (void)state;
    struct gpupool_client *client = start(answer_late);

    expire_and_answer(client, false);
    expire_and_answer(client, true);
    gpupool_close(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_lease_that_crosses_the_cancel_goes_back),
        TEST(a_cancel_is_answered_by_the_daemon),
        TEST(a_close_gives_up_what_the_daemon_does_not_answer),
        TEST(a_dead_daemon_completes_requests),
        TEST(a_reply_after_the_deadline_serves_a_request_that_was_not_collected),
    };
    fixture_init();
    int failed = cmocka_run_group_tests_name("requests", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
