/* SPDX-License-Identifier: Apache-2.0 */
/* gpupool_is_connected(): it knows of the daemon's end before any other call has failed, and its text says
 * what to do. */
#include <poll.h>
#include <signal.h>

#include "tests/integration/cache_fixture.h"

#define THREADS 3u

/* Counts the library's calls of poll(), by which it looks at the socket. */
static _Atomic unsigned polls;
int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    atomic_fetch_add(&polls, 1);
    return __real_poll(fds, count, timeout_ms);
}

static void start(void) {
    daemon_start(&daemon_, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB)});
}

static struct gpupool_client *open_without_thread(void) {
    return open_client(&daemon_, GPUPOOL_OPEN_NO_THREAD, GPUPOOL_FOREVER);
}

static void expect_connected(struct gpupool_client *client) {
    assert_int_equal(gpupool_is_connected(client), 1);
    assert_int_equal(gpupool_error_number(), 0);
    assert_string_equal(gpupool_error_text(), "");
}

static void expect_over(struct gpupool_client *client, int error) {
    assert_int_equal(gpupool_is_connected(client), 0);
    assert_int_equal(gpupool_error_number(), error);
    assert_non_null(strstr(gpupool_error_text(), "buffers stay usable"));
    assert_non_null(strstr(gpupool_error_text(), "close the client, and open another one"));
}

static void the_end_is_known_before_a_call_has_failed(void **state) {
    static const uint32_t flags[] = {0, GPUPOOL_OPEN_NO_THREAD, GPUPOOL_OPEN_NO_CACHE};

    (void)state;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        start();
        struct gpupool_client *client = open_client(&daemon_, flags[i], GPUPOOL_FOREVER);
        expect_connected(client);
        struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, MIB, GPUPOOL_NO_STREAM), other;
        uint32_t pool = buffer.pool;
        memset(buffer.data, 7, MIB);
        expect_connected(client);
        daemon_crash(&daemon_);
        expect_over(client, GPUPOOL_E_DISCONNECTED);
        assert_int_equal(gpupool_acquire(client, pool, 32 * MIB, GPUPOOL_NO_STREAM, GPUPOOL_NOW, 0, &other),
                         GPUPOOL_E_DISCONNECTED);
        assert_non_null(strstr(gpupool_error_text(), "close the client, and open another one"));
        assert_int_equal(((const uint8_t *)buffer.data)[MIB - 1], 7);
        /* A daemon that comes back serves new clients. This one stays over. */
        daemon_restart(&daemon_);
        expect_over(client, GPUPOOL_E_DISCONNECTED);
        struct gpupool_client *next = open_client(&daemon_, flags[i], GPUPOOL_FOREVER);
        expect_connected(next);
        MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
        gpupool_close(client);
        gpupool_close(next);
        daemon_stop(&daemon_);
    }
}

static void a_daemon_that_stops_in_order_is_gone_as_well(void **state) {
    (void)state;
    start();
    struct gpupool_client *client = open_without_thread();
    daemon_signal(&daemon_, SIGTERM);
    assert_int_equal(daemon_wait(&daemon_), 0);
    expect_over(client, GPUPOOL_E_DISCONNECTED);
    gpupool_close(client);
    daemon_remove(&daemon_);
}

static void it_asks_the_daemon_nothing_and_makes_one_system_call_at_most(void **state) {
    (void)state;
    start();
    struct gpupool_client *client = open_without_thread();
    daemon_signal(&daemon_, SIGSTOP);
    atomic_store(&polls, 0);
    for (unsigned i = 0; i < 10; i++)
        expect_connected(client); /* an exchange with a daemon that is stopped would not end */
    assert_int_equal(atomic_load(&polls), 10);
    daemon_signal(&daemon_, SIGCONT);
    daemon_crash(&daemon_);
    expect_over(client, GPUPOOL_E_DISCONNECTED);
    atomic_store(&polls, 0);
    expect_over(client, GPUPOOL_E_DISCONNECTED);
    assert_int_equal(atomic_load(&polls), 0);
    gpupool_close(client);
    daemon_remove(&daemon_);
}

static void a_forked_child_is_not_connected_and_its_parent_stays_so(void **state) {
    (void)state;
    start();
    struct gpupool_client *client = open_without_thread();
    pid_t pid = fork();
    if (pid == 0)
        _exit(gpupool_is_connected(client) != 0 ? 1 : gpupool_error_number() != GPUPOOL_E_FORKED ? 2 : 0);
    assert_int_equal(test_wait(pid), 0);
    expect_connected(client);
    gpupool_close(client);
    daemon_stop(&daemon_);
}

static void no_client_is_not_connected(void **state) {
    (void)state;
    assert_int_equal(gpupool_is_connected(NULL), 0);
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_INVALID);
}

struct user {
    pthread_t thread;
    struct gpupool_client *client;
    uint32_t pool;
    _Atomic unsigned rounds;
};

/* Exchanges messages with the daemon until one fails. */
static void *exchange(void *argument) {
    struct user *user = argument;
    struct gpupool_pool pools[4];
    size_t count;

    while (gpupool_pools(user->client, pools, 4, &count) == 0)
        atomic_fetch_add(&user->rounds, 1);
    return NULL;
}

static bool have_all_begun(struct user *users) {
    for (unsigned i = 0; i < THREADS; i++)
        if (atomic_load(&users[i].rounds) == 0)
            return false;
    return true;
}

static void threads_may_ask_beside_calls_that_are_under_way(void **state) {
    struct user users[THREADS];

    (void)state;
    start();
    struct gpupool_client *client = open_cached();
    for (unsigned i = 0; i < THREADS; i++) {
        users[i] = (struct user){.client = client};
        assert_int_equal(pthread_create(&users[i].thread, NULL, exchange, &users[i]), 0);
    }
    do
        expect_connected(client);
    while (!have_all_begun(users));
    daemon_crash(&daemon_);
    assert_int_equal(gpupool_is_connected(client), 0);
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_DISCONNECTED);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(users[i].thread, NULL);
    expect_over(client, GPUPOOL_E_DISCONNECTED);
    gpupool_close(client);
    daemon_remove(&daemon_);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_is_known_before_a_call_has_failed),
        cmocka_unit_test(a_daemon_that_stops_in_order_is_gone_as_well),
        cmocka_unit_test(it_asks_the_daemon_nothing_and_makes_one_system_call_at_most),
        cmocka_unit_test(a_forked_child_is_not_connected_and_its_parent_stays_so),
        cmocka_unit_test(no_client_is_not_connected),
        cmocka_unit_test(threads_may_ask_beside_calls_that_are_under_way),
    };
    return test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
