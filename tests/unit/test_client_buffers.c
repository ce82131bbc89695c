/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client library with a daemon that behaves: a buffer from acquire to release, and the streams on which
 * it is given back.
 */
#include <poll.h>
#include <pthread.h>

#include "gpu/sim/sim.h"
#include "tests/unit/client_fixture.h"

static void host_buffer_lives_from_acquire_to_release(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct gpupool_buffer buffer, copy;
    struct gpupool_buffer_info info;

    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 10000, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_int_equal(buffer.size_bytes, 10000);
    assert_int_equal(buffer.capacity_bytes, 10240);
    assert_int_equal(buffer.device, -1);
    assert_int_equal((uintptr_t)buffer.data % 512, 0);
    memset(buffer.data, 0x5a, buffer.capacity_bytes);

    assert_ok(gpupool_query(client, &buffer, &info));
    assert_ptr_equal(info.buffer.data, buffer.data);
    assert_int_equal(info.segment, FALSE_POOL_HOST);
    assert_int_equal(info.holders, 1);

    assert_error(gpupool_shrink(client, &buffer, 0, NULL), GPUPOOL_E_INVALID);
    assert_error(gpupool_shrink(client, &buffer, 10241, NULL), GPUPOOL_E_INVALID);
    assert_ok(gpupool_shrink(client, &buffer, 600, NULL));
    assert_int_equal(buffer.size_bytes, 600);
    assert_int_equal(buffer.capacity_bytes, 1024);
    assert_int_equal(daemon_.releases, 1);

    copy = buffer;
    assert_ok(gpupool_release(client, &buffer, NULL));
    assert_null(buffer.data);
    assert_int_equal(buffer.lease, 0);
    assert_error(gpupool_release(client, &buffer, NULL), GPUPOOL_E_STALE);
    assert_error(gpupool_release(client, &copy, NULL), GPUPOOL_E_STALE);
    assert_text_has("no such lease in this session");
    assert_non_null(copy.data); /* a failed release leaves the buffer alone */
    assert_error(gpupool_query(client, &copy, &info), GPUPOOL_E_STALE);
    assert_int_equal(daemon_.leases, 0);
    gpupool_close(client);
}

static void zeroed_buffers_read_zero(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    static const unsigned char zero[5000];
    unsigned char back[5000];
    struct gpupool_buffer buffer;
    void *stream;

    assert_ok(gpupool_stream_create(client, 0, &stream));
    for (int round = 0; round < 3; round++) {
        uint32_t pool = round == 0 ? FALSE_POOL_DEVICE : FALSE_POOL_HOST;
        void *own = round == 2 ? NULL : stream;
        for (int i = 0; i < 20; i++) { /* comes by the same offsets again, dirty */
            assert_ok(gpupool_acquire(client, pool, sizeof back, own, GPUPOOL_NOW, GPUPOOL_ZERO, &buffer));
            if (pool == FALSE_POOL_DEVICE)
                assert_ok(gpupool_copy(client, 0, back, buffer.data, sizeof back, own));
            if (own != NULL)
                assert_ok(gpupool_stream_synchronize(client, 0, own));
            if (pool == FALSE_POOL_HOST)
                memcpy(back, buffer.data, sizeof back);
            assert_memory_equal(back, zero, sizeof back);
            assert_ok(gpupool_set(client, 0, buffer.data, 0xff, buffer.capacity_bytes, own));
            assert_ok(gpupool_stream_synchronize(client, 0, own)); /* this daemon looks at no fence */
            assert_ok(gpupool_release(client, &buffer, own));
        }
    }
    assert_ok(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
}

static void tokens_reach_the_same_memory(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL), *other = open_client();
    struct gpupool_buffer buffer, shared = {0};
    struct gpupool_token token = {0};

    assert_error(gpupool_attach(other, &token, GPUPOOL_NO_STREAM, 0, &shared), GPUPOOL_E_NO_TOKEN);
    assert_null(shared.data);
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 3000, NULL, GPUPOOL_NOW, 0, &buffer));
    memcpy(buffer.data, "by another mapping", 19);
    assert_ok(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token));
    assert_ok(gpupool_attach(other, &token, GPUPOOL_NO_STREAM, 0, &shared));
    assert_int_equal(shared.size_bytes, 3000);
    assert_ptr_not_equal(shared.data, buffer.data);
    assert_string_equal(shared.data, "by another mapping");
    false_daemon_await(&daemon_, &daemon_.opened, 2);
    assert_ok(gpupool_release(other, &shared, NULL));
    gpupool_close(other);
    gpupool_close(client);
    false_daemon_await(&daemon_, &daemon_.session_count, 0);
}

