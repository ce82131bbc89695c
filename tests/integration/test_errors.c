/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The number and the text of a thread's last error: each call that can fail sets both, and a call that did
 * not fail leaves neither.
 */
#include <gpupool/pair.h>
#include <gpupool/staging.h>
#include <gpupool/synced.h>

#include <fcntl.h>

#include "gpu/sim/sim.h"
#include "tests/integration/cache_fixture.h"

/* Leaves an error for the next call to take away. */
static void fail_before(void) {
    assert_int_equal(gpupool_open(NULL, NULL), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_INVALID);
    assert_string_not_equal(gpupool_error_text(), "");
}

static void expect_none(const char *call) {
    if (gpupool_error_number() != 0 || gpupool_error_text()[0] != '\0')
        fail_msg("%s did not fail, and leaves %s: %s", call, gpupool_error_name(gpupool_error_number()),
                 gpupool_error_text());
}

/* A call that does not fail, after one that did. */
#define CLEAN(call)                                                                                          \
    do {                                                                                                     \
        fail_before();                                                                                       \
        MUST(call);                                                                                          \
        expect_none(#call);                                                                                  \
    } while (0)

/* A call that fails says the same by its result and by the number, and has a text. */
#define FAILS(call, wanted)                                                                                  \
    do {                                                                                                     \
        MUST_BE(call, wanted);                                                                               \
        assert_int_equal(gpupool_error_number(), wanted);                                                    \
        assert_string_not_equal(gpupool_error_text(), "");                                                   \
    } while (0)

static void try_buffers(struct gpupool_client *client, uint32_t pool) {
    struct gpupool_buffer buffer, other;
    struct gpupool_buffer_info info;
    struct gpupool_client *owner;
    struct gpupool_token token;
    uint64_t bytes;

    CLEAN(gpupool_acquire(client, pool, 4096, NULL, GPUPOOL_FOREVER, 0, &buffer));
    CLEAN(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    CLEAN(gpupool_acquire(client, pool, 8192, NULL, GPUPOOL_FOREVER, GPUPOOL_ZERO, &buffer));
    CLEAN(gpupool_shrink(client, &buffer, 4096, NULL));
    CLEAN(gpupool_query(client, &buffer, &info));
    CLEAN(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token));
    CLEAN(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &other));
    CLEAN(gpupool_release(client, &other, GPUPOOL_NO_STREAM));
    CLEAN(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    FAILS(gpupool_release(client, &buffer, NULL), GPUPOOL_E_STALE);
    FAILS(gpupool_acquire(client, pool, 0, NULL, GPUPOOL_NOW, 0, &buffer), GPUPOOL_E_INVALID);
    FAILS(gpupool_acquire(client, pool, UINT64_C(1) << 50, NULL, GPUPOOL_NOW, 0, &buffer),
          GPUPOOL_E_TOO_LARGE);
    CLEAN(gpupool_trim(client, &bytes));
    CLEAN(gpupool_prepare(client, pool, 4096));
    if (!client->cache.enabled) {
        fail_before();
        assert_null(gpupool_alloc(client, pool, 4096, NULL));
        assert_int_equal(gpupool_error_number(), GPUPOOL_E_INVALID);
        return;
    }
    for (unsigned i = 0; i < 3; i++) { /* the thread's cache serves the last ones, which set nothing */
        void *memory = gpupool_alloc(client, pool, 4096, NULL);
        assert_non_null(memory);
        CLEAN(gpupool_lookup(memory, &owner, &buffer));
        MUST(gpupool_free(memory, NULL));
        FAILS(gpupool_free(memory, NULL), GPUPOOL_E_STALE);
    }
    CLEAN(gpupool_free(NULL, NULL));
    assert_null(gpupool_alloc(client, pool, UINT64_C(1) << 50, NULL));
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_TOO_LARGE);
}

static void try_requests(struct gpupool_client *client, uint32_t pool) {
    struct gpupool_buffer buffer;
    uint64_t request;

    CLEAN(gpupool_acquire_begin(client, pool, 4096, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0, &request));
    fail_before();
    assert_true(gpupool_request_fd(client, request) >= 0);
    expect_none("gpupool_request_fd");
    CLEAN(gpupool_acquire_end(client, request, &buffer));
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    CLEAN(gpupool_acquire_begin(client, pool, 4096, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0, &request));
    CLEAN(gpupool_request_cancel(client, request));
    if (gpupool_acquire_end(client, request, &buffer) == 0)
        MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
}

