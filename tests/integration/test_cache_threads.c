/* SPDX-License-Identifier: Apache-2.0 */
/* A client's cache among threads, forks and daemons that die. */
#include <sched.h>

#include "tests/integration/cache_fixture.h"

/* --- threads --- */

#define CROWD       32u
#define WARM_ROUNDS 100u /* until the process has what it takes for memory to be on its way */

struct consumer {
    struct gpupool_client *client;
    struct gpupool_buffer buffers[CROWD];
    sem_t full, empty;
    unsigned rounds;
    int result;
};

static void *consume(void *argument) {
    struct consumer *consumer = argument;

    for (unsigned round = 0; round < consumer->rounds && test_sem_wait(&consumer->full) == 0; round++) {
        for (unsigned i = 0; i < CROWD; i++) {
            int r = gpupool_release(consumer->client, &consumer->buffers[i], GPUPOOL_NO_STREAM);
            consumer->result = consumer->result != 0 ? consumer->result : r;
        }
        sem_post(&consumer->empty);
    }
    return NULL;
}

static void produce_and_consume(unsigned kind) {
    struct consumer consumer = {.client = open_cached(), .rounds = 200};
    uint32_t pool = pool_of(consumer.client, kind);
    uint64_t acquires = 0, releases = 0;
    pthread_t thread;

    sem_init(&consumer.full, 0, 0);
    sem_init(&consumer.empty, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, consume, &consumer), 0);
    int failed = 0;
    for (unsigned round = 0; round < consumer.rounds; round++) {
        for (unsigned i = 0; i < CROWD; i++) { /* an assertion here would leave the thread waiting */
            int r =
                gpupool_acquire(consumer.client, pool, 30000, NULL, GPUPOOL_FOREVER, 0, &consumer.buffers[i]);
            failed = failed != 0 ? failed : r;
        }
        sem_post(&consumer.full);
        TEST_SEM_WAIT(&consumer.empty);
        if (round == WARM_ROUNDS) {
            acquires = daemon_sum(&daemon_, "acquires");
            releases = daemon_sum(&daemon_, "releases");
        }
    }
    TEST_JOIN(thread, NULL);
    assert_int_equal(failed, 0);
    assert_int_equal(consumer.result, 0);
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    assert_int_equal(daemon_sum(&daemon_, "releases"), releases);
    assert_true(stream_heaps_are_valid(consumer.client));
    sem_destroy(&consumer.full);
    sem_destroy(&consumer.empty);
    close_cached(consumer.client);
}

static void what_one_thread_takes_another_gives_back_without_the_daemon(void **state) {
    (void)state;
    for_each_kind(produce_and_consume);
}

/* Leaves memory in its cache and lives on. */
static void *take_and_stay(void *argument) {
    struct consumer *consumer = argument;
    uint32_t pool;

    int r = gpupool_host_pool(consumer->client, -1, &pool);
    for (unsigned i = 0; r == 0 && i < CROWD; i++)
        r = gpupool_acquire(consumer->client, pool, 64 * KIB, NULL, GPUPOOL_FOREVER, 0,
                            &consumer->buffers[i]);
    for (unsigned i = 0; r == 0 && i < CROWD; i++)
        r = gpupool_release(consumer->client, &consumer->buffers[i], GPUPOOL_NO_STREAM);
    consumer->result = r;
    sem_post(&consumer->full);
    (void)test_sem_wait(&consumer->empty);
    return NULL;
}

static void what_lies_in_another_threads_cache_is_had_before_the_daemon_is_asked(void **state) {
    struct consumer consumer = {.client = open_cached()};
    struct gpupool_buffer buffers[CROWD];
    int failed = 0;
    pthread_t thread;

    (void)state;
    uint32_t pool = pool_of(consumer.client, GPUPOOL_POOL_HOST);
    sem_init(&consumer.full, 0, 0);
    sem_init(&consumer.empty, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, take_and_stay, &consumer), 0);
    TEST_SEM_WAIT(&consumer.full);
    uint64_t acquires = daemon_sum(&daemon_, "acquires");
    for (unsigned i = 0; i < CROWD; i++) {
        int r = gpupool_acquire(consumer.client, pool, 64 * KIB, NULL, GPUPOOL_FOREVER, 0, &buffers[i]);
        failed = failed != 0 ? failed : r;
    }
    uint64_t acquires_after = daemon_sum(&daemon_, "acquires");
    sem_post(&consumer.empty);
    TEST_JOIN(thread, NULL);
    assert_int_equal(consumer.result, 0);
    assert_int_equal(failed, 0);
    assert_int_equal(acquires_after, acquires);
    for (unsigned i = 0; i < CROWD; i++)
        MUST(gpupool_release(consumer.client, &buffers[i], GPUPOOL_NO_STREAM));
    sem_destroy(&consumer.full);
    sem_destroy(&consumer.empty);
    close_cached(consumer.client);
}

