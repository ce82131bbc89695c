/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hooks of ONNX Runtime and CuPy (client/plugins), called as these libraries call them: memory is given
 * back while the kernels that use it are on their way, and the hooks are told of no stream. The streams stand
 * at gates.
 */
#include <dlfcn.h>
#include <gpupool/hooks.h>

#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define SIZE   UINT64_C(1048576)
#define PIECES 16u

static struct gpupool_client *open_default(void) {
    struct gpupool_client *client;

    setenv("GPUPOOL_SOCKET", daemon_.socket, 1);
    MUST(gpupool_default(&client));
    return client;
}

static void wait_and_close(struct gpupool_client *client, struct gate *gate) {
    gate_deinit(gate);
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

static struct gpupool_buffer must_lookup(const void *memory, unsigned kind) {
    struct gpupool_buffer buffer;

    assert_non_null(memory);
    MUST(gpupool_lookup(memory, NULL, &buffer));
    assert_int_equal(buffer.kind, kind);
    return buffer;
}

/* Memory that is given back while its stream stands serves that stream at once, and no other stream. */
static void check_order(struct gpupool_client *client, struct gate *gate, void *memory, void *again) {
    void *other, *pieces[PIECES];
    uint32_t pool;

    assert_ptr_equal(again, memory);
    assert_false(gate_was_passed(gate));
    MUST(gpupool_stream_create(client, 0, &other));
    MUST(gpupool_device_pool(client, 0, &pool));
    for (unsigned i = 0; i < PIECES; i++) {
        pieces[i] = gpupool_alloc(client, pool, SIZE, other);
        assert_non_null(pieces[i]);
        assert_ptr_not_equal(pieces[i], memory);
    }
    for (unsigned i = 0; i < PIECES; i++)
        MUST(gpupool_free(pieces[i], other));
    assert_false(gate_was_passed(gate));
    MUST(gpupool_trim(client, NULL));
    MUST(gpupool_stream_destroy(client, 0, other));
}

static void memory_of_onnxruntime_follows_the_stream_that_the_program_names(void **state) {
    struct gate gate;

    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_default();
    gate_init(&gate, client);
    void *weights = gpupool_onnxruntime_alloc(SIZE); /* before a stream is named: for any stream */
    must_lookup(weights, GPUPOOL_POOL_DEVICE);
    MUST(gpupool_onnxruntime_use_stream(0, gate.stream));
    gate_close(&gate);
    void *tensor = gpupool_onnxruntime_alloc(SIZE);
    must_lookup(tensor, GPUPOOL_POOL_DEVICE);
    MUST(gpupool_set(client, 0, tensor, 1, SIZE, gate.stream));
    gpupool_onnxruntime_free(tensor);
    void *again = gpupool_onnxruntime_alloc(SIZE);
    check_order(client, &gate, tensor, again);
    MUST(gpupool_onnxruntime_use_stream(-1, GPUPOOL_NO_STREAM));
    gpupool_onnxruntime_free(again); /* on its own stream, though that is not named any more */
    assert_false(gate_was_passed(&gate));
    gpupool_onnxruntime_free(NULL);
    gate_open(&gate);
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    gpupool_onnxruntime_free(weights); /* waits for the device, so also for the gate */
    gpupool_onnxruntime_empty_cache();
    wait_and_close(client, &gate);
}

static void memory_for_any_stream_goes_back_behind_the_device(void **state) {
    struct gate gate;
    pthread_t opener;

    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_default();
    gate_init(&gate, client);
    /* The default stream stands behind the gate, by a word that the gate's stream writes. */
    void *tensor = gpupool_onnxruntime_alloc(SIZE), *array = gpupool_cupy_malloc(GPUPOOL_NO_STREAM, SIZE, 0);
    assert_non_null(array);
    gate_close(&gate);
    const struct gpu *gpu = client->session.devices.gpu;
    assert_int_equal(gpu->stream_wait64(0, NULL, gate_word(&gate, &gate.mark), 7), 0);
    MUST(gpupool_set(client, 0, tensor, 1, SIZE, NULL));
    assert_int_equal(pthread_create(&opener, NULL, gate_open_late, &gate), 0);
    gpupool_onnxruntime_free(tensor);
    assert_true(gate_was_passed(&gate));
    gpupool_cupy_free(GPUPOOL_NO_STREAM, array, 0);
    assert_int_equal(pthread_join(opener, NULL), 0);
    wait_and_close(client, &gate);
}

static void memory_of_cupy_follows_the_stream_of_its_allocator(void **state) {
    struct gate gate;

    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_default();
    gate_init(&gate, client);
    gate_close(&gate);
    void *array = gpupool_cupy_malloc(gate.stream, SIZE, 0);
    must_lookup(array, GPUPOOL_POOL_DEVICE);
    MUST(gpupool_set(client, 0, array, 1, SIZE, gate.stream));
    gpupool_cupy_free(gate.stream, array, 0);
    void *again = gpupool_cupy_malloc(gate.stream, SIZE, 0);
    check_order(client, &gate, array, again);
    gpupool_cupy_free(gate.stream, again, 0);
    assert_false(gate_was_passed(&gate));
    gate_open(&gate);
    wait_and_close(client, &gate);
}

/* This program has no libstdc++, so that no exception is thrown. */
static void a_request_that_cannot_be_served_is_null(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_default();
    assert_null(gpupool_onnxruntime_alloc((size_t)1 << 50));
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_TOO_LARGE);
    MUST(gpupool_onnxruntime_use_stream(0, NULL));
    assert_null(gpupool_onnxruntime_alloc((size_t)1 << 50));
    MUST_BE(gpupool_onnxruntime_use_stream(0, GPUPOOL_PER_THREAD), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_onnxruntime_use_stream(0, GPUPOOL_OWN_STREAM), GPUPOOL_E_INVALID);
    MUST(gpupool_onnxruntime_use_stream(0, GPUPOOL_NO_STREAM));
    MUST_BE(gpupool_onnxruntime_use_stream(63, NULL), GPUPOOL_E_NO_POOL);
    if (dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD) != NULL)
        skip(); /* a sanitizer has brought it: failures are thrown then, as CuPy wants them */
    assert_null(gpupool_cupy_malloc(NULL, (size_t)1 << 50, 0));
    assert_null(gpupool_cupy_malloc(NULL, SIZE, 63));
    assert_null(gpupool_cupy_malloc(GPUPOOL_PER_THREAD, SIZE, 0));
    assert_null(gpupool_cupy_malloc(GPUPOOL_OWN_STREAM, SIZE, 0));
    assert_null(gpupool_cupy_malloc_pinned((size_t)1 << 50));
    close_cached(client);
}

static void pinned_memory_of_cupy_is_host_memory(void **state) {
    (void)state;
    struct gpupool_client *client = open_default();
    void *memory = gpupool_cupy_malloc_pinned(SIZE);
    must_lookup(memory, GPUPOOL_POOL_HOST);
    memset(memory, 1, SIZE);
    gpupool_cupy_free_pinned(memory);
    MUST_BE(gpupool_free(memory, GPUPOOL_NO_STREAM), GPUPOOL_E_STALE);
    gpupool_cupy_free_pinned(NULL);
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_onnxruntime_follows_the_stream_that_the_program_names),
        cmocka_unit_test(memory_for_any_stream_goes_back_behind_the_device),
        cmocka_unit_test(memory_of_cupy_follows_the_stream_of_its_allocator),
        cmocka_unit_test(a_request_that_cannot_be_served_is_null),
        cmocka_unit_test(pinned_memory_of_cupy_is_host_memory),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
