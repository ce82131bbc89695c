/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that leaves its stream: to another stream, to the CPU, to another process. It does so behind fences,
 * and no call waits for the GPU. Streams stand at gates that the test opens, so that what must not happen
 * before the work is done has all the time to happen.
 */
#include "client/core/deferred.h"
#include "gpu/sim/sim.h"
#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define LARGE (40 * MIB) /* no two of them fit */

/* --- what the client keeps --- */

/* Takes so many small buffers of a stream heap that they would meet any that is free, and gives them back. */
static bool meets(struct gpupool_client *client, unsigned kind, void *stream, const void *data) {
    struct gpupool_buffer buffers[64];
    bool met = false;

    for (unsigned i = 0; i < 64; i++) {
        buffers[i] = acquire(client, kind, 4096, stream);
        met = met || buffers[i].data == data;
    }
    for (unsigned i = 0; i < 64; i++)
        MUST(gpupool_release(client, &buffers[i], kind == GPUPOOL_POOL_HOST ? GPUPOOL_NO_STREAM : stream));
    return met;
}

/* Released on a stream that is busy, into a stream heap that this stream does not order. */
static void released_elsewhere(unsigned kind, void *(*stream_heap_stream)(struct gate *gate, void *other)) {
    struct gpupool_client *client = open_cached();
    struct gate gate;
    void *other;

    gate_init(&gate, client);
    MUST(gpupool_stream_create(client, 0, &other));
    void *stream = stream_heap_stream(&gate, other);
    struct gpupool_buffer buffer = acquire(client, kind, 4096, stream);
    struct stream_heap *stream_heap = stream_heap_of(&buffer);
    const void *data = buffer.data;
    gate_close(&gate);
    MUST(gpupool_release(client, &buffer, gate.stream));
    assert_null(buffer.data);
    assert_false(gate_was_passed(&gate)); /* no call waited */
    assert_int_equal(deferred_in(stream_heap), 4096);
    assert_false(meets(client, kind, stream, data));
    assert_int_equal(deferred_in(stream_heap), 4096);
    assert_true(stream_heaps_are_valid(client));
    gate_open(&gate);
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    /* a miss finds it */
    struct gpupool_buffer large = acquire(client, kind, MIB, stream);
    assert_int_equal(deferred_in(stream_heap), 0);
    assert_true(stream_heaps_are_valid(client));
    MUST(gpupool_release(client, &large, GPUPOOL_NO_STREAM));
    gate_deinit(&gate);
    MUST(gpupool_stream_destroy(client, 0, other));
    close_cached(client);
}

static void *other_stream(struct gate *gate, void *other) {
    (void)gate;
    return other;
}

static void *no_stream(struct gate *gate, void *other) {
    (void)gate;
    (void)other;
    return GPUPOOL_NO_STREAM;
}

static void *default_stream(struct gate *gate, void *other) {
    (void)gate;
    (void)other;
    return NULL;
}

static void *same_stream(struct gate *gate, void *other) {
    (void)other;
    return gate->stream;
}

static void memory_released_on_another_stream_is_used_when_that_is_through(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    released_elsewhere(GPUPOOL_POOL_DEVICE, other_stream);
    released_elsewhere(GPUPOOL_POOL_DEVICE, default_stream);
    released_elsewhere(GPUPOOL_POOL_DEVICE, no_stream);
}

static void host_memory_is_used_when_the_stream_that_released_it_is_through(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    released_elsewhere(GPUPOOL_POOL_HOST, same_stream); /* the CPU may touch it at once */
    released_elsewhere(GPUPOOL_POOL_HOST, other_stream);
}

