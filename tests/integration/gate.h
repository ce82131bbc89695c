/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_GATE_H
#define TESTS_INTEGRATION_GATE_H
/* A gate at which a stream stands until the test opens it. For tests that play the client themselves. */
#include "gpu/gpu.h"
#include "tests/integration/cache_fixture.h"

/* A stream that stands at a gate, with a mark behind it that is made when it has gone through. */
struct gate {
    struct gpupool_client *client;
    struct gpupool_buffer word, mark; /* host memory that the GPU can write */
    int device;
    void *stream;
    atomic_bool is_by; /* the test has come by without waiting: see gate_open_afterwards() */
};

static inline void gate_init_on(struct gate *gate, struct gpupool_client *client, int device) {
    gate->client = client;
    gate->device = device;
    atomic_init(&gate->is_by, false);
    gate->word = acquire(client, GPUPOOL_POOL_HOST, 8, NULL);
    gate->mark = acquire(client, GPUPOOL_POOL_HOST, 8, NULL);
    MUST(gpupool_stream_create(client, device, &gate->stream));
}

static inline void gate_init(struct gate *gate, struct gpupool_client *client) {
    gate_init_on(gate, client, 0);
}

static inline uint64_t *gate_word(struct gate *gate, struct gpupool_buffer *buffer) {
    (void)gate;
    return buffer->data;
}

static inline void gate_close(struct gate *gate) {
    const struct gpu *gpu = gate->client->session.devices.gpu;
    uint64_t *word = gate_word(gate, &gate->word), *mark = gate_word(gate, &gate->mark);

    __atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(mark, 0, __ATOMIC_SEQ_CST);
    unsigned device = (unsigned)gate->device;
    assert_int_equal(gpu->stream_wait64(device, gate->stream, word, 1), 0);
    assert_int_equal(gpu->stream_write64(device, gate->stream, mark, 7), 0);
}

static inline void gate_open(struct gate *gate) {
    __atomic_store_n(gate_word(gate, &gate->word), 1, __ATOMIC_SEQ_CST);
}

static inline bool gate_was_passed(struct gate *gate) {
    return __atomic_load_n(gate_word(gate, &gate->mark), __ATOMIC_SEQ_CST) == 7;
}

/* Opens it after a while: a call that does not wait for the stream is back long before. */
static inline void *gate_open_late(void *argument) {
    for (unsigned i = 0; i < 10; i++)
        test_pause();
    gate_open(argument);
    return NULL;
}

/* Opens it when the test has come by it, or, where something waits that should not, in the end:
 * gate->is_by says which. */
static inline void *gate_open_afterwards(void *argument) {
    struct gate *gate = argument;
    uint64_t end_ns = clock_now_ns() + TEST_WAIT_NS / 4;
    while (!atomic_load(&gate->is_by) && clock_now_ns() < end_ns)
        test_pause();
    gate_open(gate);
    return NULL;
}

static inline void gate_deinit(struct gate *gate) {
    MUST(gpupool_stream_synchronize(gate->client, gate->device, gate->stream));
    MUST(gpupool_release(gate->client, &gate->word, GPUPOOL_NO_STREAM));
    MUST(gpupool_release(gate->client, &gate->mark, GPUPOOL_NO_STREAM));
    MUST(gpupool_trim(gate->client, NULL)); /* before a stream goes */
    MUST(gpupool_stream_destroy(gate->client, gate->device, gate->stream));
}

/* A request that waits for the memory is not served before the gate opens, and is served then. */
static inline void gate_hands_over(struct gate *gate, unsigned kind, uint64_t size_bytes,
                                   struct puppet *puppet) {
    puppet_send_acquire(puppet, 0, kind, size_bytes, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_sum(&daemon_, "waiters") == 1);
    for (unsigned i = 0; i < 20; i++)
        test_pause();
    assert_false(puppet_has_answered(puppet));
    assert_false(gate_was_passed(gate));
    gate_open(gate);
    PUPPET_MUST(puppet, puppet_receive(puppet));
    assert_true(gate_was_passed(gate));
    PUPPET_MUST(puppet, puppet_release(puppet, 0));
}

#endif
