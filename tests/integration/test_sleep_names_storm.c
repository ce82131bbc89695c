/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A publisher that publishes one generation after the other, and threads that read them at random: they sleep, wake, change,
 * close and open. Each generation is one byte, other than those before it. So a reader that has buffers of two generations,
 * or of none, is seen.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/integration/sleep_names_fixture.h"

#define READERS     3u
#define GENERATIONS 60u
#define MARKS       9u /* bytes of a buffer that are compared */

struct reader {
    struct gpupool_client *client;
    atomic_bool *ends; /* the publisher has published its last */
    uint64_t random;
    struct gpupool_name *name; /* NULL: closed */
    bool is_asleep;
    struct places places;
    unsigned n_woken, n_changed;
};

static const unsigned char *byte_of(const struct gpupool_buffer *buffer, unsigned mark) {
    return (const unsigned char *)buffer->data + (buffer->size_bytes - 1) / (MARKS - 1) * mark;
}

/* Simulated device memory can be read by the CPU. The publisher's work was waited for (GPUPOOL_NO_STREAM). */
static void expect_one_generation(const struct reader *reader) {
    const struct gpupool_buffer *buffers = gpupool_name_buffers(reader->name, NULL);
    const struct places now = places_of(reader->name);
    unsigned char byte = *byte_of(&buffers[0], 0);

    assert_memory_equal(&now, &reader->places, sizeof now);
    assert_int_not_equal(byte, 0);
    for (unsigned i = 0; i < SET; i++)
        for (unsigned mark = 0; mark < MARKS; mark++)
            assert_int_equal(*byte_of(&buffers[i], mark), byte);
}

static void open_again(struct reader *reader) {
    MUST(gpupool_open_name(reader->client, NAME, 0, GPUPOOL_NAME_CAN_SLEEP, GPUPOOL_NO_STREAM, TEST_WAIT_NS,
                           &reader->name));
    reader->places = places_of(reader->name);
    reader->is_asleep = false;
}

static void step(struct reader *reader) {
    uint64_t what = test_random(&reader->random) % 8;

    if (reader->name == NULL) {
        open_again(reader);
    } else if (what == 0) {
        MUST(gpupool_close_name(reader->client, reader->name, GPUPOOL_NO_STREAM));
        reader->name = NULL;
        return;
    } else if (reader->is_asleep) {
        uint64_t least = what < 4 ? gpupool_name_generation(reader->name) : 0;
        MUST(gpupool_wake_name(reader->client, reader->name, least, GPUPOOL_NO_STREAM, TEST_WAIT_NS));
        assert_true(gpupool_name_generation(reader->name) >= least);
        reader->is_asleep = false;
        reader->n_woken++;
    } else if (what < 4) {
        MUST(gpupool_sleep_name(reader->client, reader->name, GPUPOOL_NO_STREAM));
        reader->is_asleep = true;
        return;
    } else {
        uint64_t next = gpupool_name_generation(reader->name) + 1;
        int r = gpupool_wake_name(reader->client, reader->name, next, GPUPOOL_NO_STREAM, GPUPOOL_NOW);
        assert_true(r == 0 || r == GPUPOOL_E_NO_NAME);
        reader->n_changed += r == 0;
    }
    expect_one_generation(reader);
}

static void *read_at_random(void *argument) {
    struct reader *reader = argument;

    for (bool is_last = false; !is_last; step(reader))
        is_last = atomic_load(reader->ends);
    if (reader->name == NULL)
        open_again(reader);
    MUST(gpupool_close_name(reader->client, reader->name, GPUPOOL_NO_STREAM));
    return NULL;
}

static void publish_all(struct gpupool_client *client) {
    uint64_t random = 7;
    struct set set = SET_OF_TWO;

    for (unsigned i = 1; i <= GENERATIONS; i++) {
        set_acquire(client, &set);
        for (unsigned j = 0; j < SET; j++)
            MUST(gpupool_set(client, 0, set.buffers[j].data, (int)i, set.sizes[j], NULL));
        set_publish(client, &set, i > 1 ? GPUPOOL_NAME_SAME_LAYOUT : 0);
        set_release(client, &set);
        for (uint64_t pauses = test_random(&random) % 3; pauses > 0; pauses--)
            test_pause();
    }
}

/* Two readers share a client, and the third has one without a cache. */
static void readers_have_one_generation_or_another(void **state) {
    struct reader readers[READERS];
    pthread_t threads[READERS];
    struct test_daemon daemon;
    unsigned n_woken = 0, n_changed = 0;
    atomic_bool ends = false;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0), *shared = sleep_open(&daemon, 0);
    for (unsigned i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.ends = &ends, .random = 1 + i, .client = shared};
        if (i == 2)
            readers[i].client = sleep_open(&daemon, GPUPOOL_OPEN_NO_CACHE);
        assert_int_equal(pthread_create(&threads[i], NULL, read_at_random, &readers[i]), 0);
    }
    publish_all(publisher);
    atomic_store(&ends, true);
    for (unsigned i = 0; i < READERS; i++) {
        TEST_JOIN(threads[i], NULL);
        n_woken += readers[i].n_woken;
        n_changed += readers[i].n_changed;
    }
    print_message("%u woken, %u changed\n", n_woken, n_changed);
    assert_true(n_woken > 0 && n_changed > 0);
    gpupool_close(readers[2].client);
    gpupool_close(shared);
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_have_one_generation_or_another),
    };

    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