/* The SHARE or SEND that came last, and its treatment. */
static struct {
    struct proto_share last;
    unsigned n_splits;
    enum proto_error refusal; /* 0: it is granted */
} parts;

static bool watch_parts(struct false_daemon *daemon, struct false_session *session,
                        const struct proto_message *request) {
    (void)daemon;
    parts.n_splits += request->header.operation == PROTO_SPLIT;
    if (request->header.operation != PROTO_SHARE && request->header.operation != PROTO_SEND)
        return false;
    parts.last = request->share; /* SEND begins with it */
    enum proto_error refusal = parts.refusal; /* the answer lets the test go on, which changes it */
    if (refusal != 0)
        false_send_error(session, request->header.request, refusal, "no part today");
    return refusal != 0;
}

/* A buffer of the cache becomes a lease of its own, and is shared, by one message. */
static void a_part_is_split_off_and_shared_in_one_round_trip(void **state) {
    (void)state;
    struct gpupool_options options = options_for(daemon_.path);
    struct gpupool_client *client;
    struct gpupool_buffer buffers[3], large;
    struct gpupool_token token, again;

    options.flags = GPUPOOL_OPEN_NO_THREAD;
    daemon_.handle = watch_parts;
    daemon_.large_bytes = MIB;
    false_daemon_run(&daemon_);
    assert_ok(gpupool_open(&options, &client));
    for (unsigned i = 0; i < 3; i++)
        assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 3000, NULL, GPUPOOL_NOW, 0, &buffers[i]));
    assert_ok(gpupool_share(client, &buffers[0], GPUPOOL_NO_STREAM, &token));
    assert_int_equal(token.bytes[0], 0xa5);
    assert_ok(gpupool_share(client, &buffers[0], GPUPOOL_NO_STREAM, &again)); /* asks nothing */
    assert_memory_equal(&token, &again, sizeof token);
    assert_ok(gpupool_send(client, &buffers[1], GPUPOOL_NO_STREAM, 1, NS_PER_S, &token));
    assert_int_equal(token.bytes[0], 0xa5);
    assert_int_equal(parts.last.part_bytes, buffers[1].capacity_bytes);

    /* the buffer is as it was after a refusal */
    parts.refusal = PROTO_E_LIMIT;
    assert_error(gpupool_share(client, &buffers[2], GPUPOOL_NO_STREAM, &token), GPUPOOL_E_LIMIT);
    assert_text_has("no part today");
    assert_error(gpupool_send(client, &buffers[2], GPUPOOL_NO_STREAM, 1, NS_PER_S, &token), GPUPOOL_E_LIMIT);
    parts.refusal = 0;
    assert_ok(gpupool_share(client, &buffers[2], GPUPOOL_NO_STREAM, &token));

    /* a buffer that has a lease to itself keeps that */
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, MIB, NULL, GPUPOOL_NOW, 0, &large));
    assert_ok(gpupool_share(client, &large, GPUPOOL_NO_STREAM, &token));
    assert_int_equal(parts.last.part_bytes, 0);
    assert_int_equal(parts.n_splits, 0);
    assert_ok(gpupool_release(client, &large, NULL));
    for (unsigned i = 0; i < 3; i++)
        assert_ok(gpupool_release(client, &buffers[i], NULL));
    gpupool_close(client);
}

/* --- preparing --- */

static void preparing_refuses_what_is_out_of_range(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);

    assert_error(gpupool_prepare(NULL, FALSE_POOL_HOST, 1), GPUPOOL_E_INVALID);
    assert_error(gpupool_prepare(client, FALSE_POOL_HOST, 0), GPUPOOL_E_INVALID);
    assert_error(gpupool_prepare(client, 77, 1), GPUPOOL_E_NO_POOL);
    assert_error(gpupool_prepare(client, FALSE_POOL_HOST, PROTO_SIZE_MAX + 1), GPUPOOL_E_TOO_LARGE);
    assert_error(gpupool_prepare(client, FALSE_POOL_HOST, UINT64_MAX), GPUPOOL_E_TOO_LARGE);
    assert_int_equal(daemon_.acquires, 0);
    assert_error(gpupool_prepare(client, FALSE_POOL_HOST, 3 * MIB), GPUPOOL_E_EXHAUSTED);
    assert_text_has("preparing 3 MiB of pool");
    assert_text_has("pid 4711 has them all");
    assert_ok(gpupool_prepare(client, FALSE_POOL_HOST, 10000));
    assert_ok(gpupool_prepare(client, FALSE_POOL_DEVICE, 10000));
    assert_int_equal(daemon_.leases, 0);
    gpupool_close(client);
}