static void a_release_on_its_own_stream_does_not_wait(void **state) {
    struct gpupool_client *client;
    struct gate gate;

    (void)state;
    if (!test_has_device())
        skip();
    client = open_cached();
    gate_init(&gate, client);
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, 4096, gate.stream), again, other;
    const void *data = buffer.data;
    uint64_t acquires = daemon_sum(&daemon_, "acquires");
    gate_close(&gate);
    MUST(gpupool_release(client, &buffer, gate.stream));
    again = acquire(client, GPUPOOL_POOL_DEVICE, 4096, gate.stream);
    assert_false(gate_was_passed(&gate));
    assert_ptr_equal(again.data, data); /* the stream orders it */
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    MUST(gpupool_shrink(client, &again, 512, gate.stream));
    MUST(gpupool_release(client, &again, gate.stream));
    assert_false(gate_was_passed(&gate));
    gate_open(&gate);
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    /* another stream has other memory: nothing orders the two */
    again = acquire(client, GPUPOOL_POOL_DEVICE, 4096, gate.stream);
    MUST(gpupool_release(client, &again, gate.stream));
    other = acquire(client, GPUPOOL_POOL_DEVICE, 4096, NULL);
    assert_ptr_not_equal(other.data, data);
    MUST(gpupool_release(client, &other, NULL));
    gate_deinit(&gate);
    close_cached(client);
}

/* The per-thread default stream is another one in each thread: its name orders nothing. */
static void *meet_on_own_stream(void *argument) {
    struct gate *gate = argument;
    return meets(gate->client, GPUPOOL_POOL_DEVICE, GPUPOOL_PER_THREAD, gate->mark.data) ? gate : NULL;
}

static void the_per_thread_stream_orders_nothing_between_threads(void **state) {
    struct gpupool_client *client;
    struct gate gate;
    pthread_t thread;
    void *met;

    (void)state;
    if (!test_has_device())
        skip();
    client = open_cached();
    gate_init(&gate, client);
    void *created = gate.stream;
    gate.stream = GPUPOOL_PER_THREAD;
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, 4096, GPUPOOL_PER_THREAD);
    struct gpupool_buffer mark = gate.mark;
    struct stream_heap *stream_heap = stream_heap_of(&buffer);
    gate_close(&gate);
    gate.mark.data = buffer.data; /* what is looked for */
    MUST(gpupool_release(client, &buffer, GPUPOOL_PER_THREAD));
    assert_int_equal(pthread_create(&thread, NULL, meet_on_own_stream, &gate), 0);
    TEST_JOIN(thread, &met);
    gate.mark = mark;
    assert_false(gate_was_passed(&gate));
    gate_open(&gate);
    assert_null(met);
    assert_true(deferred_in(stream_heap) > 0);
    MUST(gpupool_stream_synchronize(client, 0, GPUPOOL_PER_THREAD));
    gate.stream = created;
    gate_deinit(&gate);
    close_cached(client);
}

static void shrink(unsigned kind) {
    struct gpupool_client *client = open_cached();
    struct gate gate;
    void *other;

    gate_init(&gate, client);
    MUST(gpupool_stream_create(client, 0, &other));
    struct gpupool_buffer buffer = acquire(client, kind, MIB, other);
    struct stream_heap *stream_heap = stream_heap_of(&buffer);
    MUST(puppet_write_pattern(client, &buffer, 7, other));
    gate_close(&gate);
    MUST(gpupool_shrink(client, &buffer, 4096, gate.stream));
    assert_false(gate_was_passed(&gate));
    assert_int_equal(deferred_in(stream_heap), MIB - 4096);
    struct gpupool_buffer next = acquire(client, kind, MIB - 4096, other);
    assert_ptr_not_equal(next.data, (char *)buffer.data + 4096);
    MUST(puppet_write_pattern(client, &next, 8, other));
    buffer.size_bytes = 4096;
    gate_open(&gate);
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    MUST(gpupool_release(client, &next, other));
    assert_true(stream_heaps_are_valid(client));
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    gate_deinit(&gate);
    MUST(gpupool_stream_destroy(client, 0, other));
    close_cached(client);
}

