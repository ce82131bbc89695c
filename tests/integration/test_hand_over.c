/* SPDX-License-Identifier: Apache-2.0 */
/* A client's cache where one thread takes and another gives back, what the daemon hears of that, and what its
 * statistics show. */
#include <sched.h>

#include "tests/integration/cache_fixture.h"

/* --- from thread to thread --- */

#define RING       48u
#define BUFFERS    20000u
#define LIFE       500u /* of a consumer: so many buffers */
#define HOG_BYTES  (60 * MIB)
#define HOG_ROUNDS 5u

struct handed {
    struct gpupool_buffer buffer;
    uint64_t seal;
};

/* One producer, consumers one after the other. A slot is full when produced is past it. */
struct belt {
    struct gpupool_client *client;
    uint32_t pool;
    struct handed ring[RING];
    atomic_uint produced, consumed, running;
    atomic_int result; /* the library's first error, or 1: the contents are not there */
};

static void belt_fail(struct belt *belt, int result) {
    int none = 0;
    atomic_compare_exchange_strong(&belt->result, &none, result);
}

static bool belt_waits(struct belt *belt) {
    sched_yield();
    return atomic_load(&belt->result) == 0;
}

static void *consumer_main(void *argument) {
    struct belt *belt = argument;
    unsigned first = atomic_load(&belt->consumed);

    for (unsigned i = first; i < first + LIFE && i < BUFFERS; i++) {
        struct handed *handed = &belt->ring[i % RING];
        while (atomic_load(&belt->produced) == i)
            if (!belt_waits(belt))
                return NULL;
        const char *data = handed->buffer.data;
        uint64_t last;
        memcpy(&last, data + handed->buffer.capacity_bytes - sizeof last, sizeof last);
        if (memcmp(data, &handed->seal, sizeof handed->seal) != 0 || last != handed->seal)
            belt_fail(belt, 1);
        int r = gpupool_release(belt->client, &handed->buffer, GPUPOOL_NO_STREAM);
        if (r != 0)
            belt_fail(belt, r);
        atomic_store(&belt->consumed, i + 1);
    }
    return NULL;
}

static void *producer_main(void *argument) {
    struct belt *belt = argument;
    uint64_t random = 7;

    for (unsigned i = 0; i < BUFFERS; i++) {
        struct handed *handed = &belt->ring[i % RING];
        uint64_t size = 512 + test_random(&random) % (UINT64_C(1) << (test_random(&random) % 8 + 10));
        while (i - atomic_load(&belt->consumed) >= RING)
            if (!belt_waits(belt))
                break;
        if (atomic_load(&belt->result) != 0)
            break;
        int r = gpupool_acquire(belt->client, belt->pool, size, NULL, GPUPOOL_FOREVER, 0, &handed->buffer);
        if (r != 0) {
            belt_fail(belt, r);
            break;
        }
        handed->seal = test_random(&random);
        memcpy(handed->buffer.data, &handed->seal, sizeof handed->seal);
        memcpy((char *)handed->buffer.data + handed->buffer.capacity_bytes - sizeof handed->seal,
               &handed->seal, sizeof handed->seal);
        atomic_store(&belt->produced, i + 1);
    }
    atomic_fetch_sub(&belt->running, 1);
    return NULL;
}

static void *consumers_main(void *argument) {
    struct belt *belt = argument;
    pthread_t thread;

    while (atomic_load(&belt->consumed) < BUFFERS && atomic_load(&belt->result) == 0) {
        if (pthread_create(&thread, NULL, consumer_main, belt) != 0)
            belt_fail(belt, 1);
        else if (test_join(thread, NULL) != 0) /* its cache goes, wherever the others are */
            belt_fail(belt, 1);
    }
    atomic_fetch_sub(&belt->running, 1);
    return NULL;
}

/* Wants nearly all of the pool, again and again: the daemon asks the others for what they keep idle. */
static void *hog_main(void *argument) {
    struct belt *belt = argument;
    struct gpupool_client *client = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0);
    struct gpupool_buffer buffer;

    for (unsigned round = 0; round < HOG_ROUNDS && atomic_load(&belt->running) > 0; round++) {
        int r = gpupool_acquire(client, belt->pool, HOG_BYTES, NULL, 50 * NS_PER_MS, 0, &buffer);
        if (r == 0)
            r = gpupool_release(client, &buffer, GPUPOOL_NO_STREAM);
        else if (r == GPUPOOL_E_EXHAUSTED) /* the belt was in the way, and is being asked */
            r = 0;
        if (r != 0)
            belt_fail(belt, r);
        sched_yield();
    }
    gpupool_close(client);
    return NULL;
}

