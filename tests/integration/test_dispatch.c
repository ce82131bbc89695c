/* SPDX-License-Identifier: Apache-2.0 */
/* A client without a thread, whose application's loop gives idle memory back. */
#include <poll.h>

#include "tests/entries.h"
#include "tests/integration/cache_fixture.h"

static struct gpupool_client *open_threadless(uint64_t decay_ns) {
    return open_client(&daemon_, GPUPOOL_OPEN_NO_THREAD, decay_ns);
}

static bool is_readable(int fd, uint64_t within_ns) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, (int)(within_ns / NS_PER_MS)) == 1;
}

static void there_is_no_thread(void **state) {
    (void)state;
    if (test_host_exports_vmm())
        skip(); /* such memory is for clients with CUDA */
    unsigned threads = count_entries("/proc/self/task");
    /* CUDA has threads of its own */
    struct gpupool_client *client =
        open_client(&daemon_, GPUPOOL_OPEN_NO_THREAD | GPUPOOL_OPEN_NO_CUDA, GPUPOOL_FOREVER);
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, 4096, NULL);

    assert_int_equal(count_entries("/proc/self/task"), threads);
    MUST(gpupool_release(client, &buffer, NULL));
    close_cached(client);
}

static void dispatching_gives_back_what_the_daemon_asks_for(void **state) {
    const uint64_t large = 40 * MIB; /* no two of them fit */
    struct gpupool_client *client;
    struct puppet puppet;

    (void)state;
    empty_the_pools();
    puppet_connect(&puppet, &daemon_);
    client = open_threadless(GPUPOOL_FOREVER);
    int fd = gpupool_fd(client);
    assert_true(fd >= 0);
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, large, NULL);
    struct gpupool_buffer held = acquire(client, GPUPOOL_POOL_HOST, 4 * MIB, NULL);
    MUST(puppet_write_pattern(client, &held, 61, NULL));
    MUST(gpupool_release(client, &buffer, NULL));
    for (unsigned round = 0; round < 3; round++) {
        assert_false(is_readable(fd, 0));
        MUST(gpupool_dispatch(client)); /* nothing is due */
        assert_true(daemon_sum(&daemon_, "leased_bytes") >= large + 4 * MIB);
        puppet_send_acquire(&puppet, 0, GPUPOOL_POOL_HOST, large, GPUPOOL_FOREVER);
        assert_true(is_readable(fd, TEST_WAIT_NS));
        assert_false(puppet_has_answered(&puppet)); /* no other thread gives it */
        MUST(gpupool_dispatch(client));             /* once is enough */
        WAIT_UNTIL(puppet_has_answered(&puppet));
        PUPPET_MUST(&puppet, puppet_receive(&puppet));
        PUPPET_MUST(&puppet, puppet_fill(&puppet, 0, round + 1));
        assert_int_equal(puppet_read_pattern(client, &held, 61, NULL), 0);
        PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
        while (is_readable(fd, 0)) /* asked once more than was needed */
            MUST(gpupool_dispatch(client));
        wait_until_nothing_is_short(client);
        buffer = acquire(client, GPUPOOL_POOL_HOST, large, NULL);
        MUST(gpupool_release(client, &buffer, NULL));
    }
    MUST(gpupool_release(client, &held, NULL));
    puppet_quit(&puppet);
    close_cached(client);
}

static const struct gpu *driver;
static const void *destroyed; /* a stream */
static unsigned calls_with_destroyed;

static void note_stream(const void *stream) {
    if (destroyed != NULL && stream == destroyed)
        calls_with_destroyed++;
}

static int watched_is_capturing(unsigned device, void *stream, bool *ret_capturing) {
    note_stream(stream);
    return driver->stream_is_capturing(device, stream, ret_capturing);
}

static int watched_query(unsigned device, void *stream) {
    note_stream(stream);
    return driver->stream_query(device, stream);
}

