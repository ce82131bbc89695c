/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: acquires that complete on an eventfd, and that any thread can cancel. Most tests run with three
 * kinds of clients: with the library's thread, with the program's loop, and without a cache.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

#include "daemon/core/limits.h"
#include "tests/entries.h"
#include "tests/integration/cache_fixture.h"

#define LARGE      (40 * MIB) /* no two of them fit */
#define REST       (24 * MIB) /* what is left then */
#define MANY       64u
#define RACES      (test_is_full() ? 200u : 60u)
#define STORMERS   4u
#define STORM_SIZE (12 * MIB)

static const uint32_t client_flags[] = {0, GPUPOOL_OPEN_NO_THREAD, GPUPOOL_OPEN_NO_CACHE};

/* Runs a test for each kind of memory with each kind of client. */
static void for_each_client(void (*test)(unsigned kind, uint32_t flags)) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    for (unsigned i = 0; i < count; i++)
        for (unsigned f = 0; f < sizeof client_flags / sizeof *client_flags; f++) {
            empty_the_pools();
            test(kinds[i], client_flags[f]);
        }
}

static bool has_loop(const struct gpupool_client *client) {
    return purger_has_loop(&client->cache.purger);
}

/* Does what the program's loop does, if the client has one. */
static bool dispatch(struct gpupool_client *client) {
    if (has_loop(client))
        MUST(gpupool_dispatch(client));
    return true;
}

static bool is_complete(struct gpupool_client *client, uint64_t request) {
    struct pollfd ready = {.fd = gpupool_request_fd(client, request), .events = POLLIN};
    assert_true(ready.fd >= 0);
    return poll(&ready, 1, 0) == 1;
}

/* Waits as a program does: for the request's descriptor, and for the client's if that has a loop. */
static void await(struct gpupool_client *client, uint64_t request) {
    struct pollfd fds[] = {{.fd = gpupool_request_fd(client, request), .events = POLLIN},
                           {.fd = has_loop(client) ? gpupool_fd(client) : -1, .events = POLLIN}};
    uint64_t end_ns = clock_now_ns() + TEST_WAIT_NS;

    assert_true(fds[0].fd >= 0);
    for (;;) {
        assert_true(poll(fds, 2, (int)(TEST_WAIT_NS / NS_PER_MS)) > 0);
        if (fds[0].revents != 0)
            return;
        dispatch(client);
        assert_true(clock_now_ns() < end_ns);
    }
}

static uint64_t begin(struct gpupool_client *client, unsigned kind, uint64_t size_bytes,
                      uint64_t timeout_ns) {
    uint64_t request = 0;
    MUST(gpupool_acquire_begin(client, pool_of(client, kind), size_bytes, stream_of(kind), timeout_ns, 0,
                               &request));
    assert_true(request != 0);
    return request;
}

static uint64_t waiters(unsigned kind) {
    return daemon_pool(&daemon_, puppet_kind_name(kind), 0, "waiters");
}

/* The client's loop runs meanwhile. */
static void wait_for_waiters(struct gpupool_client *client, unsigned kind, uint64_t count) {
    WAIT_UNTIL(dispatch(client) && waiters(kind) == count);
}

/* A process with a client of the same kind. (A client with a cache waits for whole segments of a pool of
 * descriptors. One without a cache keeps its own segments mapped, so that their memory would serve no such
 * request.) */
static void open_holder(struct puppet *holder, const struct test_daemon *daemon, uint32_t flags) {
    puppet_start(holder, daemon);
    PUPPET_MUST(holder,
                puppet_call(holder, &(struct puppet_command){.verb = PUPPET_OPEN,
                                                             .flags = flags & GPUPOOL_OPEN_NO_CACHE}));
}

