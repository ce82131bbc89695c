/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that sleeping buffers are refused, buffers that cannot sleep, and sleep beside sharing. */
#include <sys/mman.h>

#include "gpupool/names.h"
#include "tests/integration/sleep_fixture.h"

#define SAYS(part) assert_non_null(strstr(gpupool_error_text(), (part)))

/* --- sleeping buffers --- */

static void calls_on_a_sleeping_buffer_say_what_to_do(void **state) {
    struct gpupool_buffer_info info;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    for (unsigned i = 0; i < KEEPS; i++) {
        struct gpupool_buffer buffer = acquire_sleeper(client, SLEEPER_BYTES);
        MUST(gpupool_sleep(client, &buffer, keeps[i], NULL));
        const struct gpupool_buffer before = buffer;
        const int results[] = {
            gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token),
            gpupool_send(client, &buffer, GPUPOOL_NO_STREAM, 1, UINT64_C(1000000000), &token),
            gpupool_send_held(client, &buffer, GPUPOOL_NO_STREAM, 1, UINT64_C(1000000000), &token),
            gpupool_publish(client, "asleep", &buffer, 1, GPUPOOL_NO_STREAM, NULL, NULL),
            gpupool_reuse(client, &buffer, NULL),
            gpupool_record_stream(client, &buffer, NULL),
            gpupool_query(client, &buffer, &info),
        };
        for (unsigned j = 0; j < sizeof results / sizeof *results; j++)
            assert_int_equal(results[j], GPUPOOL_E_INVALID);
        SAYS("gpupool_wake()");
        MUST_BE(gpupool_shrink(client, &buffer, MIB, NULL), GPUPOOL_E_INVALID);
        MUST(gpupool_sleep(client, &buffer, keeps[i], NULL));
        MUST_BE(gpupool_sleep(client, &buffer, keeps[(i + 1) % KEEPS], NULL), GPUPOOL_E_INVALID);
        SAYS("gpupool_wake()");
        assert_memory_equal(&buffer, &before, sizeof buffer);
        MUST(gpupool_wake(client, &buffer, NULL, GPUPOOL_NOW, 0));
        MUST(gpupool_wake(client, &buffer, NULL, GPUPOOL_NOW, 0)); /* it is awake */
        MUST(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token));
        MUST(gpupool_release(client, &buffer, NULL));
    }
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* The buffer has another lease, and the struct has its name. */
static void a_copy_of_the_struct_is_stale_after_a_wake(void **state) {
    struct gpupool_buffer_info info;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    for (unsigned i = 0; i < KEEPS; i++) {
        struct gpupool_buffer buffer = acquire_sleeper(client, SLEEPER_BYTES), copy = buffer;
        bool is_renamed = keeps[i] != GPUPOOL_KEEP_ON_GPU;
        MUST(gpupool_sleep(client, &buffer, keeps[i], NULL));
        MUST(gpupool_wake(client, &buffer, NULL, GPUPOOL_NOW, 0));
        assert_int_equal(copy.generation != buffer.generation, is_renamed);
        MUST(gpupool_query(client, &buffer, &info));
        assert_memory_equal(&info.buffer, &buffer, sizeof buffer);
        if (is_renamed)
            MUST_BE(gpupool_release(client, &copy, NULL), GPUPOOL_E_STALE);
        MUST(gpupool_release(client, &buffer, NULL));
    }
    gpupool_close(client);
    sleep_stop(&daemon);
}