static void the_tail_of_a_buffer_waits_for_the_stream_that_it_is_cut_on(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    shrink(GPUPOOL_POOL_DEVICE);
    shrink(GPUPOOL_POOL_HOST);
}

/* --- without other room --- */

static void without_other_room_the_stream_is_made_to_wait(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer, word;
    struct gate gate;
    void *other;

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    client = open_cached();
    gate_init(&gate, client);
    MUST(gpupool_stream_create(client, 0, &other));
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);
    word = acquire(client, GPUPOOL_POOL_HOST, 8, GPUPOOL_NO_STREAM);
    uint64_t *done = word.data;
    *done = 0;
    buffer = acquire(client, GPUPOOL_POOL_DEVICE, LARGE, other);
    const void *data = buffer.data;
    gate_close(&gate);
    MUST(gpupool_release(client, &buffer, gate.stream));
    /* the CPU does not wait, */
    MUST(gpupool_acquire(client, pool, LARGE, other, GPUPOOL_NOW, 0, &buffer));
    assert_ptr_equal(buffer.data, data);
    assert_false(gate_was_passed(&gate));
    /* the stream does */
    assert_int_equal(client->session.devices.gpu->stream_write64(0, other, done, 5), 0);
    for (unsigned i = 0; i < 5; i++)
        test_pause();
    assert_int_equal(__atomic_load_n(done, __ATOMIC_SEQ_CST), 0);
    gate_open(&gate);
    MUST(gpupool_stream_synchronize(client, 0, other));
    assert_int_equal(__atomic_load_n(done, __ATOMIC_SEQ_CST), 5);
    assert_true(gate_was_passed(&gate));
    assert_true(stream_heaps_are_valid(client));
    MUST(gpupool_release(client, &buffer, other));
    MUST(gpupool_release(client, &word, GPUPOOL_NO_STREAM));
    gate_deinit(&gate);
    MUST(gpupool_stream_destroy(client, 0, other));
    close_cached(client);
}

/* Acquires all of a pool, which is there when the gate has opened, after the call. */
static struct gpupool_buffer acquire_when_it_opens(struct gpupool_client *client, uint32_t pool, void *stream,
                                                   struct gate *gate) {
    struct gpupool_buffer buffer;
    pthread_t opener;

    assert_int_equal(pthread_create(&opener, NULL, gate_open_late, gate), 0);
    int r = gpupool_acquire(client, pool, LARGE, stream, GPUPOOL_FOREVER, 0, &buffer);
    bool passed = gate_was_passed(gate);
    TEST_JOIN(opener, NULL);
    MUST(r);
    assert_true(passed);
    return buffer;
}

/* A stream heap that no stream orders: who waits for room waits for the fence as well, and not beyond the
 * time given. */
static void without_other_room_the_caller_waits_in_its_own_time(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    struct gate gate;

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    client = open_cached();
    gate_init(&gate, client);
    uint32_t pool = pool_of(client, GPUPOOL_POOL_HOST);
    buffer = acquire(client, GPUPOOL_POOL_HOST, LARGE, gate.stream);
    gate_close(&gate);
    MUST(gpupool_release(client, &buffer, gate.stream));
    MUST_BE(gpupool_acquire(client, pool, LARGE, NULL, GPUPOOL_NOW, 0, &buffer), GPUPOOL_E_EXHAUSTED);
    MUST_BE(gpupool_acquire(client, pool, LARGE, NULL, 20 * NS_PER_MS, 0, &buffer), GPUPOOL_E_EXHAUSTED);
    assert_false(gate_was_passed(&gate));
    buffer = acquire_when_it_opens(client, pool, NULL, &gate);
    assert_true(stream_heaps_are_valid(client));
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    gate_deinit(&gate);
    close_cached(client);
}

/* --- to other processes --- */