static void preparing_that_the_driver_refuses_leaves_no_lease(void **state) {
    (void)state;
    bool failed = true;

    false_daemon_run(&daemon_);
    for (unsigned n = 1; failed; n++) { /* last round: nothing failed */
        failed = false;
        for (unsigned i = 0; i < 2; i++) {
            uint32_t pool = i == 0 ? FALSE_POOL_DEVICE : FALSE_POOL_HOST;
            struct gpupool_client *client = open_client();
            assert_int_equal(gpu_sim_fail("any", n, GPU_ERROR_MEMORY_ALLOCATION), 0);
            int r = gpupool_prepare(client, pool, 10000);
            bool failed_now = gpu_sim_failed();
            failed = failed || failed_now;
            gpu_sim_fail("any", 0, 0);
            assert_true(r == 0 || (failed_now && (r == GPUPOOL_E_DRIVER || r == GPUPOOL_E_NO_GPU)));
            assert_int_equal(daemon_.leases, 0);
            gpupool_close(client);
        }
    }
}

/* --- streams --- */

/* A driver table that counts what waits, and says of streams that they are captured, over the simulated one.
 */
static const struct gpu *real;
static struct gpu counting;
static unsigned synchronize_calls;
static int capture_answer; /* 0: no; 1: the stream is captured; else that error */

static int counting_synchronize(unsigned device, void *stream) {
    __atomic_add_fetch(&synchronize_calls, 1, __ATOMIC_SEQ_CST);
    return real->stream_synchronize(device, stream);
}

static int counting_capturing(unsigned device, void *stream, bool *ret_capturing) {
    if (capture_answer == 0)
        return real->stream_is_capturing(device, stream, ret_capturing);
    if (capture_answer > 1)
        return capture_answer;
    *ret_capturing = true;
    return 0;
}

static void count_calls(struct gpupool_client *client) {
    real = table_over(client, &counting);
    counting.stream_synchronize = counting_synchronize;
    counting.stream_is_capturing = counting_capturing;
    synchronize_calls = 0;
    capture_answer = 0;
}

static void captured_streams_are_refused_before_anything_is_done(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct gpupool_buffer buffers[2], other = {0};

    count_calls(client);
    assert_ok(gpupool_acquire(client, FALSE_POOL_DEVICE, 1000, NULL, GPUPOOL_NOW, 0, &buffers[0]));
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1000, NULL, GPUPOOL_NOW, 0, &buffers[1]));
    unsigned messages = daemon_.messages, synchronized = synchronize_calls;
    static const int answers[] = {1, 906 /* cudaErrorStreamCaptureImplicit */};
    for (unsigned i = 0; i < 2; i++) {
        capture_answer = answers[i];
        for (unsigned j = 0; j < 2; j++) {
            assert_error(gpupool_release(client, &buffers[j], NULL), GPUPOOL_E_CAPTURING);
            assert_error(gpupool_shrink(client, &buffers[j], 1, NULL), GPUPOOL_E_CAPTURING);
        }
        assert_error(gpupool_acquire(client, FALSE_POOL_DEVICE, 1, NULL, GPUPOOL_NOW, GPUPOOL_ZERO, &other),
                     GPUPOOL_E_CAPTURING);
        assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 1, &other, GPUPOOL_NOW, GPUPOOL_ZERO, &other),
                     GPUPOOL_E_CAPTURING);
    }
    assert_int_equal(daemon_.messages, messages);
    assert_int_equal(synchronize_calls, synchronized);
    /* memory can be had: nothing is enqueued for that */
    assert_ok(gpupool_acquire(client, FALSE_POOL_DEVICE, 1, NULL, GPUPOOL_NOW, 0, &other));
    capture_answer = 0;
    assert_ok(gpupool_release(client, &buffers[0], NULL));
    assert_ok(gpupool_release(client, &buffers[1], NULL));
    assert_int_equal(synchronize_calls, synchronized); /* no call waits */
    gpupool_close(client);
}

static struct proto_release last_release; /* the daemon's thread writes it before it answers */

static bool note_release(struct false_daemon *daemon, struct false_session *session,
                         const struct proto_message *request) {
    (void)daemon;
    (void)session;
    if (request->header.operation == PROTO_RELEASE)
        last_release = request->release;
    return false;
}

static bool release_is_ready(struct gpupool_client *client) {
    return fence_is_ready(&client->session, (struct fence){last_release.fence, last_release.fence_value});
}