static void *take_and_end(void *argument) {
    struct gpupool_client *client = argument;
    struct gpupool_buffer buffers[CROWD];
    uint32_t pool;

    int r = gpupool_host_pool(client, -1, &pool);
    for (unsigned i = 0; r == 0 && i < CROWD; i++)
        r = gpupool_acquire(client, pool, 20000, NULL, GPUPOOL_FOREVER, 0, &buffers[i]);
    for (unsigned i = 0; r == 0 && i < CROWD; i++)
        r = gpupool_release(client, &buffers[i], GPUPOOL_NO_STREAM);
    return r == 0 ? NULL : argument;
}

static void a_threads_end_leaves_its_cache_to_the_others(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer buffers[CROWD];
    pthread_t thread;
    void *wrong;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, take_and_end, client), 0);
    TEST_JOIN(thread, &wrong);
    assert_null(wrong);
    uint64_t acquires = daemon_sum(&daemon_, "acquires");
    for (unsigned i = 0; i < CROWD; i++)
        buffers[i] = acquire(client, GPUPOOL_POOL_HOST, 20000, NULL);
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    for (unsigned i = 0; i < CROWD; i++)
        MUST(gpupool_release(client, &buffers[i], GPUPOOL_NO_STREAM));
    MUST(gpupool_trim(client, NULL));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    close_cached(client);
}

#define THREADS   4u
#define STEPS     20000u
#define HELD      16u
#define SWAPPED   8u
#define SIZE_BITS 18u /* 256 KiB */

struct held {
    struct gpupool_buffer buffer;
    uint64_t seal;
};

struct crowd {
    struct gpupool_client *client;
    uint32_t pool;
    pthread_mutex_t lock;
    struct held swapped[SWAPPED]; /* from thread to thread; under the lock */
    atomic_uint running;
};

struct member {
    struct crowd *crowd;
    uint64_t random;
    int result; /* the library's error, or 1: the contents are not there */
};

/* At both ends of what may be used. */
static void seal(struct held *held, uint64_t value) {
    held->seal = value;
    memcpy(held->buffer.data, &value, sizeof value);
    memcpy((char *)held->buffer.data + held->buffer.capacity_bytes - sizeof value, &value, sizeof value);
}

static bool is_sealed(const struct held *held) {
    const char *data = held->buffer.data;
    return memcmp(data, &held->seal, sizeof held->seal) == 0 &&
           memcmp(data + held->buffer.capacity_bytes - sizeof held->seal, &held->seal, sizeof held->seal) ==
               0;
}

static int crowd_step(struct member *member, struct held *held) {
    struct crowd *crowd = member->crowd;
    uint64_t what = test_random(&member->random);

    if (held->buffer.data == NULL) {
        uint64_t size = test_random(&member->random) % (UINT64_C(1) << (what % SIZE_BITS + 1)) + 1;
        int r = gpupool_acquire(crowd->client, crowd->pool, size, NULL, GPUPOOL_FOREVER, 0, &held->buffer);
        if (r == 0)
            seal(held, test_random(&member->random));
        return r;
    }
    if (!is_sealed(held))
        return 1;
    if (what % 8 == 0) {
        struct held *other = &crowd->swapped[what / 8 % SWAPPED], moved = *held;
        pthread_mutex_lock(&crowd->lock);
        *held = *other;
        *other = moved;
        pthread_mutex_unlock(&crowd->lock);
        return 0;
    }
    if (what % 8 == 1) {
        uint64_t size = test_random(&member->random) % held->buffer.capacity_bytes + 1;
        int r = gpupool_shrink(crowd->client, &held->buffer, size, GPUPOOL_NO_STREAM);
        if (r == 0)
            seal(held, held->seal);
        return r;
    }
    return gpupool_release(crowd->client, &held->buffer, GPUPOOL_NO_STREAM);
}