/* One that has all of a pool, in two buffers. */
static void have_all(struct puppet *holder, unsigned kind, uint32_t flags) {
    open_holder(holder, &daemon_, flags);
    PUPPET_MUST(holder, puppet_acquire(holder, 0, kind, LARGE, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(holder, puppet_acquire(holder, 1, kind, REST, GPUPOOL_FOREVER, 0));
}

static void expect_nothing_left(void) {
    WAIT_UNTIL(daemon_sum(&daemon_, "leases") == 0);
    assert_int_equal(daemon_sum(&daemon_, "waiters"), 0);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
}

static void end_use(struct gpupool_client *client, unsigned kind, uint64_t request, unsigned seed) {
    struct gpupool_buffer buffer;

    MUST(gpupool_acquire_end(client, request, &buffer));
    assert_int_equal((uintptr_t)buffer.data % 512, 0);
    MUST(puppet_write_pattern(client, &buffer, seed, NULL));
    assert_int_equal(puppet_read_pattern(client, &buffer, seed, NULL), 0);
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
}

/* --- completion --- */

static void try_at_hand(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    struct gpupool_buffer buffer = acquire(client, kind, 3 * MIB, stream_of(kind));
    bool has_cache = (flags & GPUPOOL_OPEN_NO_CACHE) == 0;
    uint64_t request;

    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    unsigned threads = count_entries("/proc/self/task");
    request = begin(client, kind, 3 * MIB, has_cache ? GPUPOOL_NOW : GPUPOOL_FOREVER);
    if (has_cache) {
        assert_true(is_complete(client, request));
        assert_int_equal(count_entries("/proc/self/task"), threads); /* no question, and so no runner */
    }
    end_use(client, kind, request, 1);
    close_cached(client);
}

static void memory_at_hand_completes_a_request_at_once(void **state) {
    (void)state;
    for_each_client(try_at_hand);
}

static void try_growth(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    uint64_t request = begin(client, kind, LARGE, GPUPOOL_FOREVER);

    await(client, request);
    assert_true(is_complete(client, request)); /* and stays so */
    end_use(client, kind, request, 2);
    request = begin(client, kind, 1000, GPUPOOL_FOREVER);
    end_use(client, kind, request, 3); /* which waits by itself */
    close_cached(client);
}

static void a_pool_grows_for_a_request(void **state) {
    (void)state;
    for_each_client(try_growth);
}

static void try_release(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    struct puppet holder;

    have_all(&holder, kind, flags);
    uint64_t request = begin(client, kind, LARGE, GPUPOOL_FOREVER);
    wait_for_waiters(client, kind, 1);
    assert_false(is_complete(client, request));
    PUPPET_MUST(&holder, puppet_release(&holder, 0));
    await(client, request);
    end_use(client, kind, request, 4);
    puppet_quit(&holder);
    close_cached(client);
}

static void a_request_gets_what_another_process_releases(void **state) {
    (void)state;
    for_each_client(try_release);
}

static void try_many(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    struct epoll_event event = {.events = EPOLLIN};
    uint64_t requests[MANY];
    struct gpupool_buffer buffers[MANY];
    struct puppet holder;
    unsigned complete = 0;
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    assert_true(epoll >= 0);
    have_all(&holder, kind, flags);
    for (unsigned i = 0; i < MANY; i++) {
        requests[i] = begin(client, kind, 512 * KIB, GPUPOOL_FOREVER);
        event.data.u32 = i;
        int fd = gpupool_request_fd(client, requests[i]);
        assert_int_equal(gpupool_request_fd(client, requests[i]), fd);
        assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
        assert_int_equal(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
    }
    if (has_loop(client)) {
        event.data.u32 = MANY;
        assert_int_equal(epoll_ctl(epoll, EPOLL_CTL_ADD, gpupool_fd(client), &event), 0);
    }
    wait_for_waiters(client, kind, MANY);
    PUPPET_MUST(&holder, puppet_release(&holder, 0));
    PUPPET_MUST(&holder, puppet_release(&holder, 1));
    while (complete < MANY) {
        assert_int_equal(epoll_wait(epoll, &event, 1, (int)(TEST_WAIT_NS / NS_PER_MS)), 1);
        unsigned i = event.data.u32;
        if (i == MANY) {
            dispatch(client);
            continue;
        }
        MUST(gpupool_acquire_end(client, requests[i], &buffers[i])); /* closes its descriptor */
        MUST(puppet_write_pattern(client, &buffers[i], i + 1, NULL));
        complete++;
    }
    for (unsigned i = 0; i < MANY; i++) {
        assert_int_equal(puppet_read_pattern(client, &buffers[i], i + 1, NULL), 0);
        MUST(gpupool_release(client, &buffers[i], stream_of(kind)));
    }
    close(epoll);
    puppet_quit(&holder);
    close_cached(client);
}

static void many_requests_complete_in_one_epoll(void **state) {
    (void)state;
    for_each_client(try_many);
}

/* Idle memory of another stream of the process serves, as it does for gpupool_acquire(). */
static void own_idle_memory_goes_back_first(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    for (unsigned f = 0; f < 2; f++) {
        void *stream;
        empty_the_pools();
        struct gpupool_client *client = open_client(&daemon_, client_flags[f], GPUPOOL_FOREVER);
        MUST(gpupool_stream_create(client, 0, &stream));
        struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, LARGE, stream);
        MUST(gpupool_release(client, &buffer, stream));
        uint64_t request = begin(client, GPUPOOL_POOL_DEVICE, LARGE, GPUPOOL_FOREVER);
        await(client, request);
        end_use(client, GPUPOOL_POOL_DEVICE, request, 5);
        MUST(gpupool_trim(client, NULL));
        MUST(gpupool_stream_destroy(client, 0, stream));
        close_cached(client);
    }
}

static void try_own_release(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    struct gpupool_buffer buffer = acquire(client, kind, LARGE, stream_of(kind));
    uint64_t request = begin(client, kind, LARGE, GPUPOOL_FOREVER);

    wait_for_waiters(client, kind, 1);
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    await(client, request);
    end_use(client, kind, request, 6);
    close_cached(client);
}

static void a_release_of_the_own_process_serves_a_request(void **state) {
    (void)state;
    for_each_client(try_own_release);
}

static void try_zero(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    struct gpupool_buffer buffer = acquire(client, kind, MIB, stream_of(kind));
    uint64_t request;

    MUST(puppet_write_pattern(client, &buffer, 7, NULL));
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    MUST(gpupool_acquire_begin(client, pool_of(client, kind), MIB, stream_of(kind), GPUPOOL_FOREVER,
                               GPUPOOL_ZERO, &request));
    MUST(gpupool_acquire_end(client, request, &buffer));
    assert_int_equal(puppet_read_pattern(client, &buffer, 0, NULL), 0);
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    close_cached(client);
}

static void the_end_zeroes_what_was_to_be_zero(void **state) {
    (void)state;
    for_each_client(try_zero);
}

/* --- cancelling --- */

static void try_cancel(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    struct gpupool_buffer buffer = {.size_bytes = 77};
    struct puppet holder;

    have_all(&holder, kind, flags);
    uint64_t request = begin(client, kind, LARGE, GPUPOOL_FOREVER);
    wait_for_waiters(client, kind, 1);
    MUST(gpupool_request_cancel(client, request));
    MUST(gpupool_request_cancel(client, request));
    WAIT_UNTIL(waiters(kind) == 0); /* although no thread has ended it, or dispatched */
    await(client, request);
    MUST(gpupool_request_cancel(client, request));
    MUST_BE(gpupool_acquire_end(client, request, &buffer), GPUPOOL_E_CANCELLED);
    assert_string_equal(gpupool_error_name(gpupool_error_number()), "GPUPOOL_E_CANCELLED");
    assert_non_null(strstr(gpupool_error_text(), "40 MiB"));
    assert_int_equal(buffer.size_bytes, 77);
    PUPPET_MUST(&holder, puppet_release(&holder, 0));
    PUPPET_MUST(&holder, puppet_acquire(&holder, 0, kind, LARGE, GPUPOOL_FOREVER, 0)); /* it is free */
    puppet_quit(&holder);
    close_cached(client);
}

static void a_cancelled_request_leaves_the_queue_at_once(void **state) {
    (void)state;
    for_each_client(try_cancel);
}

static void try_cancel_complete(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    uint64_t request = begin(client, kind, MIB, GPUPOOL_FOREVER);

    await(client, request);
    MUST(gpupool_request_cancel(client, request)); /* too late */
    end_use(client, kind, request, 8);
    close_cached(client);
}

static void a_cancel_of_a_complete_request_changes_nothing(void **state) {
    (void)state;
    for_each_client(try_cancel_complete);
}

/* A thread that ends a request. */
struct ender {
    struct gpupool_client *client;
    uint64_t request;
    struct gpupool_buffer buffer;
};

static void *end_in_thread(void *argument) {
    struct ender *ender = argument;
    return (void *)(intptr_t)gpupool_acquire_end(ender->client, ender->request, &ender->buffer);
}

static void try_cancel_of_end(unsigned kind, uint32_t flags) {
    struct ender ender = {.client = open_client(&daemon_, flags, GPUPOOL_FOREVER)};
    struct puppet holder;
    pthread_t thread;
    void *result;

    have_all(&holder, kind, flags);
    ender.request = begin(ender.client, kind, LARGE, GPUPOOL_FOREVER);
    assert_int_equal(pthread_create(&thread, NULL, end_in_thread, &ender), 0);
    WAIT_UNTIL(waiters(kind) == 1); /* it drives the request, where no thread of the library does */
    MUST(gpupool_request_cancel(ender.client, ender.request));
    TEST_JOIN(thread, &result);
    assert_int_equal((int)(intptr_t)result, GPUPOOL_E_CANCELLED);
    MUST_BE(gpupool_request_cancel(ender.client, ender.request), GPUPOOL_E_STALE);
    assert_int_equal(waiters(kind), 0);
    puppet_quit(&holder);
    close_cached(ender.client);
}

static void another_thread_cancels_what_one_waits_for(void **state) {
    (void)state;
    for_each_client(try_cancel_of_end);
}

static void try_cancel_for_next(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    uint64_t requests[WAIT_QUEUE_WINDOW];
    struct gpupool_buffer buffer;
    struct puppet holder, next;

    if (flags != GPUPOOL_OPEN_NO_CACHE) { /* the holder's kind, so that all stand in one queue */
        gpupool_close(client);
        return;
    }
    have_all(&holder, kind, flags);
    puppet_connect(&next, &daemon_);
    for (unsigned i = 0; i < WAIT_QUEUE_WINDOW; i++)
        requests[i] = begin(client, kind, LARGE, GPUPOOL_FOREVER);
    wait_for_waiters(client, kind, WAIT_QUEUE_WINDOW);
    puppet_send_acquire(&next, 0, kind, REST, GPUPOOL_FOREVER);
    wait_for_waiters(client, kind, WAIT_QUEUE_WINDOW + 1);
    PUPPET_MUST(&holder, puppet_release(&holder, 1)); /* only what stands first is looked at */
    assert_int_equal(waiters(kind), WAIT_QUEUE_WINDOW + 1);
    MUST(gpupool_request_cancel(client, requests[5]));
    PUPPET_MUST(&next, puppet_receive(&next));
    assert_int_equal(waiters(kind), WAIT_QUEUE_WINDOW - 1);
    for (unsigned i = 0; i < WAIT_QUEUE_WINDOW; i++) {
        MUST(gpupool_request_cancel(client, requests[i]));
        MUST_BE(gpupool_acquire_end(client, requests[i], &buffer), GPUPOOL_E_CANCELLED);
    }
    puppet_quit(&next);
    puppet_quit(&holder);
    close_cached(client);
}

static void a_cancel_serves_the_next_in_the_queue(void **state) {
    (void)state;
    for_each_client(try_cancel_for_next);
}

static void spin(uint64_t ns) {
    for (uint64_t end_ns = clock_now_ns() + ns; clock_now_ns() < end_ns;) {
    }
}

static void try_races(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    uint64_t random = 1 + flags + kind;
    unsigned served = 0, cancelled = 0;
    struct puppet holder;

    have_all(&holder, kind, flags);
    for (unsigned i = 0; i < RACES; i++) {
        struct gpupool_buffer buffer;
        uint64_t request = begin(client, kind, LARGE, GPUPOOL_FOREVER);
        if (test_random(&random) % 4 != 0)
            wait_for_waiters(client, kind, 1);
        puppet_send(&holder, &(struct puppet_command){.verb = PUPPET_RELEASE, .slot = 0});
        spin(test_random(&random) % (300 * NS_PER_US));
        MUST(gpupool_request_cancel(client, request));
        PUPPET_MUST(&holder, puppet_receive(&holder));
        int r = gpupool_acquire_end(client, request, &buffer);
        assert_true(r == 0 || r == GPUPOOL_E_CANCELLED);
        served += r == 0;
        cancelled += r != 0;
        if (r == 0)
            MUST(gpupool_release(client, &buffer, stream_of(kind)));
        if ((flags & GPUPOOL_OPEN_NO_CACHE) == 0)
            MUST(gpupool_trim(client, NULL));
        puppet_send_acquire(&holder, 0, kind, LARGE, GPUPOOL_FOREVER);
        WAIT_UNTIL(dispatch(client) && puppet_has_answered(&holder));
        PUPPET_MUST(&holder, puppet_receive(&holder));
    }
    print_message("%u served, %u cancelled\n", served, cancelled);
    assert_int_equal(daemon_sum(&daemon_, "waiters"), 0);
    puppet_quit(&holder);
    gpupool_close(client);
    expect_nothing_left();
}

static void a_cancel_that_meets_the_grant_leaks_nothing(void **state) {
    (void)state;
    for_each_client(try_races);
}

/* Threads that begin, cancel and end requests of one client, each its own and those of others. */
struct storm {
    struct gpupool_client *client;
    uint32_t pool;
    void *stream;
    _Atomic uint64_t requests[STORMERS];
    atomic_uint failures, served, cancelled;
};

struct stormer {
    struct storm *storm;
    unsigned number;
};

static void *play_storm(void *argument) {
    const struct stormer *stormer = argument;
    struct storm *storm = stormer->storm;
    struct gpupool_client *client = storm->client;
    uint64_t random = 100 + stormer->number, request;
    struct gpupool_buffer buffer;

    for (unsigned i = 0; i < RACES; i++) {
        uint64_t size_bytes =
            1 + test_random(&random) % (test_random(&random) % 2 == 0 ? STORM_SIZE : 64 * KIB);
        int r = gpupool_acquire_begin(client, storm->pool, size_bytes, storm->stream,
                                      test_random(&random) % 3 == 0 ? NS_PER_MS : TEST_WAIT_NS, 0, &request);
        if (r < 0) {
            storm->failures += r != GPUPOOL_E_EXHAUSTED;
            continue;
        }
        storm->requests[stormer->number] = request;
        for (unsigned n = test_random(&random) % 3; n > 0; n--) {
            spin(test_random(&random) % (50 * NS_PER_US));
            r = gpupool_request_cancel(client, storm->requests[test_random(&random) % STORMERS]);
            storm->failures += r != 0 && r != GPUPOOL_E_STALE;
        }
        if (test_random(&random) % 8 == 0)
            storm->failures += gpupool_request_fd(client, request) < 0;
        r = gpupool_acquire_end(client, request, &buffer);
        storm->failures += r != 0 && r != GPUPOOL_E_CANCELLED && r != GPUPOOL_E_EXHAUSTED;
        storm->served += r == 0;
        storm->cancelled += r == GPUPOOL_E_CANCELLED;
        if (r == 0)
            storm->failures += gpupool_release(client, &buffer, storm->stream) != 0;
    }
    return NULL;
}

static void try_storm(unsigned kind, uint32_t flags) {
    struct storm storm = {.client = open_client(&daemon_, flags, GPUPOOL_FOREVER), .stream = stream_of(kind)};
    struct stormer stormers[STORMERS];
    pthread_t threads[STORMERS];
    struct puppet holder;

    open_holder(&holder, &daemon_, flags);
    PUPPET_MUST(&holder, puppet_acquire(&holder, 0, kind, LARGE, GPUPOOL_FOREVER, 0)); /* two fit beside it */
    storm.pool = pool_of(storm.client, kind);
    for (unsigned i = 0; i < STORMERS; i++) {
        stormers[i] = (struct stormer){&storm, i};
        assert_int_equal(pthread_create(&threads[i], NULL, play_storm, &stormers[i]), 0);
    }
    for (unsigned i = 0; i < STORMERS; i++) /* the daemon may want segments closed, which a loop does */
        WAIT_UNTIL(dispatch(storm.client) && pthread_tryjoin_np(threads[i], NULL) == 0);
    print_message("%u served, %u cancelled\n", storm.served, storm.cancelled);
    assert_int_equal(storm.failures, 0);
    assert_true(storm.served > 0);
    puppet_quit(&holder);
    gpupool_close(storm.client);
    expect_nothing_left();
}

static void threads_cancel_each_others_requests(void **state) {
    (void)state;
    for_each_client(try_storm);
}

/* --- other ends --- */

static void try_timeout(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    struct gpupool_buffer buffer;
    struct puppet holder;

    have_all(&holder, kind, flags);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t request = begin(client, kind, LARGE, i == 0 ? GPUPOOL_NOW : 20 * NS_PER_MS);
        await(client, request);
        MUST_BE(gpupool_acquire_end(client, request, &buffer), GPUPOOL_E_EXHAUSTED);
        assert_non_null(strstr(gpupool_error_text(), "64 MiB")); /* the limit */
        assert_int_equal(waiters(kind), 0);
    }
    puppet_quit(&holder);
    close_cached(client);
}

static void a_deadline_completes_a_request(void **state) {
    (void)state;
    for_each_client(try_timeout);
}

static void what_is_wrong_is_said_at_once(void **state) {
    (void)state;
    struct gpupool_client *client = open_cached();
    struct gpupool_client *loopless =
        open_client(&daemon_, GPUPOOL_OPEN_NO_THREAD | GPUPOOL_OPEN_NO_CACHE, GPUPOOL_FOREVER);
    uint32_t pool = pool_of(client, GPUPOOL_POOL_HOST);
    void *const stream = GPUPOOL_NO_STREAM;
    struct gpupool_buffer buffer;
    uint64_t request = 77;

    MUST_BE(gpupool_acquire_begin(NULL, pool, 1, stream, 0, 0, &request), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_acquire_begin(client, pool, 1, stream, 0, 0, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_acquire_begin(client, pool, 0, stream, 0, 0, &request), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_acquire_begin(client, pool, 1, stream, 0, 4, &request), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_acquire_begin(client, pool, 1, GPUPOOL_OWN_STREAM, 0, 0, &request), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_acquire_begin(client, 99, 1, stream, 0, 0, &request), GPUPOOL_E_NO_POOL);
    MUST_BE(gpupool_acquire_begin(client, pool, UINT64_MAX, stream, 0, 0, &request), GPUPOOL_E_TOO_LARGE);
    MUST_BE(gpupool_acquire_begin(loopless, pool, 1, stream, 0, 0, &request), GPUPOOL_E_INVALID);
    assert_int_equal(request, 77);
    MUST(gpupool_acquire_begin(client, pool, (POOL_MIB + 1) * MIB, stream, GPUPOOL_FOREVER, 0, &request));
    MUST_BE(gpupool_acquire_end(client, request, &buffer), GPUPOOL_E_TOO_LARGE); /* the daemon knows that */

    MUST(gpupool_acquire_begin(client, pool, 1, stream, GPUPOOL_FOREVER, 0, &request));
    MUST_BE(gpupool_acquire_end(client, request, NULL), GPUPOOL_E_INVALID); /* it is open still */
    MUST_BE(gpupool_acquire_end(NULL, request, &buffer), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_acquire_end(loopless, request, &buffer), GPUPOOL_E_STALE);
    MUST_BE(gpupool_request_fd(NULL, request), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_request_cancel(NULL, request), GPUPOOL_E_INVALID);
    end_use(client, GPUPOOL_POOL_HOST, request, 9);
    static const uint64_t wrong[] = {0, 1, UINT32_MAX, UINT64_MAX, UINT64_C(1) << 32};
    for (unsigned i = 0; i <= sizeof wrong / sizeof *wrong; i++) {
        uint64_t number = i == 0 ? request : wrong[i - 1];
        MUST_BE(gpupool_acquire_end(client, number, &buffer), GPUPOOL_E_STALE);
        MUST_BE(gpupool_request_fd(client, number), GPUPOOL_E_STALE);
        MUST_BE(gpupool_request_cancel(client, number), GPUPOOL_E_STALE);
    }
    gpupool_close(loopless);
    close_cached(client);
}

static void a_number_is_not_used_again(void **state) {
    (void)state;
    struct gpupool_client *client = open_cached();
    uint64_t first = begin(client, GPUPOOL_POOL_HOST, 4096, GPUPOOL_FOREVER);

    end_use(client, GPUPOOL_POOL_HOST, first, 1);
    for (unsigned i = 0; i < 100; i++) {
        uint64_t request = begin(client, GPUPOOL_POOL_HOST, 4096, GPUPOOL_FOREVER);
        MUST_BE(gpupool_request_cancel(client, first), GPUPOOL_E_STALE);
        end_use(client, GPUPOOL_POOL_HOST, request, i + 1);
    }
    close_cached(client);
}

static void try_close(unsigned kind, uint32_t flags) {
    unsigned descriptors = count_entries("/proc/self/fd");
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    struct puppet holder;

    open_holder(&holder, &daemon_, flags);
    PUPPET_MUST(&holder, puppet_acquire(&holder, 0, kind, LARGE, GPUPOOL_FOREVER, 0));
    uint64_t complete = begin(client, kind, MIB, GPUPOOL_FOREVER);
    await(client, complete);
    for (unsigned i = 0; i < 20; i++)
        (void)begin(client, kind, LARGE, GPUPOOL_FOREVER);
    wait_for_waiters(client, kind, 20);
    gpupool_close(client);
    assert_int_equal(waiters(kind), 0);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), LARGE); /* the puppet's */
    assert_int_equal(daemon_sum(&daemon_, "quarantined_bytes"), 0);
    puppet_quit(&holder);
    if (test_is_simulated())
        WAIT_UNTIL(count_entries("/proc/self/fd") <= descriptors + 3); /* of the driver, for the process */
    expect_nothing_left();
}