static void releases_stand_behind_fences_of_streams_of_any_device(void **state) {
    (void)state;
    struct gpupool_client *client = start(note_release);
    struct gpupool_buffer buffer, gate;
    const struct gpu *gpu;
    void *stream;

    assert_ok(devices_need_device(&client->session.devices, 3, &gpu)); /* which notes its use */
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 8, NULL, GPUPOOL_NOW, GPUPOOL_ZERO, &gate));
    assert_int_equal(gpu->stream_create(3, &stream), 0); /* current is device 0 */
    assert_int_equal(gpu->stream_wait64(3, stream, gate.data, 1), 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, GPUPOOL_NOW, 0, &buffer));
        if (i == 1)
            assert_ok(gpupool_shrink(client, &buffer, 512, stream));
        assert_ok(gpupool_release(client, &buffer, i == 2 ? GPUPOOL_NO_STREAM : stream));
        if (i == 2)
            assert_int_equal(last_release.fence, 0);
        else
            assert_false(release_is_ready(client));
    }
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_ok(gpupool_release(client, &buffer, stream));
    assert_false(release_is_ready(client));
    __atomic_store_n((uint64_t *)gate.data, 1, __ATOMIC_SEQ_CST);
    assert_ok(gpupool_stream_synchronize(client, 3, stream));
    assert_true(release_is_ready(client));
    assert_int_equal(gpu->stream_destroy(3, stream), 0);
    gpupool_close(client);
}

static unsigned limited;             /* releases that were refused */
static struct gpupool_client *hasty; /* has little time from the refusal on */

static bool keep_no_fences(struct false_daemon *daemon, struct false_session *session,
                           const struct proto_message *request) {
    note_release(daemon, session, request);
    if (request->header.operation != PROTO_RELEASE || request->release.fence == 0)
        return false;
    limited++;
    if (hasty != NULL)
        hasty->session.connection.answer_timeout_ns = IMPATIENT_NS;
    false_send_error(session, request->header.request, PROTO_E_LIMIT, "no more fences");
    return true;
}

/* Lets the gate's stream go. */
static void *open_gate_late(void *argument) {
    poll(NULL, 0, 30);
    __atomic_store_n((uint64_t *)argument, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void at_the_daemons_limit_a_release_waits_for_its_fence(void **state) {
    (void)state;
    struct gpupool_client *client = start(keep_no_fences);
    struct gpupool_buffer buffer, gate, kept;
    const struct gpu *gpu;
    pthread_t thread;
    void *stream;

    limited = 0;
    assert_ok(devices_need_gpu(&client->session.devices, &gpu));
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 8, NULL, GPUPOOL_NOW, GPUPOOL_ZERO, &gate));
    assert_ok(gpupool_acquire(client, FALSE_POOL_DEVICE, 8, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_ok(gpupool_stream_create(client, 0, &stream));
    assert_int_equal(gpu->stream_wait64(0, stream, gate.data, 1), 0);
    struct fence first; /* the page is had while there is time for it */
    assert_ok(fences_enqueue(&client->session, 0, stream, &first));
    hasty = client;
    kept = buffer;
    /* it does not wait longer than for an answer */
    assert_error(gpupool_release(client, &buffer, stream), GPUPOOL_E_TIMED_OUT);
    assert_memory_equal(&buffer, &kept, sizeof kept); /* still the caller's */
    hasty = NULL;
    client->session.connection.answer_timeout_ns = PATIENT_NS;
    assert_int_equal(pthread_create(&thread, NULL, open_gate_late, gate.data), 0);
    assert_ok(gpupool_release(client, &buffer, stream));
    TEST_JOIN(thread, NULL);
    assert_int_equal(limited, 2);
    assert_int_equal(last_release.lease, kept.lease);
    assert_int_equal(last_release.fence, 0);
    assert_int_equal(gpu->stream_query(0, stream), 0);
    assert_ok(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
}

int main(void) {
    fixture_init();
    const struct CMUnitTest tests[] = {
        TEST(host_buffer_lives_from_acquire_to_release),
        TEST(zeroed_buffers_read_zero),
        TEST(tokens_reach_the_same_memory),
        TEST(a_part_is_split_off_and_shared_in_one_round_trip),
        TEST(preparing_refuses_what_is_out_of_range),
        TEST(preparing_that_the_driver_refuses_leaves_no_lease),
        TEST(captured_streams_are_refused_before_anything_is_done),
        TEST(releases_stand_behind_fences_of_streams_of_any_device),
        TEST(at_the_daemons_limit_a_release_waits_for_its_fence),
    };
    int failed = cmocka_run_group_tests_name("client_buffers", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