static void *crowd_main(void *argument) {
    struct member *member = argument;
    struct held held[HELD] = {0};

    for (unsigned step = 0; member->result == 0 && step < STEPS; step++)
        member->result = crowd_step(member, &held[test_random(&member->random) % HELD]);
    for (unsigned i = 0; i < HELD && member->result == 0; i++)
        if (held[i].buffer.data != NULL)
            member->result = is_sealed(&held[i])
                                 ? gpupool_release(member->crowd->client, &held[i].buffer, GPUPOOL_NO_STREAM)
                                 : 1;
    atomic_fetch_sub(&member->crowd->running, 1);
    return NULL;
}

static void four_threads_never_have_the_same_memory(void **state) {
    struct crowd crowd = {.client = open_cached(), .lock = PTHREAD_MUTEX_INITIALIZER, .running = THREADS};
    struct member members[THREADS];
    pthread_t threads[THREADS];
    unsigned trims = 0, invalid = 0;
    int trimmed = 0;

    (void)state;
    crowd.pool = pool_of(crowd.client, GPUPOOL_POOL_HOST);
    for (unsigned i = 0; i < THREADS; i++) {
        members[i] = (struct member){.crowd = &crowd, .random = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_main, &members[i]), 0);
    }
    while (atomic_load(&crowd.running) > 0) {
        int r = gpupool_trim(crowd.client, NULL);
        trimmed = trimmed != 0 ? trimmed : r;
        invalid += !stream_heaps_are_valid(crowd.client);
        trims++;
        sched_yield();
    }
    for (unsigned i = 0; i < THREADS; i++)
        TEST_JOIN(threads[i], NULL);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(members[i].result, 0);
    assert_int_equal(trimmed, 0);
    assert_int_equal(invalid, 0);
    assert_true(trims > 0);
    for (unsigned i = 0; i < SWAPPED; i++)
        if (crowd.swapped[i].buffer.data != NULL) {
            assert_true(is_sealed(&crowd.swapped[i]));
            MUST(gpupool_release(crowd.client, &crowd.swapped[i].buffer, NULL));
        }
    MUST(gpupool_trim(crowd.client, NULL));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    assert_true(stream_heaps_are_valid(crowd.client));
    close_cached(crowd.client);
}

/* --- ends --- */

static void hits_go_on_without_a_daemon(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    char text[TEST_CONFIG_SIZE];
    struct test_daemon daemon;

    (void)state;
    for (unsigned i = 0; i < count; i++) {
        daemon_start(&daemon, &(struct daemon_options){.config = test_config(text, POOL_MIB, POOL_MIB)});
        struct gpupool_client *client = open_client(&daemon, 0, GPUPOOL_FOREVER);
        uint32_t pool = pool_of(client, kinds[i]);
        struct gpupool_buffer buffer = acquire(client, kinds[i], 4096, NULL), large;
        struct gpupool_buffer shared = acquire(client, kinds[i], 4096, NULL);
        struct gpupool_buffer kept = acquire(client, kinds[i], 4096, NULL); /* and so its extent */
        struct gpupool_token token;
        MUST(gpupool_share(client, &shared, GPUPOOL_NO_STREAM, &token));
        MUST(puppet_write_pattern(client, &buffer, 21, NULL));
        daemon_crash(&daemon);
        assert_int_equal(puppet_read_pattern(client, &buffer, 21, NULL), 0);
        for (unsigned round = 0; round < 10; round++) {
            MUST(gpupool_release(client, &buffer, stream_of(kinds[i])));
            MUST(gpupool_acquire(client, pool, 4096, NULL, GPUPOOL_NOW, 0, &buffer));
        }
        MUST_BE(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token), GPUPOOL_E_DISCONNECTED);
        MUST_BE(gpupool_acquire(client, pool, 32 * MIB, NULL, GPUPOOL_FOREVER, 0, &large),
                GPUPOOL_E_DISCONNECTED);
        MUST(gpupool_release(client, &shared, stream_of(kinds[i])));
        MUST(gpupool_release(client, &buffer, stream_of(kinds[i])));
        MUST_BE(gpupool_trim(client, NULL), GPUPOOL_E_DISCONNECTED);
        MUST_BE(gpupool_trim(client, NULL), GPUPOOL_E_DISCONNECTED);
        /* and what is idle beside a buffer that lives is still to be had */
        MUST(gpupool_acquire(client, pool, 4096, NULL, GPUPOOL_NOW, 0, &buffer));
        MUST(gpupool_release(client, &buffer, stream_of(kinds[i])));
        MUST(gpupool_release(client, &kept, stream_of(kinds[i])));
        assert_true(stream_heaps_are_valid(client));
        gpupool_close(client);
        daemon_remove(&daemon);
    }
}