/* CUDA's driver crashes when it is asked for such a stream. */
static void no_destroyed_stream_is_asked_whether_it_is_busy(void **state) {
    const uint64_t large = 40 * MIB; /* no two of them fit */
    struct puppet puppet;
    void *stream;

    (void)state;
    for (unsigned by_hand = 0; by_hand <= 1; by_hand++) {
        empty_the_pools();
        puppet_connect(&puppet, &daemon_);
        struct gpupool_client *client = open_threadless(GPUPOOL_FOREVER);
        MUST(devices_need_gpu(&client->session.devices, &driver));
        struct gpu watched = *driver;
        watched.stream_is_capturing = watched_is_capturing;
        watched.stream_query = watched_query;
        client->session.devices.gpu = &watched;

        MUST(gpupool_stream_create(client, 0, &stream));
        struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, large, stream);
        MUST(gpupool_release(client, &buffer, stream));
        struct gpupool_buffer held = acquire(client, GPUPOOL_POOL_DEVICE, 4096, GPUPOOL_NO_STREAM);
        if (by_hand) {
            MUST(gpupool_trim(client, NULL));
            MUST_BE(driver->stream_destroy(0, stream), 0);
        } else {
            MUST(gpupool_stream_destroy(client, 0, stream));
        }
        destroyed = stream;
        puppet_send_acquire(&puppet, 0, GPUPOOL_POOL_DEVICE, POOL_MIB * MIB, NS_PER_S / 5);
        assert_true(is_readable(gpupool_fd(client), TEST_WAIT_NS));
        MUST(gpupool_dispatch(client));
        assert_int_equal(calls_with_destroyed, 0);
        WAIT_UNTIL(puppet_has_answered(&puppet));
        (void)puppet_receive(&puppet);
        destroyed = NULL;
        MUST(gpupool_release(client, &held, GPUPOOL_NO_STREAM));
        client->session.devices.gpu = driver;
        puppet_quit(&puppet);
        close_cached(client);
    }
}

/* The memory that a program keeps idle by itself. */
struct hoard {
    pthread_mutex_t lock; /* of what follows */
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    unsigned calls;
};

static void give_up(void *argument) {
    struct hoard *hoard = argument;

    pthread_mutex_lock(&hoard->lock);
    hoard->calls++;
    if (hoard->buffer.data != NULL)
        MUST(gpupool_release(hoard->client, &hoard->buffer, GPUPOOL_NO_STREAM));
    pthread_mutex_unlock(&hoard->lock);
}

/* The daemon gets the memory that the option's function releases, also where the library's thread calls that
 * function and not the loop. */
static void the_program_hears_of_the_request_and_its_memory_goes_along(void **state) {
    const uint64_t large = 40 * MIB; /* no two of them fit */

    (void)state;
    for (unsigned with_thread = 0; with_thread <= 1; with_thread++) {
        struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
        struct hoard hoard = {.lock = PTHREAD_MUTEX_INITIALIZER};
        struct puppet puppet;

        empty_the_pools();
        puppet_connect(&puppet, &daemon_);
        options.socket = daemon_.socket;
        options.flags = with_thread ? 0 : GPUPOOL_OPEN_NO_THREAD;
        options.decay_ns = GPUPOOL_FOREVER;
        options.reclaim = give_up;
        options.reclaim_argument = &hoard;
        pthread_mutex_lock(&hoard.lock);
        MUST(gpupool_open(&options, &hoard.client));
        hoard.buffer = acquire(hoard.client, GPUPOOL_POOL_HOST, large, NULL);
        pthread_mutex_unlock(&hoard.lock);
        puppet_send_acquire(&puppet, 0, GPUPOOL_POOL_HOST, large, GPUPOOL_FOREVER);
        if (!with_thread) {
            assert_true(is_readable(gpupool_fd(hoard.client), TEST_WAIT_NS));
            assert_int_equal(hoard.calls, 0);
            MUST(gpupool_dispatch(hoard.client));
            assert_int_equal(hoard.calls, 1);
        }
        WAIT_UNTIL(puppet_has_answered(&puppet));
        PUPPET_MUST(&puppet, puppet_receive(&puppet));
        PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
        puppet_quit(&puppet);
        close_cached(hoard.client); /* its thread has ended */
        assert_true(hoard.calls >= 1);
        assert_null(hoard.buffer.data);
        pthread_mutex_destroy(&hoard.lock);
    }
}

