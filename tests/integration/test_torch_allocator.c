/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lean allocator for PyTorch (client/plugins/torch.c), called as PyTorch calls it, with streams that
 * stand at gates: a tensor that a further stream uses is freed while that stream is busy.
 */
#include <sys/types.h>

#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define SIZE    UINT64_C(4096)
#define TENSORS 64u

void *gpupool_torch_malloc(ssize_t size_bytes, int device, void *stream);
void gpupool_torch_free(void *memory, ssize_t size_bytes, int device, void *stream);
void gpupool_torch_record_stream(void *memory, void *stream);

static void a_free_does_not_wait_for_a_further_stream_and_the_memory_does(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer room;
    struct gate gate;
    void *tensors[TENSORS], *own;
    bool met = false;

    (void)state;
    if (!test_has_device())
        skip();
    setenv("GPUPOOL_SOCKET", daemon_.socket, 1);
    MUST(gpupool_default(&client));
    gate_init(&gate, client);
    MUST(gpupool_stream_create(client, 0, &own));
    room = acquire(client, GPUPOOL_POOL_HOST, SIZE, GPUPOOL_NO_STREAM);
    void *tensor = gpupool_torch_malloc((ssize_t)SIZE, 0, own);
    assert_non_null(tensor);
    gate_close(&gate);
    MUST(gpupool_set(client, 0, tensor, 0xaa, SIZE, gate.stream));
    gpupool_torch_record_stream(tensor, gate.stream);
    gpupool_torch_record_stream(tensor, own);
    gpupool_torch_free(tensor, (ssize_t)SIZE, 0, own);
    assert_false(gate_was_passed(&gate));                /* the CPU did not wait, */
    MUST_BE(gpupool_free(tensor, own), GPUPOOL_E_STALE); /* and it was freed */
    for (unsigned i = 0; i < TENSORS; i++) {
        tensors[i] = gpupool_torch_malloc((ssize_t)SIZE, 0, own);
        assert_non_null(tensors[i]);
        met = met || tensors[i] == tensor;
        MUST(gpupool_set(client, 0, tensors[i], (int)i, SIZE, own));
    }
    MUST(gpupool_stream_synchronize(client, 0, own)); /* the tensors' stream does not wait either */
    assert_false(gate_was_passed(&gate));
    gate_open(&gate);
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    for (unsigned i = 0; i < TENSORS; i++) {
        const uint8_t *bytes = room.data;
        MUST(gpupool_copy(client, 0, room.data, tensors[i], SIZE, own));
        MUST(gpupool_stream_synchronize(client, 0, own));
        for (uint64_t byte = 0; byte < SIZE; byte++)
            assert_int_equal(bytes[byte], i);
        gpupool_torch_free(tensors[i], (ssize_t)SIZE, 0, own);
    }
    assert_false(met);
    assert_true(stream_heaps_are_valid(client));
    MUST(gpupool_release(client, &room, GPUPOOL_NO_STREAM));
    gate_deinit(&gate);
    MUST(gpupool_stream_destroy(client, 0, own));
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_free_does_not_wait_for_a_further_stream_and_the_memory_does),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
