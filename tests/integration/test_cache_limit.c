/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's cache in a pool that is full: threads of one process that wait for each other's memory, and of
 * two processes' clients.
 */
#include <sched.h>

#include "tests/integration/cache_fixture.h"
#include "tests/random.h"

#define COUNT  POOL_MIB /* buffers of 1 MiB fill the pool */
#define NEEDED 4u       /* MiB that a thread waits for */

static int compare(const void *a, const void *b) {
    const struct gpupool_buffer *left = a, *right = b;
    return left->data < right->data ? -1 : left->data > right->data;
}

/* Takes all of the pool, in order of addresses. */
static void fill(struct gpupool_client *client, unsigned kind, void *stream,
                 struct gpupool_buffer buffers[COUNT]) {
    for (unsigned i = 0; i < COUNT; i++)
        buffers[i] = acquire(client, kind, MIB, stream);
    qsort(buffers, COUNT, sizeof *buffers, compare);
}

/* The first of NEEDED buffers that lie side by side. */
static unsigned find_row(const struct gpupool_buffer buffers[COUNT]) {
    for (unsigned i = 0, row = 1; i + 1 < COUNT; i++) {
        row = (char *)buffers[i].data + MIB == (char *)buffers[i + 1].data ? row + 1 : 1;
        if (row == NEEDED)
            return i + 2 - NEEDED;
    }
    fail_msg("no %u buffers lie side by side", NEEDED);
    return 0;
}

struct waiting {
    struct gpupool_client *client;
    uint32_t pool;
    void *stream;
    uint64_t size_bytes;
    struct gpupool_buffer buffer;
    int result;
};

static void *wait_for_memory(void *argument) {
    struct waiting *waiting = argument;
    waiting->result = gpupool_acquire(waiting->client, waiting->pool, waiting->size_bytes, waiting->stream,
                                      TEST_WAIT_NS, 0, &waiting->buffer);
    return NULL;
}

/* One thread holds all, on one stream; another waits, on another stream or the same. Memory that is
 * released piece by piece serves it as soon as a range is long enough. */
static void wait_for_pieces(unsigned kind, void *held_on, void *waited_on, struct gpupool_client *client) {
    struct gpupool_buffer buffers[COUNT];
    struct waiting waiting = {
        .client = client, .pool = pool_of(client, kind), .stream = waited_on, .size_bytes = NEEDED * MIB};
    void *released_on = kind == GPUPOOL_POOL_HOST ? GPUPOOL_NO_STREAM : held_on;
    pthread_t thread;

    fill(client, kind, held_on, buffers);
    unsigned row = find_row(buffers);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_memory, &waiting), 0);
    WAIT_UNTIL(daemon_sum(&daemon_, "waiters") == 1);
    for (unsigned i = 0; i < COUNT; i += 2)
        if (i < row || i >= row + NEEDED)
            MUST(gpupool_release(client, &buffers[i], released_on));
    assert_int_equal(daemon_sum(&daemon_, "waiters"), 1); /* no two of them are neighbours */
    for (unsigned i = row; i < row + NEEDED; i++)
        MUST(gpupool_release(client, &buffers[i], released_on));
    TEST_JOIN(thread, NULL);
    MUST(waiting.result);
    for (unsigned i = 1; i < COUNT; i += 2)
        if (i < row || i >= row + NEEDED)
            MUST(gpupool_release(client, &buffers[i], released_on));
    MUST(gpupool_release(client, &waiting.buffer, kind == GPUPOOL_POOL_HOST ? GPUPOOL_NO_STREAM : waited_on));
    assert_true(stream_heaps_are_valid(client));
}

static void one_thread(unsigned kind) {
    empty_the_pools();
    struct gpupool_client *client = open_cached();
    wait_for_pieces(kind, NULL, NULL, client);
    close_cached(client);
}

static void a_thread_that_waits_gets_what_another_releases_in_pieces(void **state) {
    (void)state;
    for_each_kind(one_thread);
}