enum way {
    WAY_LEASE,   /* a client without a cache */
    WAY_TRIM,    /* idle memory of the stream itself */
    WAY_ASKED,   /* the same, when the daemon asks for it */
    WAY_DEFERRED /* idle memory that another stream released */
};

static void leave(enum way way, unsigned kind) {
    struct gpupool_client *client, *user;
    struct gpupool_buffer buffer;
    struct puppet puppet;
    struct gate gate;
    uint64_t bytes;

    empty_the_pools();
    client = open_cached();
    user = way == WAY_LEASE ? open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0) : client;
    gate_init(&gate, client);
    puppet_connect(&puppet, &daemon_);
    void *stream = way == WAY_DEFERRED ? NULL : gate.stream;
    buffer = acquire(user, kind, LARGE, stream);
    gate_close(&gate);
    MUST(gpupool_release(user, &buffer, gate.stream));
    if (way == WAY_TRIM) {
        MUST(gpupool_trim(client, &bytes));
        assert_true(bytes >= LARGE);
    }
    assert_false(gate_was_passed(&gate));
    gate_hands_over(&gate, kind, LARGE, &puppet);
    puppet_quit(&puppet);
    assert_true(stream_heaps_are_valid(client));
    gate_deinit(&gate);
    if (user != client)
        gpupool_close(user);
    close_cached(client);
}

static void leave_in_both_kinds(enum way way) {
    if (!test_has_device())
        skip();
    leave(way, GPUPOOL_POOL_DEVICE);
    leave(way, GPUPOOL_POOL_HOST);
}

static void a_lease_is_another_processs_when_the_stream_is_through(void **state) {
    (void)state;
    leave_in_both_kinds(WAY_LEASE);
}

static void trimmed_memory_is_another_processs_when_the_stream_is_through(void **state) {
    (void)state;
    leave_in_both_kinds(WAY_TRIM);
}

static void idle_memory_that_is_asked_for_goes_behind_a_fence(void **state) {
    (void)state;
    leave_in_both_kinds(WAY_ASKED);
}

static void deferred_memory_that_is_asked_for_goes_behind_its_own_fence(void **state) {
    (void)state;
    leave_in_both_kinds(WAY_DEFERRED);
}

static void a_shared_buffer_goes_behind_a_fence(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    struct gpupool_token token;
    struct puppet puppet;
    struct gate gate;

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    client = open_cached();
    gate_init(&gate, client);
    puppet_connect(&puppet, &daemon_);
    buffer = acquire(client, GPUPOOL_POOL_DEVICE, LARGE, gate.stream);
    MUST(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token));
    gate_close(&gate);
    MUST(gpupool_release(client, &buffer, gate.stream));
    gate_hands_over(&gate, GPUPOOL_POOL_DEVICE, LARGE, &puppet);
    puppet_quit(&puppet);
    gate_deinit(&gate);
    close_cached(client);
}

/* --- captures and streams that are gone --- */

