/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the page that a client shares with the daemon: the client asks for it once, checks it, and does
 * without it when there is none. */
#include <pthread.h>

#include "tests/unit/client_fixture.h"

static struct gpupool_client *open_cached(void) {
    struct gpupool_options options = options_for(daemon_.path);
    struct gpupool_client *client = NULL;

    options.flags = 0;
    assert_ok(gpupool_open(&options, &client));
    return client;
}

static _Atomic unsigned asked;

static bool count_pages(struct false_daemon *daemon, struct false_session *session,
                        const struct proto_message *request) {
    (void)daemon, (void)session;
    asked += request->header.operation == PROTO_ASK_PAGE;
    return false;
}

static void *need(void *argument) {
    struct gpupool_client *client = argument;
    return page_need(&client->session.page, &client->session.connection, clock_now_ns() + PATIENT_NS) == 0
               ? NULL
               : client;
}

static void a_page_is_asked_for_once(void **state) {
    struct gpupool_client *client;
    pthread_t threads[4];
    void *wrong;

    (void)state;
    asked = 0;
    client = start(count_pages); /* without a cache: when it is needed */
    assert_int_equal(asked, 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, need, client), 0);
    for (unsigned i = 0; i < 4; i++) {
        TEST_JOIN(threads[i], &wrong);
        assert_null(wrong);
    }
    assert_int_equal(asked, 1);
    client->session.page.memory->fences[0] = 1; /* is mapped */
    gpupool_close(client);
    client = open_cached(); /* with one: at once */
    assert_int_equal(asked, 2);
    assert_non_null(client->session.page.memory);
    gpupool_close(client);
}

static bool refuse_page(struct false_daemon *daemon, struct false_session *session,
                        const struct proto_message *request) {
    (void)daemon;
    if (request->header.operation != PROTO_ASK_PAGE)
        return false;
    asked++;
    false_send_error(session, request->header.request, PROTO_E_NO_MEMORY, "no page today");
    return true;
}

static void a_client_works_without_a_page(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer;

    (void)state;
    asked = 0;
    daemon_.handle = refuse_page;
    false_daemon_run(&daemon_);
    client = open_cached();
    assert_string_equal(gpupool_error_text(), ""); /* nothing failed that the caller asked for */
    assert_null(client->session.page.memory);
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &buffer));
        assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    }
    assert_error(page_need(&client->session.page, &client->session.connection, clock_now_ns() + PATIENT_NS),
                 GPUPOOL_E_NO_MEMORY);
    assert_int_equal(asked, 1); /* the answer would be the same */
    gpupool_close(client);
}

static bool send_small_page(struct false_daemon *daemon, struct false_session *session,
                            const struct proto_message *request) {
    (void)daemon;
    if (request->header.operation != PROTO_ASK_PAGE)
        return false;
    false_send_page(session, request->header.request, PROTO_PAGE_BYTES / 2, true);
    return true;
}

static bool send_unsealed_page(struct false_daemon *daemon, struct false_session *session,
                               const struct proto_message *request) {
    (void)daemon;
    if (request->header.operation != PROTO_ASK_PAGE)
        return false;
    false_send_page(session, request->header.request, PROTO_PAGE_BYTES, false);
    return true;
}

static void fail_to_open(bool (*handle)(struct false_daemon *, struct false_session *,
                                        const struct proto_message *)) {
    struct gpupool_options options = options_for(daemon_.path);
    struct gpupool_client *client = NULL;

    options.flags = 0;
    daemon_.handle = handle;
    false_daemon_run(&daemon_);
    assert_error(gpupool_open(&options, &client), GPUPOOL_E_PROTOCOL);
    assert_text_has("sealed memfd");
    assert_null(client);
}

static void a_page_that_is_too_small_is_refused(void **state) {
    (void)state;
    fail_to_open(send_small_page);
}

static void a_page_that_could_shrink_is_refused(void **state) {
    (void)state;
    fail_to_open(send_unsealed_page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_page_is_asked_for_once),
        TEST(a_client_works_without_a_page),
        TEST(a_page_that_is_too_small_is_refused),
        TEST(a_page_that_could_shrink_is_refused),
    };
    fixture_init();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
