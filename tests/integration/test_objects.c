/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads of one client, each with a pair and a synchronised array of its own, on streams that all of
 * them share: objects of different threads have nothing to do with each other. */
#include "tests/integration/pair_fixture.h" /* says how many GPUs there are, before */

#include <gpupool/synced.h>

#define THREADS   6u
#define ROUNDS    (TEST_IS_THREAD_SANITIZED ? 60u : 250u)
#define STREAMS   4u
#define BYTES_MAX (UINT64_C(96) << 10)

struct worker {
    pthread_t thread;
    struct gpupool_client *client;
    void *(*streams)[STREAMS]; /* of each device: null, per-thread, two that were created */
    int n_devices;
    unsigned number;
    uint64_t random;
    /* its objects */
    int device;
    struct gpupool_pair pair;
    struct gpupool_synced *array;
    unsigned char *adopted;
    uint64_t size_bytes;
};

static unsigned below(struct worker *worker, unsigned limit) {
    return (unsigned)(test_random(&worker->random) % limit);
}

static void *any_stream(struct worker *worker) {
    return worker->streams[worker->device][below(worker, STREAMS)];
}

/* The one that its pair is used on. */
static void *own_stream(const struct worker *worker) {
    return worker->streams[worker->device][worker->number % STREAMS];
}

static void begin(struct worker *worker) {
    worker->device = (int)below(worker, (unsigned)worker->n_devices);
    worker->size_bytes = 1 + below(worker, BYTES_MAX);
    MUST(gpupool_pair_init(&worker->pair, worker->client, worker->device,
                           below(worker, 2) == 0 ? GPUPOOL_PAIR_ZERO : 0));
    MUST(gpupool_synced_create(worker->client, worker->device, worker->size_bytes, &worker->array));
}

static void end(struct worker *worker) {
    MUST(gpupool_pair_clear(&worker->pair, own_stream(worker)));
    MUST(gpupool_synced_destroy(worker->array,
                                below(worker, 2) == 0 ? any_stream(worker) : GPUPOOL_NO_STREAM));
}

static bool is_all(const unsigned char *memory, int byte, uint64_t size_bytes) {
    return memory[0] == byte && memcmp(memory, memory + 1, size_bytes - 1) == 0;
}

static void use_pair(struct worker *worker) {
    struct gpupool_pair *pair = &worker->pair;
    void *stream = own_stream(worker), *host = NULL, *on_device = NULL;
    uint64_t size_bytes = 1 + below(worker, BYTES_MAX);
    int byte = 1 + (int)below(worker, 255);

    if (below(worker, 8) == 0)
        MUST(gpupool_pair_adopt_host(pair, worker->adopted, BYTES_MAX, stream));
    MUST(gpupool_pair_host(pair, size_bytes, &host, stream));
    MUST(gpupool_pair_device(pair, size_bytes, &on_device, stream));
    memset(host, byte, size_bytes);
    MUST(gpupool_pair_copy_to_device(pair, size_bytes, stream));
    MUST(gpupool_stream_synchronize(worker->client, worker->device, stream));
    memset(host, 0, size_bytes);
    MUST(gpupool_pair_copy_to_host(pair, size_bytes, stream));
    MUST(gpupool_stream_synchronize(worker->client, worker->device, stream));
    assert_true(is_all(host, byte, size_bytes));
}

static void use_array(struct worker *worker) {
    struct gpupool_synced *array = worker->array;
    int byte = 1 + (int)below(worker, 255);
    void *memory = NULL, *stream = any_stream(worker);

    MUST(gpupool_synced_host(array, GPUPOOL_OVERWRITE, &memory, stream));
    memset(memory, byte, worker->size_bytes);
    if (below(worker, 2) == 0)
        MUST(gpupool_synced_push(array, any_stream(worker)));
    MUST(gpupool_synced_device(array, GPUPOOL_READ, &memory, any_stream(worker)));
    MUST(gpupool_synced_device(array, GPUPOOL_WRITE, &memory, stream = any_stream(worker)));
    if (below(worker, 2) == 0)
        MUST(gpupool_set(worker->client, worker->device, memory, byte = 1 + (int)below(worker, 255),
                         worker->size_bytes, stream));
    if (below(worker, 4) == 0) {
        MUST(gpupool_pair_clear(&worker->pair, own_stream(worker)));
        worker->device = (int)below(worker, (unsigned)worker->n_devices);
        MUST(gpupool_pair_init(&worker->pair, worker->client, worker->device, 0));
        MUST(gpupool_synced_move(array, worker->device, any_stream(worker)));
    }
    if (below(worker, 2) == 0)
        MUST(gpupool_synced_pull(array, any_stream(worker)));
    MUST(gpupool_synced_host(array, GPUPOOL_READ, &memory, any_stream(worker)));
    assert_true(is_all(memory, byte, worker->size_bytes));
    worker->size_bytes = 1 + below(worker, BYTES_MAX);
    MUST(gpupool_synced_resize(array, worker->size_bytes));
}

static void *work(void *argument) {
    struct worker *worker = argument;

    begin(worker);
    for (unsigned round = 0; round < ROUNDS; round++) {
        use_pair(worker);
        use_array(worker);
        if (below(worker, 16) == 0) {
            end(worker);
            begin(worker);
        }
    }
    end(worker);
    return NULL;
}

static void objects_of_many_threads_are_in_nobodys_way(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    for (uint32_t flags = 0; flags <= GPUPOOL_OPEN_NO_CACHE; flags += GPUPOOL_OPEN_NO_CACHE) {
        struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
        void *streams[TEST_SIM_GPUS][STREAMS] = {{NULL, GPUPOOL_PER_THREAD}, {NULL, GPUPOOL_PER_THREAD}};
        struct worker workers[THREADS];
        int n_devices = test_has_devices(2) ? 2 : 1;
        for (int device = 0; device < n_devices; device++)
            for (unsigned i = 2; i < STREAMS; i++)
                MUST(gpupool_stream_create(client, device, &streams[device][i]));
        for (unsigned i = 0; i < THREADS; i++) {
            workers[i] = (struct worker){.client = client,
                                         .streams = streams,
                                         .n_devices = n_devices,
                                         .number = i,
                                         .random = 77 + i,
                                         .adopted = malloc(BYTES_MAX)};
            assert_non_null(workers[i].adopted);
            assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (unsigned i = 0; i < THREADS; i++) {
            TEST_JOIN(workers[i].thread, NULL);
            free(workers[i].adopted);
        }
        for (int device = 0; device < n_devices; device++)
            for (unsigned i = 2; i < STREAMS; i++) {
                MUST(gpupool_stream_synchronize(client, device, streams[device][i]));
                MUST(gpupool_stream_destroy(client, device, streams[device][i]));
            }
        assert_true(stream_heaps_are_valid(client));
        MUST(gpupool_trim(client, NULL));
        WAIT_UNTIL(leased() == 0);
        close_cached(client);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects_of_many_threads_are_in_nobodys_way),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