static void nothing_of_the_library_lands_in_a_graph(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer, held, foreign;
    struct gate gate;
    unsigned operations = 1;
    uint64_t bytes;
    void *captured;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    client = open_cached();
    gate_init(&gate, client);
    MUST(gpupool_stream_create(client, 0, &captured));
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);
    buffer = acquire(client, GPUPOOL_POOL_DEVICE, 4096, captured);
    foreign = acquire(client, GPUPOOL_POOL_DEVICE, 4096, gate.stream);
    gate_close(&gate);
    struct gpupool_buffer deferred = acquire(client, GPUPOOL_POOL_DEVICE, 4096, captured);
    MUST(gpupool_release(client, &deferred, gate.stream));
    MUST(gpupool_release(client, &buffer, captured));
    assert_int_equal(gpu_sim_capture_begin(0, captured), 0);
    /* memory can be had, from the cache, from the heap and from the daemon, */
    MUST(gpupool_acquire(client, pool, 4096, captured, GPUPOOL_FOREVER, 0, &buffer));
    MUST(gpupool_acquire(client, pool, 8 * MIB, captured, GPUPOOL_FOREVER, 0, &held));
    /* but not zeroed; */
    MUST_BE(gpupool_acquire(client, pool, 4096, captured, GPUPOOL_FOREVER, GPUPOOL_ZERO, &deferred),
            GPUPOOL_E_CAPTURING);
    /* what needs a fence is refused, and stays the caller's; */
    MUST_BE(gpupool_release(client, &foreign, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_shrink(client, &foreign, 512, captured), GPUPOOL_E_CAPTURING);
    assert_non_null(foreign.data);
    /* what needs none is the stream's again; */
    MUST(gpupool_release(client, &held, captured));
    /* and stays here */
    uint64_t leased = daemon_sum(&daemon_, "leased_bytes");
    MUST_BE(gpupool_trim(client, &bytes), GPUPOOL_E_CAPTURING);
    assert_non_null(strstr(gpupool_error_text(), "until the capture is over"));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), leased - bytes);
    assert_true(stream_heaps_are_valid(client));
    MUST(gpupool_acquire(client, pool, 8 * MIB, captured, GPUPOOL_NOW, 0, &held));
    assert_int_equal(gpu_sim_capture_end(0, captured, &operations), 0);
    assert_int_equal(operations, 0);
    MUST(gpupool_release(client, &held, captured));
    MUST(gpupool_release(client, &buffer, captured));
    gate_open(&gate);
    MUST(gpupool_release(client, &foreign, captured));
    MUST(gpupool_trim(client, &bytes));
    assert_true(bytes >= 8 * MIB);
    gate_deinit(&gate);
    MUST(gpupool_stream_destroy(client, 0, captured));
    close_cached(client);
}

/* The driver refuses the fence of a trim: what was to go back is the stream's as before, so nothing has to
 * come from the daemon. */
static void memory_whose_fence_cannot_be_left_stays_in_use(void **state) {
    static const uint64_t sizes[] = {4096, 8 * MIB};
    struct gpupool_buffer buffers[2];
    struct gpupool_client *client;
    uint64_t bytes = 1;
    void *stream;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    empty_the_pools();
    client = open_cached_with_stream(&stream);
    for (unsigned i = 0; i < 2; i++)
        buffers[i] = acquire(client, GPUPOOL_POOL_DEVICE, sizes[i], stream);
    for (unsigned i = 0; i < 2; i++)
        MUST(gpupool_release(client, &buffers[i], stream));
    uint64_t leased = daemon_sum(&daemon_, "leased_bytes");
    assert_int_equal(gpu_sim_fail("stream_write64", 1, GPU_ERROR_UNKNOWN), 0);
    MUST_BE(gpupool_trim(client, &bytes), GPUPOOL_E_DRIVER);
    assert_true(gpu_sim_failed());
    assert_true(leased - daemon_sum(&daemon_, "leased_bytes") == bytes); /* no buffer has lain there */
    assert_true(stream_heaps_are_valid(client));
    leased -= bytes;
    for (unsigned i = 0; i < 2; i++)
        buffers[i] = acquire(client, GPUPOOL_POOL_DEVICE, sizes[i], stream);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), leased);
    for (unsigned i = 0; i < 2; i++)
        MUST(gpupool_release(client, &buffers[i], stream));
    MUST(gpupool_trim(client, &bytes));
    assert_int_equal(bytes, leased);
    MUST(gpupool_stream_destroy(client, 0, stream));
    close_cached(client);
}