static void memory_goes_from_thread_to_thread_while_threads_end_and_idle_memory_is_asked_for(void **state) {
    struct belt belt = {.client = open_cached(), .running = 2};
    void *(*mains[])(void *) = {producer_main, consumers_main, hog_main};
    pthread_t threads[3];
    unsigned invalid = 0, trims = 0;

    (void)state;
    belt.pool = pool_of(belt.client, GPUPOOL_POOL_HOST);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, mains[i], &belt), 0);
    while (atomic_load(&belt.running) > 0) {
        if (trims++ % 4 == 0) {
            int r = gpupool_trim(belt.client, NULL);
            if (r != 0)
                belt_fail(&belt, r);
        }
        invalid += !stream_heaps_are_valid(belt.client);
        for (unsigned i = 0; i < 50; i++) /* lets warm spells come about */
            sched_yield();
    }
    for (unsigned i = 0; i < 3; i++)
        TEST_JOIN(threads[i], NULL);
    assert_int_equal(belt.result, 0);
    assert_int_equal(belt.consumed, BUFFERS);
    assert_int_equal(invalid, 0);
    assert_int_equal(daemon_sum(&daemon_, "in_use_bytes"), 0);
    MUST(gpupool_trim(belt.client, NULL));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0); /* nothing was left on the way */
    close_cached(belt.client);
}

/* Memory between threads serves other sizes before the daemon is asked, and goes back when it is idle. */
static void memory_on_its_way_between_threads_is_idle_memory(void **state) {
    const unsigned count = 1500; /* of 4 KiB: more than two bins hold */
    struct gpupool_client *client = open_client(&daemon_, 0, GPUPOOL_FOREVER);
    struct gpupool_buffer *buffers = calloc(count, sizeof *buffers), others[8];

    (void)state;
    for (unsigned i = 0; i < 8; i++)
        others[i] = acquire(client, GPUPOOL_POOL_HOST, MIB, NULL);
    for (unsigned i = 0; i < 8; i++)
        MUST(gpupool_release(client, &others[i], GPUPOOL_NO_STREAM));
    uint64_t acquires = daemon_sum(&daemon_, "acquires");
    for (unsigned i = 0; i < count; i++)
        buffers[i] = acquire(client, GPUPOOL_POOL_HOST, 4096, NULL);
    for (unsigned i = 0; i < count; i++)
        MUST(gpupool_release(client, &buffers[i], GPUPOOL_NO_STREAM));
    for (unsigned i = 0; i < 6; i++) /* of nearly all of it */
        others[i] = acquire(client, GPUPOOL_POOL_HOST, MIB, NULL);
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    for (unsigned i = 0; i < 6; i++)
        MUST(gpupool_release(client, &others[i], GPUPOOL_NO_STREAM));
    for (unsigned i = 0; i < count; i++)
        buffers[i] = acquire(client, GPUPOOL_POOL_HOST, 4096, NULL);
    for (unsigned i = 0; i < count; i++)
        MUST(gpupool_release(client, &buffers[i], GPUPOOL_NO_STREAM));
    MUST(gpupool_trim(client, NULL));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    free(buffers);
    close_cached(client);
}

/* --- messages --- */

static void small_requests_share_a_message_where_the_pool_is_short_of_room(void **state) {
    const unsigned holes = 8, count = holes * (MIB / 4096) - 8;
    struct gpupool_client *hog = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0), *client;
    struct gpupool_buffer *buffers = calloc(count, sizeof *buffers), held[POOL_MIB];

    (void)state;
    empty_the_pools();
    for (unsigned i = 0; i < POOL_MIB; i++)
        held[i] = acquire(hog, GPUPOOL_POOL_HOST, MIB, NULL);
    for (unsigned i = 0; i < holes; i++) /* no two of them side by side: an extent of 2 MiB is nowhere */
        MUST(gpupool_release(hog, &held[i * 4], GPUPOOL_NO_STREAM));
    client = open_cached();
    uint64_t acquires = daemon_sum(&daemon_, "acquires");
    for (unsigned i = 0; i < count; i++)
        MUST(gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_HOST), 4096, NULL, GPUPOOL_NOW, 0,
                             &buffers[i]));
    assert_in_range(daemon_sum(&daemon_, "acquires") - acquires, 1, count / 16);
    for (unsigned i = 0; i < count; i++)
        MUST(gpupool_release(client, &buffers[i], GPUPOOL_NO_STREAM));
    gpupool_close(client);
    free(buffers);
    close_cached(hog);
}