/* The first fault that a forked child finds, as a number. */
static int try_in_child(struct gpupool_client *client, uint32_t pool, struct gpupool_buffer *held) {
    struct gpupool_buffer buffer, copy = *held;

    if (gpupool_acquire(client, pool, 4096, NULL, GPUPOOL_NOW, 0, &buffer) != GPUPOOL_E_FORKED)
        return 1;
    if (gpupool_release(client, &copy, NULL) != GPUPOOL_E_FORKED)
        return 2;
    if (gpupool_trim(client, NULL) != GPUPOOL_E_FORKED)
        return 3;
    gpupool_close(client);
    if (TEST_IS_THREAD_SANITIZED) /* it wants no threads in a forked child */
        return 0;
    /* a client of its own is fine */
    client = open_client(&daemon_, GPUPOOL_OPEN_NO_CUDA, GPUPOOL_FOREVER);
    for (unsigned i = 0; i < 3; i++) {
        buffer = acquire(client, GPUPOOL_POOL_HOST, 4096, NULL);
        if (puppet_write_pattern(client, &buffer, 5, NULL) != 0 ||
            gpupool_release(client, &buffer, NULL) != 0)
            return 4;
    }
    if (gpupool_trim(client, NULL) != 0)
        return 5;
    gpupool_close(client);
    return 0;
}

static void *trim_until_told(void *argument) {
    struct crowd *crowd = argument;
    struct held held = {0};

    while (atomic_load(&crowd->running) > 0)
        if (gpupool_acquire(crowd->client, crowd->pool, 4096, NULL, GPUPOOL_FOREVER, 0, &held.buffer) != 0 ||
            gpupool_release(crowd->client, &held.buffer, GPUPOOL_NO_STREAM) != 0 ||
            gpupool_trim(crowd->client, NULL) != 0)
            return argument;
    return NULL;
}

static void a_forked_child_is_refused_and_the_parent_goes_on(void **state) {
    struct gpupool_client *client = open_cached();
    struct crowd crowd = {.client = client, .pool = pool_of(client, GPUPOOL_POOL_HOST), .running = 1};
    struct gpupool_buffer held = acquire(client, GPUPOOL_POOL_HOST, 4096, NULL);
    pthread_t thread;
    void *wrong;

    (void)state;
    MUST(puppet_write_pattern(client, &held, 31, NULL));
    /* Another thread is in the cache at the moment of each fork: what it had locked stays locked in the
     * child. */
    assert_int_equal(pthread_create(&thread, NULL, trim_until_told, &crowd), 0);
    int statuses[10];
    for (unsigned i = 0; i < 10; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(try_in_child(client, crowd.pool, &held));
        statuses[i] = pid < 0 ? -1 : test_wait(pid);
    }
    atomic_store(&crowd.running, 0);
    TEST_JOIN(thread, &wrong);
    assert_null(wrong);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(statuses[i], 0);
    assert_int_equal(puppet_read_pattern(client, &held, 31, NULL), 0);
    MUST(gpupool_release(client, &held, NULL));
    held = acquire(client, GPUPOOL_POOL_HOST, 4096, NULL);
    MUST(gpupool_release(client, &held, NULL));
    assert_true(stream_heaps_are_valid(client));
    WAIT_UNTIL(daemon_sessions(&daemon_, "active") == 1);
    close_cached(client);
}

int main(int argc, char **argv) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_thread_takes_another_gives_back_without_the_daemon),
        cmocka_unit_test(what_lies_in_another_threads_cache_is_had_before_the_daemon_is_asked),
        cmocka_unit_test(a_threads_end_leaves_its_cache_to_the_others),
        cmocka_unit_test(four_threads_never_have_the_same_memory),
        cmocka_unit_test(hits_go_on_without_a_daemon),
        cmocka_unit_test(a_forked_child_is_refused_and_the_parent_goes_on),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