static void dispatching_gives_back_what_was_not_used_for_a_time(void **state) {
    (void)state;
    empty_the_pools();
    struct gpupool_client *client = open_threadless(20 * NS_PER_MS);
    int fd = gpupool_fd(client);
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, 8 * MIB, NULL);
    struct gpupool_buffer held = acquire(client, GPUPOOL_POOL_HOST, 2 * MIB, NULL);
    MUST(gpupool_release(client, &buffer, NULL));
    uint64_t leased = daemon_sum(&daemon_, "leased_bytes");
    for (unsigned turn = 0; turn < 2; turn++) {
        assert_true(is_readable(fd, TEST_WAIT_NS));
        assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), leased); /* not by itself, and not in use */
        MUST(gpupool_dispatch(client));
    }
    WAIT_UNTIL(gpupool_dispatch(client) != 0 || daemon_sum(&daemon_, "leased_bytes") == 2 * MIB);
    MUST(gpupool_release(client, &held, NULL));
    WAIT_UNTIL(gpupool_dispatch(client) != 0 || daemon_sum(&daemon_, "leased_bytes") == 0);
    close_cached(client);
}

static void an_acquire_does_not_wait_for_what_its_own_process_keeps(void **state) {
    const uint64_t large = 40 * MIB; /* no two of them fit */
    struct gpupool_client *client;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    client = open_threadless(GPUPOOL_FOREVER);
    MUST(gpupool_stream_create(client, 0, &stream));
    for (unsigned round = 0; round < 2; round++) { /* from one stream to the other, and back */
        struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, large, stream);
        MUST(gpupool_release(client, &buffer, stream));
        buffer = acquire(client, GPUPOOL_POOL_DEVICE, large, NULL);
        MUST(gpupool_release(client, &buffer, NULL));
    }
    MUST(gpupool_stream_destroy(client, 0, stream));
    close_cached(client);
}

/* --- while the only thread that would dispatch waits --- */

struct blocked {
    struct gpupool_client *client;
    uint32_t pool;
    uint64_t size_bytes;
    bool begins; /* a request, which it ends then */
    struct gpupool_buffer buffer;
    int result;
};

static void *block(void *argument) {
    struct blocked *blocked = argument;
    uint64_t request;

    if (!blocked->begins) {
        blocked->result = gpupool_acquire(blocked->client, blocked->pool, blocked->size_bytes,
                                          GPUPOOL_NO_STREAM, TEST_WAIT_NS, 0, &blocked->buffer);
        return NULL;
    }
    blocked->result = gpupool_acquire_begin(blocked->client, blocked->pool, blocked->size_bytes,
                                            GPUPOOL_NO_STREAM, TEST_WAIT_NS, 0, &request);
    if (blocked->result == 0)
        blocked->result = gpupool_acquire_end(blocked->client, request, &blocked->buffer);
    return NULL;
}

static void count_call(void *argument) {
    atomic_fetch_add((atomic_uint *)argument, 1);
}

/* A thread waits for memory that another process keeps until it has had some of this one's: that is idle, and
 * does not help the thread's own request. calls: of the program's function; NULL: it has none. */