static void also_where_another_stream_used_it(void **state) {
    struct gpupool_client *client;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    client = open_cached_with_stream(&stream);
    wait_for_pieces(GPUPOOL_POOL_DEVICE, stream, NULL, client);
    MUST(gpupool_trim(client, NULL));
    MUST(gpupool_stream_destroy(client, 0, stream));
    close_cached(client);
}

/* --- a crowd --- */

#define THREADS     8u
#define SLOTS       64u
#define SHARE_BYTES (POOL_MIB * MIB * 9 / 10 / THREADS)
#define ROUNDS      4000u

struct worker {
    pthread_t thread;
    struct gpupool_client *client;
    uint32_t pool;
    uint64_t seed;
    unsigned number, failed, spoilt;
};

/* Marks a buffer's first and last words. */
static void mark(const struct gpupool_buffer *buffer, uint64_t value) {
    uint64_t *words = buffer->data;
    words[0] = words[buffer->size_bytes / sizeof *words - 1] = value;
}

static bool is_marked(const struct gpupool_buffer *buffer, uint64_t value) {
    const uint64_t *words = buffer->data;
    return words[0] == value && words[buffer->size_bytes / sizeof *words - 1] == value;
}

/* Replaces buffers at random, and holds no more than its share. */
static void *work(void *argument) {
    struct worker *worker = argument;
    struct gpupool_buffer buffers[SLOTS];
    uint64_t held_bytes = 0;

    memset(buffers, 0, sizeof buffers);
    for (unsigned round = 0; round < ROUNDS + SLOTS; round++) {
        unsigned slot = round < ROUNDS ? (unsigned)(random_next(&worker->seed) % SLOTS) : round - ROUNDS;
        struct gpupool_buffer *buffer = &buffers[slot];
        uint64_t value = (uint64_t)worker->number << 32 | slot;
        if (buffer->size_bytes > 0) {
            held_bytes -= buffer->capacity_bytes;
            worker->spoilt += !is_marked(buffer, value);
            worker->failed += gpupool_release(worker->client, buffer, GPUPOOL_NO_STREAM) != 0;
            memset(buffer, 0, sizeof *buffer);
        }
        uint64_t size_bytes = (8 + random_next(&worker->seed) % (32 * KIB)) / 8 * 8
                              << random_next(&worker->seed) % 4;
        if (round >= ROUNDS || held_bytes + size_bytes + size_bytes / 8 + KIB > SHARE_BYTES)
            continue;
        int r = gpupool_acquire(worker->client, worker->pool, size_bytes, GPUPOOL_NO_STREAM, TEST_WAIT_NS, 0,
                                buffer);
        worker->failed += r != 0;
        if (r == 0) {
            held_bytes += buffer->capacity_bytes;
            mark(buffer, value);
        }
    }
    return NULL;
}

/* 8 threads use nine tenths of a pool, by as many clients as that. */
static void crowd(unsigned n_clients) {
    struct gpupool_client *clients[THREADS] = {0};
    struct worker workers[THREADS];

    empty_the_pools();
    for (unsigned i = 0; i < n_clients; i++)
        clients[i] = open_cached();
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.client = clients[i % n_clients],
                                     .pool = pool_of(clients[i % n_clients], GPUPOOL_POOL_HOST),
                                     .seed = random_seed(i),
                                     .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        TEST_JOIN(workers[i].thread, NULL);
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(workers[i].failed, 0);
        assert_int_equal(workers[i].spoilt, 0);
    }
    for (unsigned i = 0; i < n_clients; i++)
        assert_true(stream_heaps_are_valid(clients[i]));
    while (--n_clients > 0)
        gpupool_close(clients[n_clients]);
    close_cached(clients[0]);
}

static void threads_that_use_nearly_all_of_a_pool_are_all_served(void **state) {
    (void)state;
    crowd(1);
}