/* --- statistics --- */

static void *release_elsewhere(void *argument) {
    struct belt *belt = argument;
    for (unsigned i = 0; i < RING; i++)
        if (gpupool_release(belt->client, &belt->ring[i].buffer, GPUPOOL_NO_STREAM) != 0)
            return argument;
    return NULL;
}

static void what_is_in_use_is_what_buffers_hold(void **state) {
    struct belt belt = {.client = open_cached()};
    struct gpupool_buffer buffer, shared;
    struct gpupool_token token;
    uint64_t bytes = 0;
    pthread_t thread;
    void *wrong;

    (void)state;
    for (unsigned i = 0; i < RING; i++) {
        belt.ring[i].buffer = acquire(belt.client, GPUPOOL_POOL_HOST, (i + 1) * 1500, NULL);
        bytes += belt.ring[i].buffer.capacity_bytes;
    }
    assert_int_equal(daemon_sum(&daemon_, "in_use_bytes"), bytes);
    assert_int_equal(daemon_sum(&daemon_, "cached_bytes"), daemon_sum(&daemon_, "leased_bytes") - bytes);
    /* given back by a thread that ends */
    assert_int_equal(pthread_create(&thread, NULL, release_elsewhere, &belt), 0);
    TEST_JOIN(thread, &wrong);
    assert_null(wrong);
    assert_int_equal(daemon_sum(&daemon_, "in_use_bytes"), 0);
    /* in parts */
    buffer = acquire(belt.client, GPUPOOL_POOL_HOST, MIB, NULL);
    MUST(gpupool_shrink(belt.client, &buffer, 4096, GPUPOOL_NO_STREAM));
    assert_int_equal(daemon_sum(&daemon_, "in_use_bytes"), 4096);
    /* a shared one is in use as the lease that it is */
    shared = acquire(belt.client, GPUPOOL_POOL_HOST, 64 * KIB, NULL);
    MUST(gpupool_share(belt.client, &shared, GPUPOOL_NO_STREAM, &token));
    assert_int_equal(daemon_sum(&daemon_, "in_use_bytes"), 4096 + shared.capacity_bytes);
    MUST(gpupool_release(belt.client, &shared, GPUPOOL_NO_STREAM));
    assert_int_equal(daemon_sum(&daemon_, "in_use_bytes"), 4096);
    MUST(gpupool_release(belt.client, &buffer, GPUPOOL_NO_STREAM));
    assert_int_equal(daemon_sum(&daemon_, "in_use_bytes"), 0);
    assert_int_equal(daemon_sum(&daemon_, "cached_bytes"), daemon_sum(&daemon_, "leased_bytes"));
    close_cached(belt.client);
}

/* The sums of a client's lines for all pools. */
static uint64_t sum_of_hits(struct gpupool_client *client, uint64_t *ret_misses) {
    uint64_t hits = 0;

    *ret_misses = 0;
    for (unsigned i = 0; i < PROTO_PAGE_COUNTERS; i++) {
        hits += client->session.page.memory->counters[i].hits;
        *ret_misses += client->session.page.memory->counters[i].misses;
    }
    return hits;
}

static void each_acquire_is_a_hit_or_a_miss(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer buffers[100];
    uint64_t misses;

    (void)state;
    uint64_t acquires = daemon_sum(&daemon_, "acquires");
    for (unsigned i = 0; i < 100; i++)
        buffers[i] = acquire(client, GPUPOOL_POOL_HOST, 200000, NULL);
    uint64_t hits = sum_of_hits(client, &misses);
    assert_int_equal(misses, daemon_sum(&daemon_, "acquires") - acquires);
    assert_int_equal(hits, 100 - misses);
    for (unsigned i = 0; i < 100; i++)
        MUST(gpupool_release(client, &buffers[i], GPUPOOL_NO_STREAM));
    for (unsigned i = 0; i < 100; i++) {
        buffers[0] = acquire(client, GPUPOOL_POOL_HOST, 200000, NULL);
        MUST(gpupool_release(client, &buffers[0], GPUPOOL_NO_STREAM));
    }
    assert_int_equal(sum_of_hits(client, &misses), hits + 100);
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_goes_from_thread_to_thread_while_threads_end_and_idle_memory_is_asked_for),
        cmocka_unit_test(memory_on_its_way_between_threads_is_idle_memory),
        cmocka_unit_test(small_requests_share_a_message_where_the_pool_is_short_of_room),
        cmocka_unit_test(what_is_in_use_is_what_buffers_hold),
        cmocka_unit_test(each_acquire_is_a_hit_or_a_miss),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