static void a_captured_stream_is_not_made_to_wait(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    struct gate gate;
    unsigned operations = 1;
    void *captured;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    empty_the_pools();
    client = open_cached();
    gate_init(&gate, client);
    MUST(gpupool_stream_create(client, 0, &captured));
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);
    buffer = acquire(client, GPUPOOL_POOL_DEVICE, LARGE, captured);
    gate_close(&gate);
    MUST(gpupool_release(client, &buffer, gate.stream));
    assert_int_equal(gpu_sim_capture_begin(0, captured), 0);
    MUST_BE(gpupool_acquire(client, pool, LARGE, captured, GPUPOOL_NOW, 0, &buffer), GPUPOOL_E_EXHAUSTED);
    buffer = acquire_when_it_opens(client, pool, captured, &gate); /* the caller waits instead */
    assert_int_equal(gpu_sim_capture_end(0, captured, &operations), 0);
    assert_int_equal(operations, 0);
    MUST(gpupool_release(client, &buffer, captured));
    gate_deinit(&gate);
    MUST(gpupool_stream_destroy(client, 0, captured));
    close_cached(client);
}

static void a_stream_that_the_library_destroys_leaves_nothing(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer, kept;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    client = open_cached_with_stream(&stream);
    kept = acquire(client, GPUPOOL_POOL_DEVICE, 4096, NULL);
    MUST(gpupool_release(client, &kept, NULL));
    uint64_t leased = daemon_sum(&daemon_, "leased_bytes");
    buffer = acquire(client, GPUPOOL_POOL_DEVICE, 8 * MIB, stream);
    MUST(gpupool_release(client, &buffer, stream));
    MUST(gpupool_stream_destroy(client, 0, stream));
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == leased); /* and what is of other streams stays */
    close_cached(client);
}

static void memory_of_a_stream_that_is_gone_is_not_lost(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    uint64_t bytes;
    void *stream;

    (void)state;
    if (!test_has_device() || !test_is_simulated()) /* CUDA does not promise to notice */
        skip();
    client = open_cached_with_stream(&stream);
    buffer = acquire(client, GPUPOOL_POOL_DEVICE, 8 * MIB, stream);
    MUST(gpupool_release(client, &buffer, stream));
    assert_int_equal(client->session.devices.gpu->stream_destroy(0, stream),
                     0); /* as a program does that links CUDA */
    for (unsigned i = 0; i < 2; i++) {
        MUST_BE(gpupool_trim(client, &bytes), GPUPOOL_E_DRIVER);
        assert_non_null(strstr(gpupool_error_text(), "gpupool_trim() is to be called"));
        assert_int_equal(bytes, 0);
        assert_true(stream_heaps_are_valid(client));
    }
    assert_true(daemon_sum(&daemon_, "leased_bytes") >= 8 * MIB);
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_release_on_its_own_stream_does_not_wait),
        cmocka_unit_test(memory_released_on_another_stream_is_used_when_that_is_through),
        cmocka_unit_test(host_memory_is_used_when_the_stream_that_released_it_is_through),
        cmocka_unit_test(the_per_thread_stream_orders_nothing_between_threads),
        cmocka_unit_test(the_tail_of_a_buffer_waits_for_the_stream_that_it_is_cut_on),
        cmocka_unit_test(without_other_room_the_stream_is_made_to_wait),
        cmocka_unit_test(without_other_room_the_caller_waits_in_its_own_time),
        cmocka_unit_test(a_lease_is_another_processs_when_the_stream_is_through),
        cmocka_unit_test(trimmed_memory_is_another_processs_when_the_stream_is_through),
        cmocka_unit_test(idle_memory_that_is_asked_for_goes_behind_a_fence),
        cmocka_unit_test(deferred_memory_that_is_asked_for_goes_behind_its_own_fence),
        cmocka_unit_test(a_shared_buffer_goes_behind_a_fence),
        cmocka_unit_test(nothing_of_the_library_lands_in_a_graph),
        cmocka_unit_test(memory_whose_fence_cannot_be_left_stays_in_use),
        cmocka_unit_test(a_captured_stream_is_not_made_to_wait),
        cmocka_unit_test(a_stream_that_the_library_destroys_leaves_nothing),
        cmocka_unit_test(memory_of_a_stream_that_is_gone_is_not_lost),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
