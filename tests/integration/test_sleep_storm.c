/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many sleepers at random, against a model that knows of each buffer whether it sleeps, where its memory is, what it
 * holds, and how much of the pool is leased. Then several threads, whose clients share a pool that is too small for
 * all, and which acquire ordinary buffers besides.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "tests/integration/sleep_fixture.h"

#define BUFFERS   10u
#define BYTES_MAX (9 * MIB)
#define STEPS     1200u
#define THREADS   4u
#define SLEEP_NS  (20 * NS_PER_MS) /* the host pool has room for few of them */
#define MARKS     9u               /* words of a buffer that are written and compared */

/* --- contents: simulated device memory can be reached by the CPU --- */

static uint64_t *mark_of(const struct gpupool_buffer *buffer, unsigned i) {
    uint64_t offset = (buffer->capacity_bytes - sizeof(uint64_t)) / (MARKS - 1) * i / 8 * 8;

    return (uint64_t *)(void *)((char *)buffer->data + offset);
}

static void write_marks(const struct gpupool_buffer *buffer, uint64_t seed) {
    for (unsigned i = 0; i < MARKS; i++)
        *mark_of(buffer, i) = seed + i;
}

static bool has_marks(const struct gpupool_buffer *buffer, uint64_t seed) {
    for (unsigned i = 0; i < MARKS; i++)
        if (*mark_of(buffer, i) != seed + i)
            return false;
    return true;
}

/* --- the model --- */

enum model_state {
    MODEL_NONE,
    MODEL_AWAKE,
    MODEL_ASLEEP
};

struct model_buffer {
    enum model_state state;
    enum gpupool_keep keep; /* while asleep */
    struct gpupool_buffer buffer;
    const void *data; /* where it was from the first */
    uint64_t seed;    /* of what it holds; 0: it holds nothing that is known */
};

struct world {
    struct gpupool_client *client;
    uint32_t pool;
    uint64_t random;
    struct model_buffer buffers[BUFFERS];
    unsigned n_woken, n_refused;
};

static uint64_t leased_by_model(const struct world *world) {
    uint64_t bytes = 0;

    for (unsigned i = 0; i < BUFFERS; i++) {
        const struct model_buffer *model = &world->buffers[i];
        if (model->state == MODEL_AWAKE ||
            (model->state == MODEL_ASLEEP && model->keep == GPUPOOL_KEEP_ON_GPU))
            bytes += model->buffer.capacity_bytes;
    }
    return bytes;
}

static bool is_refusal(int r) {
    return r == GPUPOOL_E_EXHAUSTED;
}

static void step_acquire(struct world *world, struct model_buffer *model) {
    uint64_t size_bytes = 1 + test_random(&world->random) % BYTES_MAX;
    int r = gpupool_acquire(world->client, world->pool, size_bytes, NULL, GPUPOOL_NOW, GPUPOOL_CAN_SLEEP,
                            &model->buffer);

    if (is_refusal(r)) {
        world->n_refused++;
        return;
    }
    MUST(r);
    model->state = MODEL_AWAKE;
    model->data = model->buffer.data;
    model->seed = 0;
}

static void step_awake(struct world *world, struct model_buffer *model) {
    if (model->seed != 0)
        assert_true(has_marks(&model->buffer, model->seed));
    if (test_random(&world->random) % 8 == 0) {
        MUST(gpupool_release(world->client, &model->buffer, NULL));
        model->state = MODEL_NONE;
        return;
    }
    model->seed = test_random(&world->random) | 1;
    write_marks(&model->buffer, model->seed);
    model->keep = keeps[test_random(&world->random) % KEEPS];
    int r = gpupool_sleep(world->client, &model->buffer, model->keep, NULL);
    if (is_refusal(r) || r == GPUPOOL_E_TIMED_OUT) { /* no host memory, or a slow machine */
        world->n_refused++;
        MUST(gpupool_stream_synchronize(world->client, 0, NULL)); /* it may copy still */
        assert_true(r == GPUPOOL_E_TIMED_OUT || model->keep == GPUPOOL_KEEP_IN_HOST);
        assert_true(has_marks(&model->buffer, model->seed));
        return;
    }
    MUST(r);
    model->state = MODEL_ASLEEP;
}

