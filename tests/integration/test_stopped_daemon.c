/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that stands still for a moment, as one does that is stopped, or whose machine swaps: what was
 * asked meanwhile times out, its answers come later, and nothing of that is left.
 */
#include <signal.h>

#include "tests/integration/cache_fixture.h"

#define SIZE     (64 * KIB)
#define SHORT_NS (20 * NS_PER_MS)

static const unsigned kinds[] = {GPUPOOL_POOL_DEVICE, GPUPOOL_POOL_HOST};

static struct gpupool_client *open_impatient(uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    client->session.connection.answer_timeout_ns = SHORT_NS;
    return client;
}

static void stop(void) {
    assert_int_equal(kill(daemon_.pid, SIGSTOP), 0);
}

static void go_on(struct gpupool_client *client) {
    size_t count;

    assert_int_equal(kill(daemon_.pid, SIGCONT), 0);
    client->session.connection.answer_timeout_ns = TEST_WAIT_NS;
    MUST(gpupool_pools(client, NULL, 0, &count));
}

/* A late lease may need growth. The client looks for it when it gives memory back, as its purger does. */
static bool nothing_is_left(struct gpupool_client *client) {
    MUST(gpupool_trim(client, NULL));
    return list_is_empty(&client->session.connection.abandoned) &&
           daemon_sum(&daemon_, "leased_bytes") == 0 && daemon_sum(&daemon_, "leases") == 0;
}

static void buffers_are_as_before_when_the_daemon_answers_again(void **state) {
    (void)state;
    for (unsigned kind = test_has_device() ? 0 : 1; kind < 2; kind++) {
        struct gpupool_client *client = open_impatient(0);
        uint32_t pool = pool_of(client, kinds[kind]);
        struct gpupool_buffer shared, sent, given, large, attached, late;
        struct gpupool_buffer_info info;
        struct gpupool_token token, other;
        void *stream = stream_of(kinds[kind]);

        client->session.connection.answer_timeout_ns = TEST_WAIT_NS;
        shared = acquire(client, kinds[kind], SIZE, stream);
        sent = acquire(client, kinds[kind], SIZE, stream);
        given = acquire(client, kinds[kind], SIZE, stream);
        large =
            acquire(client, kinds[kind], 10 * MIB, stream); /* in several segments, where there are arenas */
        attached = acquire(client, kinds[kind], SIZE, stream);
        MUST(gpupool_share(client, &attached, GPUPOOL_NO_STREAM, &token));
        client->session.connection.answer_timeout_ns = SHORT_NS;
        stop();
        MUST_BE(gpupool_share(client, &shared, GPUPOOL_NO_STREAM, &other), GPUPOOL_E_TIMED_OUT);
        MUST_BE(gpupool_send(client, &sent, GPUPOOL_NO_STREAM, 1, NS_PER_S, &other), GPUPOOL_E_TIMED_OUT);
        MUST_BE(gpupool_share(client, &given, GPUPOOL_NO_STREAM, &other), GPUPOOL_E_TIMED_OUT);
        MUST_BE(gpupool_share(client, &large, GPUPOOL_NO_STREAM, &other), GPUPOOL_E_TIMED_OUT);
        MUST(gpupool_release(client, &given, stream)); /* before its answer has come */
        MUST_BE(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &late), GPUPOOL_E_TIMED_OUT);
        MUST_BE(gpupool_acquire(client, pool, 16 * MIB, stream, SHORT_NS, 0, &late), GPUPOOL_E_TIMED_OUT);
        MUST_BE(gpupool_query(client, &attached, &info), GPUPOOL_E_TIMED_OUT);
        go_on(client);
        for (unsigned i = 0; i < 2; i++)
            MUST(gpupool_share(client, &shared, GPUPOOL_NO_STREAM, &other));
        MUST(gpupool_query(client, &shared, &info));
        assert_int_equal(info.holders, 1);
        MUST(gpupool_send(client, &sent, GPUPOOL_NO_STREAM, 1, TEST_WAIT_NS, &other));
        MUST(gpupool_revoke(client, &other));
        MUST(gpupool_share(client, &large, GPUPOOL_NO_STREAM, &other));
        MUST(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &late));
        struct gpupool_buffer *all[] = {&shared, &sent, &large, &attached, &late};
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
            MUST(gpupool_release(client, all[i], stream));
        assert_true(stream_heaps_are_valid(client));
        WAIT_UNTIL(nothing_is_left(client));
        close_cached(client);
    }
}

static void leases_of_their_own_are_as_before_when_the_daemon_answers_again(void **state) {
    (void)state;
    struct gpupool_client *client = open_impatient(GPUPOOL_OPEN_NO_CACHE);
    struct gpupool_buffer buffer, other, late;
    struct gpupool_token token;
    uint32_t pool;

    client->session.connection.answer_timeout_ns = TEST_WAIT_NS;
    pool = pool_of(client, GPUPOOL_POOL_HOST);
    buffer = acquire(client, GPUPOOL_POOL_HOST, SIZE, GPUPOOL_NO_STREAM);
    other = acquire(client, GPUPOOL_POOL_HOST, SIZE, GPUPOOL_NO_STREAM);
    client->session.connection.answer_timeout_ns = SHORT_NS;
    stop();
    MUST_BE(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token), GPUPOOL_E_TIMED_OUT);
    MUST(gpupool_release(client, &other, GPUPOOL_NO_STREAM)); /* the daemon has taken the message */
    MUST_BE(gpupool_acquire(client, pool, SIZE, NULL, GPUPOOL_NOW, 0, &late), GPUPOOL_E_TIMED_OUT);
    go_on(client);
    assert_int_equal(daemon_sum(&daemon_, "leases"), 1);
    MUST(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token));
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    close_cached(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_as_before_when_the_daemon_answers_again),
        cmocka_unit_test(leases_of_their_own_are_as_before_when_the_daemon_answers_again),
    };
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