static void block_beside_idle_memory(bool begins, atomic_uint *calls) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct blocked blocked = {.size_bytes = (POOL_MIB - 2) * MIB, .begins = begins};
    struct puppet puppet;
    pthread_t thread;

    empty_the_pools();
    puppet_connect(&puppet, &daemon_);
    options.socket = daemon_.socket;
    options.flags = GPUPOOL_OPEN_NO_THREAD;
    options.decay_ns = GPUPOOL_FOREVER;
    options.reclaim = calls != NULL ? count_call : NULL;
    options.reclaim_argument = calls;
    MUST(gpupool_open(&options, &blocked.client));
    blocked.pool = pool_of(blocked.client, GPUPOOL_POOL_HOST);
    struct gpupool_buffer idle = acquire(blocked.client, GPUPOOL_POOL_HOST, 16 * MIB, NULL);
    struct gpupool_buffer held = acquire(blocked.client, GPUPOOL_POOL_HOST, 4 * MIB, NULL);
    PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, GPUPOOL_POOL_HOST, 40 * MIB, TEST_WAIT_NS, 0));
    MUST(gpupool_release(blocked.client, &idle, GPUPOOL_NO_STREAM));
    assert_int_equal(pthread_create(&thread, NULL, block, &blocked), 0);
    WAIT_UNTIL(daemon_sum(&daemon_, "waiters") == 1);

    puppet_send_acquire(&puppet, 1, GPUPOOL_POOL_HOST, 16 * MIB, GPUPOOL_FOREVER);
    WAIT_UNTIL(puppet_has_answered(&puppet));
    PUPPET_MUST(&puppet, puppet_receive(&puppet));
    PUPPET_MUST(&puppet, puppet_release(&puppet, 1));
    PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
    puppet_quit(&puppet); /* the segments that it has mapped stand in the way of a larger one */
    MUST(gpupool_release(blocked.client, &held, GPUPOOL_NO_STREAM));
    TEST_JOIN(thread, NULL);
    MUST(blocked.result);
    MUST(gpupool_release(blocked.client, &blocked.buffer, GPUPOOL_NO_STREAM));
    assert_true(stream_heaps_are_valid(blocked.client));
    if (calls != NULL) { /* the program may hold a lock in an acquire that its function takes, too */
        assert_int_equal(atomic_load(calls), 0);
        assert_true(is_readable(gpupool_fd(blocked.client), 0));
        MUST(gpupool_dispatch(blocked.client));
        assert_int_equal(atomic_load(calls), 1);
    }
    close_cached(blocked.client);
}

static void a_thread_that_waits_for_memory_answers_the_daemon(void **state) {
    (void)state;
    block_beside_idle_memory(false, NULL);
    block_beside_idle_memory(true, NULL);
}

static void it_leaves_the_program_s_function_to_the_loop(void **state) {
    (void)state;
    for (unsigned begins = 0; begins <= 1; begins++) {
        atomic_uint calls = 0;
        block_beside_idle_memory(begins, &calls);
    }
}

static void other_clients_have_nothing_to_dispatch(void **state) {
    struct gpupool_client *clients[] = {
        open_cached(), open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0),
        open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE | GPUPOOL_OPEN_NO_THREAD, 0)};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        MUST_BE(gpupool_fd(clients[i]), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_dispatch(clients[i]), GPUPOOL_E_INVALID);
        gpupool_close(clients[i]);
    }
    MUST_BE(gpupool_fd(NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_dispatch(NULL), GPUPOOL_E_INVALID);
}

static void a_forked_child_cannot_dispatch(void **state) {
    struct gpupool_client *client = open_threadless(GPUPOOL_FOREVER);

    (void)state;
    pid_t pid = fork();
    if (pid == 0)
        _exit(gpupool_fd(client) != GPUPOOL_E_FORKED || gpupool_dispatch(client) != GPUPOOL_E_FORKED);
    assert_true(pid > 0);
    assert_int_equal(test_wait(pid), 0);
    assert_true(gpupool_fd(client) >= 0);
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_is_no_thread),
        cmocka_unit_test(dispatching_gives_back_what_the_daemon_asks_for),
        cmocka_unit_test(no_destroyed_stream_is_asked_whether_it_is_busy),
        cmocka_unit_test(the_program_hears_of_the_request_and_its_memory_goes_along),
        cmocka_unit_test(dispatching_gives_back_what_was_not_used_for_a_time),
        cmocka_unit_test(an_acquire_does_not_wait_for_what_its_own_process_keeps),
        cmocka_unit_test(a_thread_that_waits_for_memory_answers_the_daemon),
        cmocka_unit_test(it_leaves_the_program_s_function_to_the_loop),
        cmocka_unit_test(other_clients_have_nothing_to_dispatch),
        cmocka_unit_test(a_forked_child_cannot_dispatch),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