static void a_close_cancels_what_is_open(void **state) {
    (void)state;
    for_each_client(try_close);
}

static void a_daemon_that_dies_completes_requests(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    char text[TEST_CONFIG_SIZE];

    (void)state;
    for (unsigned i = 0; i < count; i++)
        for (unsigned f = 0; f < sizeof client_flags / sizeof *client_flags; f++) {
            struct test_daemon daemon;
            struct puppet holder;
            struct gpupool_buffer buffer;
            uint64_t requests[3];

            daemon_start(&daemon, &(struct daemon_options){.config = test_config(text, POOL_MIB, POOL_MIB)});
            struct gpupool_client *client = open_client(&daemon, client_flags[f], GPUPOOL_FOREVER);
            open_holder(&holder, &daemon, client_flags[f]);
            PUPPET_MUST(&holder, puppet_acquire(&holder, 0, kinds[i], LARGE, GPUPOOL_FOREVER, 0));
            for (unsigned n = 0; n < 3; n++)
                requests[n] = begin(client, kinds[i], LARGE, GPUPOOL_FOREVER);
            WAIT_UNTIL(dispatch(client) &&
                       daemon_pool(&daemon, puppet_kind_name(kinds[i]), 0, "waiters") == 3);
            MUST(gpupool_request_cancel(client, requests[2]));
            daemon_crash(&daemon);
            for (unsigned n = 0; n < 2; n++) {
                await(client, requests[n]);
                MUST_BE(gpupool_acquire_end(client, requests[n], &buffer), GPUPOOL_E_DISCONNECTED);
            }
            MUST_BE(gpupool_acquire_end(client, requests[2], &buffer), GPUPOOL_E_CANCELLED);
            uint64_t after = 0;
            int r = gpupool_acquire_begin(client, 1, LARGE, stream_of(kinds[i]), GPUPOOL_FOREVER, 0, &after);
            if (r == 0)
                r = gpupool_acquire_end(client, after, &buffer);
            assert_true(r == GPUPOOL_E_DISCONNECTED || r == GPUPOOL_E_NO_GPU);
            gpupool_close(client);
            puppet_kill(&holder);
            daemon_remove(&daemon);
        }
}