static void so_are_those_of_several_clients(void **state) {
    (void)state;
    crowd(2);
    crowd(THREADS);
}

/* --- without the daemon's questions --- */

/* A client of which no thread answers the daemon: its requests are served by its own releases, or not at
 * all. */
static struct gpupool_client *open_deaf(void) {
    struct gpupool_client *client = open_client(&daemon_, GPUPOOL_OPEN_NO_THREAD, GPUPOOL_FOREVER);
    client->session.connection.questions.fd = -1;
    return client;
}

/* All of the pool, so that its parts can join. */
static void make_one_segment(struct gpupool_client *client, unsigned kind) {
    struct gpupool_buffer all = acquire(client, kind, POOL_MIB * MIB, stream_of(kind));
    MUST(gpupool_release(client, &all, stream_of(kind)));
    MUST(gpupool_trim(client, NULL));
}

#define LARGE_BYTES (8 * MIB) /* from the other half of a stream heap than buffers of 1 MiB */
#define LARGE_COUNT (POOL_MIB * MIB / 2 / LARGE_BYTES)
#define SMALL_COUNT (POOL_MIB / 2)

/* All memory of the pool is in two halves of one stream heap, and in many leases. Nothing but all of it
 * together is long enough for the request. */
static void wait_for_both_halves(unsigned kind) {
    struct gpupool_buffer small[SMALL_COUNT], large[LARGE_COUNT];
    pthread_t thread;

    empty_the_pools();
    struct gpupool_client *client = open_deaf();
    make_one_segment(client, kind);
    for (unsigned i = 0; i < LARGE_COUNT; i++) {
        large[i] = acquire(client, kind, LARGE_BYTES, stream_of(kind));
        for (unsigned j = 0; j < SMALL_COUNT / LARGE_COUNT; j++)
            small[i * (SMALL_COUNT / LARGE_COUNT) + j] = acquire(client, kind, MIB, stream_of(kind));
    }
    struct waiting waiting = {.client = client,
                              .pool = pool_of(client, kind),
                              .stream = stream_of(kind),
                              .size_bytes = POOL_MIB * MIB};
    assert_int_equal(pthread_create(&thread, NULL, wait_for_memory, &waiting), 0);
    WAIT_UNTIL(daemon_sum(&daemon_, "waiters") == 1);
    for (unsigned i = 0; i < SMALL_COUNT; i++)
        MUST(gpupool_release(client, &small[i], stream_of(kind)));
    for (unsigned i = 0; i < LARGE_COUNT; i++)
        MUST(gpupool_release(client, &large[i], stream_of(kind)));
    TEST_JOIN(thread, NULL);
    MUST(waiting.result);
    MUST(gpupool_release(client, &waiting.buffer, stream_of(kind)));
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

static void a_request_gets_what_lies_in_several_leases_without_a_question(void **state) {
    (void)state;
    for_each_kind(wait_for_both_halves);
}

#define STARVING_ROUNDS (TEST_IS_THREAD_SANITIZED ? 150u : 600u)

struct starving {
    pthread_t thread;
    struct gpupool_client *client;
    uint32_t pool;
    void *stream;
    uint64_t most_bytes, seed;
    unsigned failed;
};

/* Holds one buffer at a time. */
static void *hold_one(void *argument) {
    struct starving *starving = argument;
    struct gpupool_buffer buffer;

    for (unsigned round = 0; round < STARVING_ROUNDS; round++) {
        uint64_t size_bytes = 1 + random_next(&starving->seed) % starving->most_bytes;
        if (gpupool_acquire(starving->client, starving->pool, size_bytes, starving->stream, TEST_WAIT_NS, 0,
                            &buffer) != 0) {
            starving->failed++;
            continue;
        }
        sched_yield();
        starving->failed += gpupool_release(starving->client, &buffer, starving->stream) != 0;
    }
    return NULL;
}

/* Threads of a process that hold one buffer each, of sizes up to most_bytes. */
static void starve(unsigned kind, uint64_t most_bytes) {
    struct starving starving[THREADS];

    /* In an arena a request can wait for a slot whose work is done after the last release: the daemon's
     * question finds it. */
    bool may_ask = kind == GPUPOOL_POOL_DEVICE && test_exports_vmm();
    empty_the_pools();
    struct gpupool_client *client = may_ask ? open_cached() : open_deaf();
    make_one_segment(client, kind);
    for (unsigned i = 0; i < THREADS; i++) {
        starving[i] = (struct starving){.client = client,
                                        .pool = pool_of(client, kind),
                                        .stream = stream_of(kind),
                                        .most_bytes = most_bytes,
                                        .seed = random_seed(i)};
        assert_int_equal(pthread_create(&starving[i].thread, NULL, hold_one, &starving[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        TEST_JOIN(starving[i].thread, NULL);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(starving[i].failed, 0);
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

/* All of them fit together in nine tenths of the pool. */
static void starve_in_pieces(unsigned kind) {
    starve(kind, SHARE_BYTES);
}

/* Some have to wait until others release. */
static void starve_in_halves(unsigned kind) {
    starve(kind, POOL_MIB * MIB / 2);
}

static void large_requests_do_not_wait_for_a_question_behind_small_ones(void **state) {
    (void)state;
    for_each_kind(starve_in_pieces);
    for_each_kind(starve_in_halves);
}

/* --- a shortage that begins at any time --- */

#define RELEASES (TEST_IS_THREAD_SANITIZED ? 40000u : 400000u) /* there each takes ten times as long */

struct marking {
    struct shortage *shortage;
    uint32_t pool;
    atomic_bool over;
};

/* Marks the pool as short and takes the mark back, as fast as it can. */
static void *begin_shortages(void *argument) {
    struct marking *marking = argument;
    while (!atomic_load_explicit(&marking->over, memory_order_relaxed)) {
        atomic_fetch_or(&marking->shortage->short_pools, shortage_bit(marking->pool));
        atomic_fetch_and(&marking->shortage->short_pools, ~shortage_bit(marking->pool));
    }
    return NULL;
}

/* A piece that goes into the thread's bin and to the daemon as well comes back in two buffers. */
static void release_during_shortages(unsigned kind) {
    struct gpupool_buffer buffer;
    pthread_t thread;

    empty_the_pools();
    struct gpupool_client *client = open_cached();
    struct marking marking = {.shortage = &client->cache.shortage, .pool = pool_of(client, kind)};
    struct gpupool_buffer kept = acquire(client, kind, KIB, stream_of(kind));
    assert_int_equal(pthread_create(&thread, NULL, begin_shortages, &marking), 0);
    for (unsigned i = 0; i < RELEASES; i++) {
        buffer = acquire(client, kind, KIB, stream_of(kind));
        cache_put(&client->cache, cache_piece(&buffer)); /* not by the fast path, which asks for no mark */
    }
    atomic_store(&marking.over, true);
    TEST_JOIN(thread, NULL);
    MUST(gpupool_release(client, &kept, stream_of(kind)));
    MUST(gpupool_trim(client, NULL));
    assert_true(stream_heaps_are_valid(client));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    close_cached(client);
}

static void a_release_during_which_a_shortage_begins_gives_its_memory_once(void **state) {
    (void)state;
    for_each_kind(release_during_shortages);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_that_waits_gets_what_another_releases_in_pieces),
        cmocka_unit_test(also_where_another_stream_used_it),
        cmocka_unit_test(threads_that_use_nearly_all_of_a_pool_are_all_served),
        cmocka_unit_test(so_are_those_of_several_clients),
        cmocka_unit_test(a_request_gets_what_lies_in_several_leases_without_a_question),
        cmocka_unit_test(large_requests_do_not_wait_for_a_question_behind_small_ones),
        cmocka_unit_test(a_release_during_which_a_shortage_begins_gives_its_memory_once),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
