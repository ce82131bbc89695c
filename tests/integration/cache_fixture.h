/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_CACHE_FIXTURE_H
#define TESTS_INTEGRATION_CACHE_FIXTURE_H
/*
 * The fixture of the tests of a client's cache: a client with a cache in the test's own process, against a
 * real daemon that lives as long as the program. Puppets are the other processes. The daemon's counters stand
 * still while the client answers requests by itself. To be included once, by a test program.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/api/client.h"
#include "tests/integration/must.h"
#include "tests/integration/puppet.h"
#include "tests/integration/sanitized.h"

#ifndef POOL_MIB
#define POOL_MIB 64u
#endif

#include "tests/integration/daemon_fixture.h"

static inline struct gpupool_client *open_client(const struct test_daemon *daemon, uint32_t flags,
                                                 uint64_t decay_ns) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;

    options.socket = daemon->socket;
    options.flags = flags;
    options.decay_ns = decay_ns;
    MUST(gpupool_open(&options, &client));
    return client;
}

/* One that gives nothing back by itself. */
static inline struct gpupool_client *open_cached(void) {
    return open_client(&daemon_, 0, GPUPOOL_FOREVER);
}

/* Opens such a client, and a stream on device 0, which the library destroys with the client. */
static inline struct gpupool_client *open_cached_with_stream(void **ret_stream) {
    struct gpupool_client *client = open_cached();
    MUST(gpupool_stream_create(client, 0, ret_stream));
    return client;
}

/* Closes, after which nothing of it is left in the daemon. */
static inline void close_cached(struct gpupool_client *client) {
    gpupool_close(client);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    assert_int_equal(daemon_sum(&daemon_, "leases"), 0);
    assert_int_equal(daemon_sum(&daemon_, "quarantined_bytes"), 0);
    assert_int_equal(daemon_sessions(&daemon_, "active"), 0);
}

static inline uint32_t pool_of(struct gpupool_client *client, unsigned kind) {
    uint32_t pool = 0;
    MUST(kind == GPUPOOL_POOL_HOST ? gpupool_host_pool(client, -1, &pool)
                                   : gpupool_device_pool(client, 0, &pool));
    return pool;
}

static inline struct gpupool_buffer acquire(struct gpupool_client *client, unsigned kind, uint64_t size_bytes,
                                            void *stream) {
    struct gpupool_buffer buffer;
    MUST(gpupool_acquire(client, pool_of(client, kind), size_bytes, stream, GPUPOOL_FOREVER, 0, &buffer));
    assert_true(buffer.capacity_bytes >= size_bytes);
    assert_int_equal((uintptr_t)buffer.data % 512, 0);
    return buffer;
}

/* The stream that a buffer is released on here: nothing uses the buffer on the GPU any more, or the stream
 * that took it orders the next use. */
static inline void *stream_of(unsigned kind) {
    return kind == GPUPOOL_POOL_HOST ? GPUPOOL_NO_STREAM : NULL;
}

static inline struct stream_heap *stream_heap_of(const struct gpupool_buffer *buffer) {
    return cache_piece(buffer)->stream_heap;
}

/* Bytes that the stream heap keeps behind fences. */
static inline uint64_t deferred_in(struct stream_heap *stream_heap) {
    pthread_mutex_lock(&stream_heap->lock);
    uint64_t bytes = stream_heap->deferred_bytes;
    pthread_mutex_unlock(&stream_heap->lock);
    return bytes;
}

static inline bool stream_heaps_are_valid(struct gpupool_client *client) {
    bool valid = true;
    pthread_mutex_lock(&client->cache.stream_heaps_lock);
    list_for_each_entry(struct stream_heap, stream_heap, &client->cache.stream_heaps, link) {
        valid = stream_heap_is_valid(stream_heap) && valid;
    }
    pthread_mutex_unlock(&client->cache.stream_heaps_lock);
    return valid;
}

static inline bool pools_are_empty(void) {
    cJSON_Delete(daemon_ask(&daemon_, "{\"command\":\"trim\"}"));
    return daemon_sum(&daemon_, "reserved_bytes") == 0;
}

/* Waits until no pool is short any more: in a shortage clients keep nothing. The client is told of the pools
 * that it has leases of. */
static inline void wait_until_nothing_is_short(struct gpupool_client *client) {
    WAIT_UNTIL(atomic_load(&client->session.page.memory->shortage.pools) == 0);
}

/* Waits until no pool is short: a shortage that an earlier test made lasts a while beyond that test, and what
 * clients keep is what most tests look at. */
static inline void wait_until_shortages_are_over(void) {
    struct gpupool_client *client = open_cached();
    for (unsigned kind = GPUPOOL_POOL_DEVICE; kind <= GPUPOOL_POOL_HOST; kind++) {
        if (kind == GPUPOOL_POOL_DEVICE && !test_has_device())
            continue;
        struct gpupool_buffer buffer;
        MUST(
            gpupool_acquire(client, pool_of(client, kind), 512, GPUPOOL_NO_STREAM, TEST_WAIT_NS, 0, &buffer));
        wait_until_nothing_is_short(client); /* it is told of them with its first lease */
        MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    }
    gpupool_close(client);
}

/* Segments that no client has mapped go, so that a block can be as large as the pool; also segments that are
 * still being made for a request that did not wait for them. */
static inline void empty_the_pools(void) {
    wait_until_shortages_are_over();
    WAIT_UNTIL(pools_are_empty());
}

/* Each test begins without a shortage. */
static inline int begin_cache_test(void **state) {
    (void)state;
    wait_until_shortages_are_over();
    return 0;
}

/* The body of main(). */
static inline int cache_tests_run(int argc, char **argv, const struct CMUnitTest *tests, size_t count) {
    int status = puppet_main(argc, argv, NULL);
    if (status >= 0)
        return status;
    setenv("GPUPOOL_SIM_LATENCY", "0", 1); /* of this process's driver */
    struct CMUnitTest *prepared = calloc(count, sizeof *prepared);
    if (prepared == NULL)
        return 1;
    for (size_t i = 0; i < count; i++) {
        prepared[i] = tests[i];
        prepared[i].setup_func = begin_cache_test;
    }
    status = test_finish(_cmocka_run_group_tests("cache", prepared, count, start_daemon, stop_daemon));
    free(prepared);
    return status;
}

#endif