static void a_stream_that_is_captured_is_refused(void **state) {
    struct test_daemon daemon;
    unsigned operations;
    void *stream;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    struct gpupool_buffer buffer = acquire_sleeper(client, SLEEPER_BYTES);
    MUST(gpupool_stream_create(client, 0, &stream));
    for (unsigned i = 0; i < KEEPS; i++) {
        assert_int_equal(gpu_sim_capture_begin(0, stream), 0);
        MUST_BE(gpupool_sleep(client, &buffer, keeps[i], stream), GPUPOOL_E_CAPTURING);
        assert_int_equal(gpu_sim_capture_end(0, stream, &operations), 0);
        assert_int_equal(operations, 0);
        assert_true(is_mapped(&buffer));
        MUST(gpupool_sleep(client, &buffer, keeps[i], stream));
        assert_int_equal(gpu_sim_capture_begin(0, stream), 0);
        if (keeps[i] != GPUPOOL_KEEP_ON_GPU)
            MUST_BE(gpupool_wake(client, &buffer, stream, GPUPOOL_NOW, 0), GPUPOOL_E_CAPTURING);
        assert_int_equal(gpu_sim_capture_end(0, stream, &operations), 0);
        assert_false(is_mapped(&buffer));
        MUST(gpupool_wake(client, &buffer, stream, GPUPOOL_NOW, 0));
    }
    MUST(gpupool_release(client, &buffer, stream));
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* --- work on the GPU --- */

/* Words that hold streams. */
struct held_stream {
    const struct gpu *gpu;
    uint64_t *word;
    void *stream;
};

static void hold(struct held_stream *held, const struct gpupool_buffer *buffer) {
    assert_int_equal(gpu_sim(NULL, &held->gpu), 0);
    held->word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(held->word != MAP_FAILED);
    assert_int_equal(held->gpu->host_register(held->word, 4096), 0);
    assert_int_equal(held->gpu->stream_create(0, &held->stream), 0);
    assert_int_equal(held->gpu->stream_wait64(0, held->stream, held->word, 1), 0);
    assert_int_equal(held->gpu->memory_set(0, buffer->data, 7, buffer->size_bytes, held->stream), 0);
}

static void let_go(struct held_stream *held) {
    __atomic_store_n(held->word, 1, __ATOMIC_RELEASE);
    assert_int_equal(held->gpu->stream_synchronize(0, held->stream), 0);
}

static void drop(struct held_stream *held) {
    assert_int_equal(held->gpu->stream_destroy(0, held->stream), 0);
    assert_int_equal(held->gpu->host_unregister(held->word), 0);
    munmap(held->word, 4096);
}

/* A sleep has this result, once there is host memory for the contents: a busy machine may not make it in the client's
 * time. */
static void expect_sleep(struct gpupool_client *client, struct gpupool_buffer *buffer, uint32_t keep,
                         void *stream, int result) {
    int r = GPUPOOL_E_EXHAUSTED;

    for (unsigned n = 0; n < 200 && r == GPUPOOL_E_EXHAUSTED; n++)
        r = gpupool_sleep(client, buffer, keep, stream);
    if (r != result)
        fail_msg("%s, not %s: %s", gpupool_error_name(r), gpupool_error_name(result), gpupool_error_text());
}

/* A sleep whose time is over changes nothing. An address that maps nothing would end the device. */
static void memory_that_the_gpu_uses_does_not_sleep(void **state) {
    struct held_stream held;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open_for(&daemon, 0, UINT64_C(50000000));
    for (unsigned is_recorded = 0; is_recorded < 2; is_recorded++)
        for (unsigned i = 0; i < KEEPS; i++) {
            struct gpupool_buffer buffer = acquire_sleeper(client, SLEEPER_BYTES);
            hold(&held, &buffer);
            if (is_recorded)
                MUST(gpupool_record_stream(client, &buffer, held.stream));
            void *stream = is_recorded ? NULL : held.stream;
            for (unsigned j = 0; j < 2; j++) {
                expect_sleep(client, &buffer, keeps[i], stream, GPUPOOL_E_TIMED_OUT);
                assert_true(is_mapped(&buffer));
            }
            let_go(&held);
            expect_sleep(client, &buffer, keeps[i], stream, 0);
            MUST(gpupool_wake(client, &buffer, stream, GPUPOOL_NOW, 0));
            MUST(gpupool_stream_synchronize(client, 0, stream));
            if (keeps[i] != GPUPOOL_KEEP_NOTHING)
                for (uint64_t at = 0; at < SLEEPER_BYTES; at += 4093)
                    assert_int_equal(((const char *)buffer.data)[at], 7);
            MUST(gpupool_release(client, &buffer, stream));
            drop(&held);
        }
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* The contents are about to be copied out when the time of the sleep is over. A release without a stream waits for
 * that copy all the same: an address that maps nothing would end the device. */
static void a_release_is_behind_a_copy_that_came_to_nothing(void **state) {
    struct held_stream held;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open_for(&daemon, 0, UINT64_C(50000000));
    struct gpupool_buffer buffer = acquire_sleeper(client, SLEEPER_BYTES);
    const void *memory = buffer.data;
    hold(&held, &buffer);
    assert_int_equal(held.gpu->stream_wait64(0, NULL, held.word, 1), 0);
    expect_sleep(client, &buffer, GPUPOOL_KEEP_IN_HOST, GPUPOOL_NO_STREAM, GPUPOOL_E_TIMED_OUT);
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    MUST(gpupool_trim(client, NULL));
    assert_true(is_readable(memory));
    let_go(&held);
    MUST(gpupool_stream_synchronize(client, 0, NULL));
    WAIT_UNTIL(gpupool_trim(client, NULL) == 0 && !is_readable(memory));
    buffer = acquire_sleeper(client, SLEEPER_BYTES);
    MUST(puppet_write_pattern(client, &buffer, 1, NULL)); /* the device works */
    MUST(gpupool_release(client, &buffer, NULL));
    drop(&held);
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* --- buffers that cannot sleep --- */

static void other_buffers_are_refused_with_advice(void **state) {
    struct gpupool_buffer host, plain, none;
    struct test_daemon daemon;
    uint32_t host_pool;
    uint64_t request;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
        struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
        uint32_t pool = device_pool(client);
        MUST(gpupool_host_pool(client, -1, &host_pool));
        MUST(gpupool_acquire(client, host_pool, MIB, NULL, GPUPOOL_FOREVER, 0, &host));
        MUST(gpupool_acquire(client, pool, MIB, NULL, GPUPOOL_FOREVER, 0, &plain));
        MUST_BE(gpupool_sleep(client, &host, GPUPOOL_KEEP_NOTHING, NULL), GPUPOOL_E_INVALID);
        SAYS("host memory cannot sleep");
        MUST_BE(gpupool_sleep(client, &plain, GPUPOOL_KEEP_NOTHING, NULL), GPUPOOL_E_INVALID);
        SAYS("GPUPOOL_CAN_SLEEP");
        MUST_BE(gpupool_wake(client, &plain, NULL, GPUPOOL_NOW, 0), GPUPOOL_E_INVALID);
        SAYS("GPUPOOL_CAN_SLEEP");
        MUST_BE(gpupool_acquire(client, host_pool, MIB, NULL, GPUPOOL_FOREVER, GPUPOOL_CAN_SLEEP, &none),
                GPUPOOL_E_INVALID);
        SAYS("host memory cannot sleep");
        MUST_BE(gpupool_acquire_begin(client, pool, MIB, NULL, GPUPOOL_FOREVER, GPUPOOL_CAN_SLEEP, &request),
                GPUPOOL_E_INVALID);
        if (client_kinds[kind] != GPUPOOL_OPEN_NO_CACHE)
            assert_null(gpupool_alloc_within(client, pool, MIB, NULL, GPUPOOL_NOW, GPUPOOL_CAN_SLEEP));
        MUST_BE(
            gpupool_acquire(client, pool, 2 * POOL_BYTES, NULL, GPUPOOL_FOREVER, GPUPOOL_CAN_SLEEP, &none),
            GPUPOOL_E_TOO_LARGE);
        MUST_BE(gpupool_sleep(client, &plain, (enum gpupool_keep)3, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_sleep(client, &plain, GPUPOOL_KEEP_ON_GPU, GPUPOOL_OWN_STREAM), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_wake(client, &plain, GPUPOOL_OWN_STREAM, GPUPOOL_NOW, 0), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_wake(client, &plain, NULL, GPUPOOL_NOW, GPUPOOL_IDLE_ONLY), GPUPOOL_E_INVALID);
        MUST(gpupool_release(client, &plain, NULL));
        MUST(gpupool_release(client, &host, NULL));
        gpupool_close(client);
    }
    sleep_stop(&daemon);
}

/* The cache counts the generations of its pieces by itself, so that a piece may have the numbers of a sleeper. */
static void a_piece_of_the_cache_is_no_sleeper(void **state) {
    struct gpupool_buffer_info info;
    struct gpupool_buffer plain;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    MUST(gpupool_acquire(client, device_pool(client), MIB, NULL, GPUPOOL_FOREVER, 0, &plain));
    struct sleeper sleeper = {.lease = {.lease = plain.lease, .generation = plain.generation}};
    list_init(&sleeper.link);
    sleepers_add(&client->sleepers, &sleeper);
    MUST(gpupool_query(client, &plain, &info));
    MUST(gpupool_release(client, &plain, NULL));
    assert_false(list_is_empty(&sleeper.link));
    sleepers_remove(&client->sleepers, &sleeper);
    gpupool_close(client);
    sleep_stop(&daemon);
}

static void memory_by_legacy_handles_is_refused_with_advice(void **state) {
    struct gpupool_buffer buffer, none;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start_with(&daemon, &(struct daemon_options){.config = "[device]\nexport = ipc\nlimit = 64MiB\n"});
    struct gpupool_client *client = sleep_open(&daemon, 0), *other = sleep_open(&daemon, 0);
    MUST(gpupool_acquire(client, device_pool(client), MIB, NULL, GPUPOOL_FOREVER, 0, &buffer));
    MUST_BE(gpupool_sleep(client, &buffer, GPUPOOL_KEEP_ON_GPU, NULL), GPUPOOL_E_INVALID);
    SAYS("export = vmm");
    MUST_BE(
        gpupool_acquire(client, device_pool(client), MIB, NULL, GPUPOOL_FOREVER, GPUPOOL_CAN_SLEEP, &none),
        GPUPOOL_E_INVALID);
    SAYS("export = vmm");
    MUST(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token));
    MUST_BE(gpupool_attach(other, &token, GPUPOOL_NO_STREAM, GPUPOOL_CAN_SLEEP, &none), GPUPOOL_E_INVALID);
    SAYS("export = vmm");
    MUST(gpupool_release(client, &buffer, NULL));
    gpupool_close(other);
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* --- shared buffers --- */

/* Both sides unmap the memory and have it again; it is the same memory throughout. */
static void shared_buffers_sleep_on_the_gpu_alone(void **state) {
    static const uint32_t flags[] = {GPUPOOL_CAN_SLEEP, GPUPOOL_CAN_SLEEP | GPUPOOL_READ_ONLY};
    static const uint64_t sizes[] = {SLEEPER_BYTES, MIB}; /* in several segments and in one */
    struct gpupool_buffer attached, twin;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *owner = sleep_open(&daemon, 0);
    struct gpupool_client *reader = sleep_open(&daemon, GPUPOOL_OPEN_NO_CACHE);
    for (unsigned i = 0; i < 4; i++) {
        struct gpupool_buffer buffer = acquire_sleeper(owner, sizes[i / 2]);
        MUST(puppet_write_pattern(owner, &buffer, 1, NULL));
        MUST(gpupool_share(owner, &buffer, GPUPOOL_NO_STREAM, &token));
        MUST(gpupool_attach(reader, &token, GPUPOOL_NO_STREAM, flags[i % 2], &attached));
        MUST(gpupool_attach(reader, &token, GPUPOOL_NO_STREAM, flags[i % 2], &twin));
        assert_ptr_not_equal(attached.data, twin.data); /* each has its own addresses */
        assert_int_equal(attached.size_bytes, sizes[i / 2]);
        MUST_BE(gpupool_sleep(reader, &attached, GPUPOOL_KEEP_IN_HOST, NULL), GPUPOOL_E_SHARED);
        SAYS("GPUPOOL_KEEP_ON_GPU");
        MUST_BE(gpupool_sleep(owner, &buffer, GPUPOOL_KEEP_NOTHING, NULL), GPUPOOL_E_SHARED);
        const struct gpupool_buffer before = attached;
        MUST(gpupool_sleep(reader, &attached, GPUPOOL_KEEP_ON_GPU, NULL));
        assert_false(is_mapped(&attached));
        MUST(puppet_read_pattern(reader, &twin, 1, NULL));
        MUST(puppet_write_pattern(owner, &buffer, 2, NULL));
        MUST(gpupool_wake(reader, &attached, NULL, GPUPOOL_NOW, 0));
        assert_memory_equal(&attached, &before, sizeof before);
        MUST(puppet_read_pattern(reader, &attached, 2, NULL));
        MUST(gpupool_sleep(owner, &buffer, GPUPOOL_KEEP_ON_GPU, NULL));
        MUST(puppet_read_pattern(reader, &attached, 2, NULL)); /* the others have it still */
        MUST(gpupool_sleep(reader, &twin, GPUPOOL_KEEP_ON_GPU, NULL));
        MUST(gpupool_release(reader, &twin, NULL));
        MUST(gpupool_release(reader, &attached, NULL));
        MUST(gpupool_wake(owner, &buffer, NULL, GPUPOOL_NOW, 0));
        MUST(puppet_read_pattern(owner, &buffer, 2, NULL));
        MUST(gpupool_release(owner, &buffer, NULL));
    }
    gpupool_close(reader);
    gpupool_close(owner);
    sleep_stop(&daemon);
}

/* Others attach a buffer that has slept, and its token is one of its new lease. */
static void a_buffer_is_shared_after_a_sleep(void **state) {
    struct gpupool_buffer attached;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *owner = sleep_open(&daemon, 0), *reader = sleep_open(&daemon, 0);
    struct gpupool_buffer buffer = acquire_sleeper(owner, SLEEPER_BYTES);
    MUST(puppet_write_pattern(owner, &buffer, 3, NULL));
    MUST(gpupool_sleep(owner, &buffer, GPUPOOL_KEEP_IN_HOST, NULL));
    MUST(gpupool_wake(owner, &buffer, NULL, GPUPOOL_NOW, 0));
    MUST(gpupool_send(owner, &buffer, NULL, 1, UINT64_C(60000000000), &token));
    MUST(gpupool_release(owner, &buffer, NULL));
    MUST(gpupool_attach(reader, &token, NULL, 0, &attached));
    MUST(puppet_read_pattern(reader, &attached, 3, NULL));
    assert_int_equal(attached.size_bytes, SLEEPER_BYTES);
    MUST(gpupool_release(reader, &attached, NULL));
    gpupool_close(reader);
    gpupool_close(owner);
    sleep_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_on_a_sleeping_buffer_say_what_to_do),
        cmocka_unit_test(a_copy_of_the_struct_is_stale_after_a_wake),
        cmocka_unit_test(a_stream_that_is_captured_is_refused),
        cmocka_unit_test(memory_that_the_gpu_uses_does_not_sleep),
        cmocka_unit_test(a_release_is_behind_a_copy_that_came_to_nothing),
        cmocka_unit_test(other_buffers_are_refused_with_advice),
        cmocka_unit_test(a_piece_of_the_cache_is_no_sleeper),
        cmocka_unit_test(memory_by_legacy_handles_is_refused_with_advice),
        cmocka_unit_test(shared_buffers_sleep_on_the_gpu_alone),
        cmocka_unit_test(a_buffer_is_shared_after_a_sleep),
    };

    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
