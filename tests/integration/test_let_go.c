/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that is gone: what the client had mapped of it goes as soon as no buffer lies there, and the
 * buffers that live are as good as before.
 */
#include <poll.h>
#include <stdio.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define DECAY_NS (20 * NS_PER_MS)
/* As large as a segment of the pools here, so that two do not lie in one. */
#define LARGE (8 * MIB)

static void start(void) {
    daemon_start(&daemon_, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB)});
}

static void end(void) {
    daemon_remove(&daemon_);
}

/* Segments that the process has mapped, or has a handle of. */
static unsigned segments_of(struct gpupool_client *client) {
    struct segments *segments = &client->session.segments;
    unsigned count = 0;

    pthread_mutex_lock(&segments->lock);
    for (unsigned i = 0; i < SEGMENT_BUCKETS; i++)
        list_for_each_entry(const struct segment, segment, &segments->buckets[i], link) {
            count += segment->memory != NULL || segment->has_vmm_handle;
        }
    pthread_mutex_unlock(&segments->lock);
    return count;
}

/* Mappings of host memory that the kernel has of this process. */
static unsigned host_mappings(void) {
    _cleanup_(fclosep) FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned count = 0;

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "memfd:gpupool ") != NULL;
    return count;
}

static struct gpupool_client *open_one(uint32_t flags) {
    return open_client(&daemon_, flags, DECAY_NS);
}

/* For a client without a thread. */
static void dispatch(struct gpupool_client *client) {
    if (client->has_no_thread && client->cache.enabled)
        (void)gpupool_dispatch(client);
}

static bool has_segments(struct gpupool_client *client, unsigned count) {
    dispatch(client);
    return segments_of(client) == count;
}

static void expect_bytes(const struct gpupool_buffer *buffer, int byte) {
    for (uint64_t i = 0; i < buffer->size_bytes; i += 4096)
        assert_int_equal(((const uint8_t *)buffer->data)[i], byte);
}

/* Idle memory in one segment, a buffer that lives in another, of each kind. */
static void what_is_idle_goes_and_what_lives_stays(uint32_t flags) {
    bool has_device = test_has_device();
    start();
    struct gpupool_client *client = open_one(flags);
    struct gpupool_buffer host = acquire(client, GPUPOOL_POOL_HOST, LARGE, GPUPOOL_NO_STREAM), device = {0};
    struct gpupool_buffer idle = acquire(client, GPUPOOL_POOL_HOST, LARGE, GPUPOOL_NO_STREAM);
    unsigned own = host_mappings();

    memset(host.data, 7, LARGE);
    if (has_device) {
        struct gpupool_buffer other = acquire(client, GPUPOOL_POOL_DEVICE, LARGE, NULL);
        device = acquire(client, GPUPOOL_POOL_DEVICE, LARGE, NULL);
        MUST(gpupool_set(client, 0, device.data, 9, LARGE, NULL));
        MUST(gpupool_stream_synchronize(client, 0, NULL));
        MUST(gpupool_release(client, &other, NULL));
    }
    MUST(gpupool_release(client, &idle, GPUPOOL_NO_STREAM));
    unsigned before = segments_of(client);
    daemon_crash(&daemon_);
    /* One segment after another: the device's may go first. */
    WAIT_UNTIL((dispatch(client), gpupool_trim(client, NULL), segments_of(client)) < before);
    WAIT_UNTIL(
        (dispatch(client), gpupool_trim(client, NULL), test_host_exports_vmm() || host_mappings() < own));
    expect_bytes(&host, 7);
    if (has_device) {
        MUST(gpupool_copy(client, 0, host.data, device.data, LARGE, NULL));
        MUST(gpupool_stream_synchronize(client, 0, NULL));
        expect_bytes(&host, 9);
        MUST(gpupool_release(client, &device, NULL));
    }
    MUST(gpupool_release(client, &host, GPUPOOL_NO_STREAM));
    WAIT_UNTIL((gpupool_trim(client, NULL), has_segments(client, 0)));
    assert_int_equal(host_mappings(), 0);
    gpupool_close(client);
    end();
}

static void a_cache_lets_go(void **state) {
    (void)state;
    what_is_idle_goes_and_what_lives_stays(0);
}

static void a_client_without_a_thread_lets_go(void **state) {
    (void)state;
    what_is_idle_goes_and_what_lives_stays(GPUPOOL_OPEN_NO_THREAD);
}

static void a_client_without_a_cache_lets_go(void **state) {
    (void)state;
    what_is_idle_goes_and_what_lives_stays(GPUPOOL_OPEN_NO_CACHE);
}

/* No call is made: the purger sees the end of the connection; a loop is told of it. */
static void an_idle_process_lets_go(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        start();
        struct gpupool_client *client =
            open_client(&daemon_, i == 0 ? 0 : GPUPOOL_OPEN_NO_THREAD, GPUPOOL_FOREVER);
        struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, LARGE, GPUPOOL_NO_STREAM);
        MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
        daemon_crash(&daemon_);
        if (i == 1) {
            struct pollfd ready = {.fd = gpupool_fd(client), .events = POLLIN};
            assert_int_equal(poll(&ready, 1, (int)(TEST_WAIT_NS / NS_PER_MS)), 1);
            MUST(gpupool_dispatch(client));
            assert_int_equal(segments_of(client), 0);
            assert_int_equal(poll(&ready, 1, 0), 0); /* it is told once */
        }
        WAIT_UNTIL(segments_of(client) == 0);
        gpupool_close(client);
        end();
    }
}