static void try_streams(struct gpupool_client *client, uint32_t pool) {
    static char bytes[4096];
    struct gpupool_buffer buffer;
    void *stream;

    CLEAN(gpupool_stream_create(client, 0, &stream));
    MUST(gpupool_acquire(client, pool, sizeof bytes, stream, GPUPOOL_FOREVER, 0, &buffer));
    CLEAN(gpupool_set(client, 0, buffer.data, 1, sizeof bytes, stream));
    CLEAN(gpupool_set(client, 0, buffer.data, 1, 0, stream));
    CLEAN(gpupool_copy(client, 0, bytes, buffer.data, sizeof bytes, stream));
    CLEAN(gpupool_copy(client, 0, bytes, buffer.data, 0, stream));
    CLEAN(gpupool_stream_synchronize(client, 0, stream));
    CLEAN(gpupool_upload(client, 0, buffer.data, bytes, sizeof bytes, stream));
    CLEAN(gpupool_download(client, 0, bytes, buffer.data, sizeof bytes, stream));
    CLEAN(gpupool_download(client, 0, bytes, buffer.data, 0, stream));
    int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    CLEAN(gpupool_upload_file(client, 0, buffer.data, fd, 0, sizeof bytes, stream));
    close(fd);
    FAILS(gpupool_upload(client, 0, NULL, bytes, sizeof bytes, stream), GPUPOOL_E_INVALID);
    MUST(gpupool_release(client, &buffer, stream));
    CLEAN(gpupool_stream_destroy(client, 0, stream));
    FAILS(gpupool_stream_synchronize(client, 1000, NULL), GPUPOOL_E_INVALID);
}

static void try_pairs(struct gpupool_client *client) {
    struct gpupool_pair pair;
    char own[64];

    CLEAN(gpupool_pair_init(&pair, client, 0, 0));
    CLEAN(gpupool_pair_grow_host(&pair, 4096, NULL));
    CLEAN(gpupool_pair_grow_device(&pair, 4096, NULL));
    CLEAN(gpupool_pair_copy_to_device(&pair, 4096, NULL));
    CLEAN(gpupool_pair_copy_to_host(&pair, 4096, NULL));
    MUST(gpupool_stream_synchronize(client, 0, NULL));
    CLEAN(gpupool_pair_adopt_host(&pair, own, sizeof own, NULL));
    CLEAN(gpupool_pair_clear(&pair, NULL));
    CLEAN(gpupool_pair_clear(&pair, NULL));
    FAILS(gpupool_pair_copy_to_host(&pair, 1, NULL), GPUPOOL_E_INVALID);
}

static void try_arrays(struct gpupool_client *client) {
    struct gpupool_synced_info info;
    struct gpupool_synced *array;
    char own[64];
    void *memory;

    CLEAN(gpupool_synced_create(client, 0, 4096, &array));
    CLEAN(gpupool_synced_host(array, GPUPOOL_READ, &memory, NULL));
    CLEAN(gpupool_synced_device(array, GPUPOOL_READ, &memory, NULL));
    MUST(gpupool_synced_device(array, GPUPOOL_WRITE, &memory, NULL)); /* in place */
    CLEAN(gpupool_synced_pull(array, NULL));
    CLEAN(gpupool_synced_push(array, NULL));
    CLEAN(gpupool_synced_settle(array));
    CLEAN(gpupool_synced_query(array, &info));
    CLEAN(gpupool_synced_move(array, 0, NULL));
    MUST(gpupool_synced_resize(array, sizeof own)); /* which is too quick for that */
    CLEAN(gpupool_synced_adopt_host(array, own, NULL));
    FAILS(gpupool_synced_device(array, GPUPOOL_READ, NULL, NULL), GPUPOOL_E_INVALID);
    CLEAN(gpupool_synced_destroy(array, NULL));
    CLEAN(gpupool_synced_destroy(NULL, NULL));
}