static void step_asleep(struct world *world, struct model_buffer *model) {
    bool zeroes = test_random(&world->random) % 2 == 0;

    assert_false(is_readable(model->data));
    if (test_random(&world->random) % 16 == 0) {
        MUST(gpupool_release(world->client, &model->buffer, NULL));
        model->state = MODEL_NONE;
        return;
    }
    int r = gpupool_wake(world->client, &model->buffer, NULL, GPUPOOL_NOW, zeroes ? GPUPOOL_ZERO : 0);
    if (is_refusal(r)) {
        world->n_refused++;
        assert_int_not_equal(model->keep, GPUPOOL_KEEP_ON_GPU);
        return;
    }
    MUST(r);
    world->n_woken++;
    assert_ptr_equal(model->buffer.data, model->data);
    MUST(gpupool_stream_synchronize(world->client, 0, NULL));
    if (model->keep == GPUPOOL_KEEP_NOTHING) {
        for (uint64_t at = 0; zeroes && at < model->buffer.size_bytes; at += 4093)
            assert_int_equal(((const char *)model->buffer.data)[at], 0);
        model->seed = 0;
    }
    model->state = MODEL_AWAKE;
}

static void step(struct world *world) {
    struct model_buffer *model = &world->buffers[test_random(&world->random) % BUFFERS];

    switch (model->state) {
    case MODEL_NONE:
        step_acquire(world, model);
        break;
    case MODEL_AWAKE:
        step_awake(world, model);
        break;
    case MODEL_ASLEEP:
        step_asleep(world, model);
        break;
    }
}

static void world_open(struct world *world, const struct test_daemon *daemon, uint32_t flags, uint64_t seed) {
    *world = (struct world){.client = sleep_open_for(daemon, flags, SLEEP_NS), .random = seed};
    world->pool = device_pool(world->client);
}

static void buffers_sleep_as_the_model_says(void **state) {
    struct test_daemon daemon;
    struct world world;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
        world_open(&world, &daemon, client_kinds[kind], kind + 1);
        for (unsigned i = 0; i < STEPS; i++) {
            step(&world);
            if (i % 16 == 0)
                WAIT_UNTIL(leased_on_device(&daemon) == leased_by_model(&world));
        }
        print_message("%u woken, %u refused\n", world.n_woken, world.n_refused);
        assert_true(world.n_woken > STEPS / 8 && world.n_refused > 0);
        gpupool_close(world.client);
    }
    sleep_stop(&daemon);
}

/* --- threads --- */

static void *storm(void *argument) {
    struct world *world = argument;
    struct gpupool_buffer plain;

    for (unsigned i = 0; i < STEPS / 3; i++) {
        step(world);
        if (i % 4 != 0)
            continue;
        int r = gpupool_acquire(world->client, world->pool, 1 + test_random(&world->random) % BYTES_MAX, NULL,
                                GPUPOOL_NOW, 0, &plain);
        if (r == GPUPOOL_E_EXHAUSTED)
            continue;
        MUST(r);
        write_marks(&plain, i);
        assert_true(has_marks(&plain, i));
        MUST(gpupool_release(world->client, &plain, NULL));
    }
    return NULL;
}

/* Two threads with a client of their own each, and two that share one. */
static void threads_sleep_beside_each_other(void **state) {
    struct world worlds[THREADS];
    struct test_daemon daemon;
    pthread_t threads[THREADS];
    unsigned n_woken = 0;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    for (unsigned i = 0; i < THREADS; i++) {
        if (i + 1 < THREADS) {
            world_open(&worlds[i], &daemon, i == 0 ? GPUPOOL_OPEN_NO_CACHE : 0, 100 + i);
            continue;
        }
        worlds[i] = worlds[i - 1];
        worlds[i].random = 100 + i;
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, storm, &worlds[i]), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        TEST_JOIN(threads[i], NULL);
        n_woken += worlds[i].n_woken;
    }
    print_message("%u woken\n", n_woken);
    assert_true(n_woken > STEPS / 16);
    for (unsigned i = 0; i + 1 < THREADS; i++)
        gpupool_close(worlds[i].client);
    sleep_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_sleep_as_the_model_says),
        cmocka_unit_test(threads_sleep_beside_each_other),
    };

    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