static void try_fork(unsigned kind, uint32_t flags) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    struct gpupool_buffer buffer;
    struct puppet holder;
    int status;

    have_all(&holder, kind, flags);
    uint64_t request = begin(client, kind, LARGE, GPUPOOL_FOREVER);
    wait_for_waiters(client, kind, 1);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        bool refused = gpupool_acquire_end(client, request, &buffer) == GPUPOOL_E_FORKED &&
                       gpupool_request_cancel(client, request) == GPUPOOL_E_FORKED &&
                       gpupool_request_fd(client, request) == GPUPOOL_E_FORKED &&
                       gpupool_acquire_begin(client, 1, 1, NULL, 0, 0, &request) == GPUPOOL_E_FORKED;
        gpupool_close(client);
        _exit(!refused);
    }
    TEST_REAP(pid, &status);
    assert_int_equal(status, 0);
    assert_int_equal(waiters(kind), 1);
    PUPPET_MUST(&holder, puppet_release(&holder, 0));
    await(client, request);
    end_use(client, kind, request, 10);
    puppet_quit(&holder);
    close_cached(client);
}

static void a_forked_child_has_no_requests(void **state) {
    (void)state;
    if (TEST_IS_THREAD_SANITIZED)
        skip();
    for_each_client(try_fork);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_at_hand_completes_a_request_at_once),
        cmocka_unit_test(a_pool_grows_for_a_request),
        cmocka_unit_test(a_request_gets_what_another_process_releases),
        cmocka_unit_test(many_requests_complete_in_one_epoll),
        cmocka_unit_test(own_idle_memory_goes_back_first),
        cmocka_unit_test(a_release_of_the_own_process_serves_a_request),
        cmocka_unit_test(the_end_zeroes_what_was_to_be_zero),
        cmocka_unit_test(a_cancelled_request_leaves_the_queue_at_once),
        cmocka_unit_test(a_cancel_of_a_complete_request_changes_nothing),
        cmocka_unit_test(another_thread_cancels_what_one_waits_for),
        cmocka_unit_test(a_cancel_serves_the_next_in_the_queue),
        cmocka_unit_test(a_cancel_that_meets_the_grant_leaks_nothing),
        cmocka_unit_test(threads_cancel_each_others_requests),
        cmocka_unit_test(a_deadline_completes_a_request),
        cmocka_unit_test(what_is_wrong_is_said_at_once),
        cmocka_unit_test(a_number_is_not_used_again),
        cmocka_unit_test(a_close_cancels_what_is_open),
        cmocka_unit_test(a_daemon_that_dies_completes_requests),
        cmocka_unit_test(a_forked_child_has_no_requests),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