static void a_call_that_does_not_fail_leaves_no_error(void **state) {
    static const uint32_t flags[] = {0, GPUPOOL_OPEN_NO_CACHE, GPUPOOL_OPEN_NO_THREAD};
    struct gpupool_pool pools[8];
    size_t count;
    uint32_t pool;

    (void)state;
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
        fail_before();
        struct gpupool_client *client = open_client(&daemon_, flags[i], 0);
        expect_none("gpupool_open");
        CLEAN(gpupool_pools(client, pools, 8, &count));
        CLEAN(gpupool_host_pool(client, -1, &pool));
        try_buffers(client, pool);
        try_requests(client, pool);
        if (test_has_device()) {
            CLEAN(gpupool_device_pool(client, 0, &pool));
            try_buffers(client, pool);
            try_streams(client, pool);
            try_pairs(client);
            try_arrays(client);
        }
        if ((flags[i] & GPUPOOL_OPEN_NO_THREAD) != 0) {
            fail_before();
            assert_true(gpupool_fd(client) >= 0);
            expect_none("gpupool_fd");
            CLEAN(gpupool_dispatch(client));
        }
        /* a call that cannot fail leaves what there is */
        FAILS(gpupool_host_pool(client, -2, &pool), GPUPOOL_E_INVALID);
        gpupool_close(client);
        assert_int_equal(gpupool_error_number(), GPUPOOL_E_INVALID);
        assert_non_null(strstr(gpupool_error_text(), "gpupool_host_pool"));
    }
}

/* An attempt that fails, before another way succeeds, is no failure of the call. */
static void a_way_that_failed_before_another_one_succeeded_leaves_no_error(void **state) {
    struct gpupool_buffer buffer;
    uint32_t pool;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    struct gpupool_client *client = open_cached();
    MUST(gpupool_device_pool(client, 0, &pool));
    MUST(gpupool_acquire(client, pool, 4096, NULL, GPUPOOL_FOREVER, 0, &buffer));
    /* The words of fences cannot be registered: each fence is a wait from then on. */
    assert_int_equal(gpu_sim_fail("host_register", 1, GPU_ERROR_UNKNOWN), 0);
    CLEAN(gpupool_release(client, &buffer, GPUPOOL_PER_THREAD));
    assert_true(gpu_sim_failed());
    gpu_sim_fail("any", 0, 0);
    close_cached(client);
}

/* Typed accesses return NULL, and the number tells why. */
static void a_typed_access_that_returns_null_tells_why(void **state) {
    struct gpupool_pair pair;

    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_cached();
    MUST(gpupool_pair_init(&pair, client, 0, 0));
    /* nothing was asked for, and there is nothing: that is no failure */
    fail_before();
    assert_null(GPUPOOL_PAIR_HOST(&pair, float, 0, NULL));
    expect_none("0 elements of the host side");
    fail_before();
    assert_null(GPUPOOL_PAIR_DEVICE(&pair, float, 0, NULL));
    expect_none("0 elements of the device side");
    /* more than can be counted, more than there can be, and more than there is room for */
    assert_null(GPUPOOL_PAIR_HOST(&pair, float, UINT64_MAX / 2, NULL));
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_INVALID);
    assert_null(GPUPOOL_PAIR_DEVICE(&pair, char, UINT64_MAX / 2, NULL));
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_TOO_LARGE);
    assert_non_null(strstr(gpupool_error_text(), "the device side of a pair"));
    if (test_is_simulated()) {
        assert_int_equal(gpu_sim_fail(test_device_call("ipc_open"), 1, GPU_ERROR_MAP_BUFFER_OBJECT_FAILED),
                         0);
        assert_null(GPUPOOL_PAIR_DEVICE(&pair, char, 4096, NULL));
        assert_int_equal(gpupool_error_number(), GPUPOOL_E_DRIVER);
        gpu_sim_fail("any", 0, 0);
    }
    assert_non_null(GPUPOOL_PAIR_DEVICE(&pair, char, 4096, NULL));
    expect_none("growth");
    MUST(gpupool_pair_clear(&pair, NULL));
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_does_not_fail_leaves_no_error),
        cmocka_unit_test(a_way_that_failed_before_another_one_succeeded_leaves_no_error),
        cmocka_unit_test(a_typed_access_that_returns_null_tells_why),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