/* Shared buffers are leases of their own, and may be rows; those that were attached lie apart. */
static void shared_memory_goes_with_its_last_buffer(void **state) {
    (void)state;
    for (unsigned kind = test_has_device() ? GPUPOOL_POOL_DEVICE : GPUPOOL_POOL_HOST;
         kind <= GPUPOOL_POOL_HOST; kind++) {
        start();
        struct gpupool_client *client = open_one(0), *reader = open_one(GPUPOOL_OPEN_NO_CACHE);
        struct gpupool_buffer small = acquire(client, kind, 64 * KIB, NULL);
        struct gpupool_buffer buffer = acquire(client, kind, 2 * LARGE, NULL), attached = {0};
        struct gpupool_token token;
        bool can_attach = kind == GPUPOOL_POOL_HOST || test_exports_vmm();

        MUST(gpupool_share(client, &small, GPUPOOL_NO_STREAM, &token));
        MUST(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token));
        if (can_attach)
            MUST(gpupool_attach(reader, &token, GPUPOOL_NO_STREAM, 0, &attached));
        daemon_crash(&daemon_);
        MUST(gpupool_release(client, &small, GPUPOOL_NO_STREAM));
        (void)gpupool_trim(client, NULL);
        (void)gpupool_trim(client, NULL);
        assert_true(segments_of(client) > 0);
        MUST(gpupool_set(client, 0, buffer.data, 3, buffer.size_bytes, NULL));
        MUST(gpupool_stream_synchronize(client, 0, NULL));
        struct gpupool_buffer copy = buffer;
        MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
        MUST_BE(gpupool_release(client, &copy, GPUPOOL_NO_STREAM), GPUPOOL_E_STALE);
        WAIT_UNTIL((gpupool_trim(client, NULL), has_segments(client, 0)));
        if (can_attach) {
            copy = attached;
            assert_true(segments_of(reader) > 0);
            MUST(gpupool_release(reader, &attached, GPUPOOL_NO_STREAM));
            assert_int_equal(segments_of(reader), 0);
            MUST_BE(gpupool_release(reader, &copy, GPUPOOL_NO_STREAM), GPUPOOL_E_STALE);
        }
        gpupool_close(reader);
        gpupool_close(client);
        end();
    }
}

static const struct gpu *real_gpu;
static unsigned n_synchronized;

static int count_and_synchronize(unsigned device, void *stream) {
    n_synchronized++;
    return real_gpu->stream_synchronize(device, stream);
}

/* All that its stream heap has is in use or in the thread's bins, so nothing shows in the heap. The driver may
 * give the stream's handle to another stream. */
static void a_stream_that_ends_with_memory_at_hand_is_waited_for(void **state) {
    static struct gpupool_buffer rest[1u << 15]; /* more than an extent has of them */
    struct gpu counting;
    unsigned n_rest = 0;
    void *stream;

    (void)state;
    if (!test_has_device())
        return;
    start();
    struct gpupool_client *client = open_client(&daemon_, 0, GPUPOOL_FOREVER);
    MUST(gpupool_stream_create(client, 0, &stream));
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, MIB, stream);
    daemon_crash(&daemon_);
    WAIT_UNTIL(!gpupool_is_connected(client));
    while (n_rest < ARRAY_LENGTH(rest) &&
           gpupool_acquire(client, buffer.pool, 512, stream, GPUPOOL_NOW, 0, &rest[n_rest]) == 0)
        n_rest++;
    assert_true(n_rest > 0 && n_rest < ARRAY_LENGTH(rest));
    MUST(gpupool_release(client, &buffer, stream));
    real_gpu = client->session.devices.gpu;
    counting = *real_gpu;
    counting.stream_synchronize = count_and_synchronize;
    client->session.devices.gpu = &counting;
    MUST(gpupool_stream_destroy(client, 0, stream));
    client->session.devices.gpu = real_gpu;
    assert_int_equal(n_synchronized, 1);
    gpupool_close(client);
    end();
}

/* The GPU has not done yet what was enqueued before the release. */
static void memory_stays_while_the_gpu_uses_it(void **state) {
    (void)state;
    if (!test_has_device())
        return;
    start();
    void *stream;
    struct gpupool_client *client = open_client(&daemon_, 0, DECAY_NS);
    struct gate gate;

    MUST(gpupool_stream_create(client, 0, &stream));
    gate_init(&gate, client);
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, LARGE, gate.stream);
    unsigned before = segments_of(client);
    gate_close(&gate);
    MUST(gpupool_set(client, 0, buffer.data, 1, LARGE, gate.stream));
    MUST(gpupool_release(client, &buffer, gate.stream));
    daemon_crash(&daemon_);
    for (unsigned i = 0; i < 3; i++) {
        (void)gpupool_trim(client, NULL);
        assert_int_equal(segments_of(client), before);
    }
    gate_open(&gate);
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    WAIT_UNTIL((gpupool_trim(client, NULL), segments_of(client)) < before);
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cache_lets_go),
        cmocka_unit_test(a_client_without_a_thread_lets_go),
        cmocka_unit_test(a_client_without_a_cache_lets_go),
        cmocka_unit_test(an_idle_process_lets_go),
        cmocka_unit_test(shared_memory_goes_with_its_last_buffer),
        cmocka_unit_test(a_stream_that_ends_with_memory_at_hand_is_waited_for),
        cmocka_unit_test(memory_stays_while_the_gpu_uses_it),
    };
    return test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
