/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client library with a daemon that behaves: opening, pools and their devices, options, errors and their
 * texts, and many threads on one connection. Buffers and segments have programs of their own.
 */
#include <gpupool/pair.h>
#include <pthread.h>

#include "gpu/sim/sim.h"
#include "tests/unit/client_fixture.h"

_Static_assert(GPUPOOL_VERSION_MAJOR == 0 && GPUPOOL_VERSION_MINOR == 2 && GPUPOOL_VERSION_PATCH == 0,
               "the header's version is the one that version_is_the_headers expects");

static void version_is_the_headers(void **state) {
    (void)state;
    assert_string_equal(gpupool_version(), "0.2.0");
}

static void pools_are_listed_and_found(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct gpupool_pool pools[3];
    size_t count = 0;
    uint32_t id = 0;

    assert_int_equal(gpupool_gpu_kind(client), GPUPOOL_GPU_SIM);
    assert_string_equal(gpupool_socket_path(client), daemon_.path);
    assert_ok(gpupool_pools(client, NULL, 0, &count));
    assert_int_equal(count, 3);
    assert_ok(gpupool_pools(client, pools, 3, &count));
    assert_int_equal(pools[0].kind, GPUPOOL_POOL_HOST);
    assert_int_equal(pools[0].device, -1);
    assert_string_equal(pools[0].uuid, "");
    assert_int_equal(pools[2].kind, GPUPOOL_POOL_DEVICE);
    assert_int_equal(pools[2].device, 0); /* by UUID: the daemon calls it 5 */
    assert_memory_equal(pools[2].uuid, "GPU-", 4);

    assert_ok(gpupool_device_pool(client, 0, &id));
    assert_int_equal(id, FALSE_POOL_DEVICE);
    assert_ok(gpupool_device_pool(client, -1, &id));
    assert_int_equal(id, FALSE_POOL_DEVICE);
    assert_error(gpupool_device_pool(client, 1, &id),
                 GPUPOOL_E_NO_POOL); /* a device that the daemon does not serve */
    assert_error(gpupool_device_pool(client, 4000, &id), GPUPOOL_E_NO_POOL);
    assert_ok(gpupool_host_pool(client, FALSE_NODE_B, &id));
    assert_int_equal(id, FALSE_POOL_HOST_B);
    assert_ok(gpupool_host_pool(client, -1, &id));
    assert_true(id == FALSE_POOL_HOST);
    assert_error(gpupool_host_pool(client, 78, &id), GPUPOOL_E_NO_POOL);
    assert_text_has("node 78");
    gpupool_close(client);
    false_daemon_await(&daemon_, &daemon_.byes, 1);
}

/* A machine with several nodes, and devices on them, is not at hand: the list of devices says so here. */
static void host_memory_of_a_pair_is_of_the_devices_node(void **state) {
    (void)state;
    static const struct {
        int node;
        uint32_t pool;
    } cases[] = {{FALSE_NODE_B, FALSE_POOL_HOST_B}, {78, FALSE_POOL_HOST}, {-1, FALSE_POOL_HOST}};
    struct gpupool_client *client = start(NULL);
    struct gpupool_pair pair;
    void *memory;

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(gpupool_pair_init(&pair, client, 0, 0));
        client->session.devices.list[0].numa_node = cases[i].node;
        assert_ok(gpupool_pair_host(&pair, 10000, &memory, GPUPOOL_NO_STREAM));
        assert_int_equal(pair.host.buffer.pool, cases[i].pool);
        assert_ok(gpupool_pair_clear(&pair, GPUPOOL_NO_STREAM));
    }
    gpupool_close(client);
    false_daemon_await(&daemon_, &daemon_.byes, 1);
}

static void nothing_is_asked_that_cannot_be_answered(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct gpupool_buffer buffer = {0}, garbage = {.data = &garbage, .lease = 9, .kind = 7};
    struct gpupool_token token;
    size_t count;
    uint32_t id;

    unsigned before = daemon_.acquires;
    assert_error(gpupool_acquire(NULL, 1, 1, NULL, 0, 0, &buffer), GPUPOOL_E_INVALID);
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 0, NULL, 0, 0, &buffer), GPUPOOL_E_INVALID);
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, 0, 4, &buffer), GPUPOOL_E_INVALID);
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, 0, 0, NULL), GPUPOOL_E_INVALID);
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, UINT64_MAX, NULL, 0, 0, &buffer),
                 GPUPOOL_E_TOO_LARGE);
    assert_error(gpupool_acquire(client, 99, 1, NULL, 0, 0, &buffer), GPUPOOL_E_NO_POOL);
    assert_text_has("pool 99");
    assert_int_equal(daemon_.acquires, before);
    assert_error(gpupool_release(client, NULL, NULL), GPUPOOL_E_INVALID);
    assert_error(gpupool_release(client, &buffer, NULL), GPUPOOL_E_STALE);
    assert_error(gpupool_release(client, &garbage, NULL), GPUPOOL_E_INVALID);
    garbage.kind = GPUPOOL_POOL_DEVICE;
    garbage.device = 4000;
    assert_error(gpupool_release(client, &garbage, NULL), GPUPOOL_E_INVALID);
    garbage.kind = GPUPOOL_POOL_HOST;
    garbage.capacity_bytes = 777;
    assert_error(gpupool_shrink(client, &garbage, 3, NULL), GPUPOOL_E_INVALID);
    assert_error(gpupool_share(client, &garbage, GPUPOOL_NO_STREAM, NULL), GPUPOOL_E_INVALID);
    assert_error(gpupool_share(client, &garbage, GPUPOOL_NO_STREAM, &token), GPUPOOL_E_STALE);
    assert_error(gpupool_attach(client, NULL, GPUPOOL_NO_STREAM, 0, &buffer), GPUPOOL_E_INVALID);
    assert_error(gpupool_pools(client, NULL, 1, &count), GPUPOOL_E_INVALID);
    assert_error(gpupool_host_pool(client, -2, &id), GPUPOOL_E_INVALID);
    assert_error(gpupool_stream_create(client, 0, NULL), GPUPOOL_E_INVALID);
    assert_error(gpupool_stream_create(client, -1, &garbage.data), GPUPOOL_E_INVALID);
    assert_error(gpupool_copy(client, 0, NULL, &garbage, 1, NULL), GPUPOOL_E_INVALID);
    gpupool_close(client);
    gpupool_close(NULL);
}

static void texts_say_what_failed_where_and_why(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct gpupool_buffer buffer = {0};

    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 2 * MIB, NULL, GPUPOOL_NOW, 0, &buffer),
                 GPUPOOL_E_EXHAUSTED);
    assert_text_has("acquiring 2 MiB from pool 1");
    assert_text_has("pid 4711 has them all");
    assert_null(buffer.data);

    assert_int_equal(gpu_sim_fail("ipc_open", 1, GPU_ERROR_MAP_BUFFER_OBJECT_FAILED), 0);
    assert_error(gpupool_acquire(client, FALSE_POOL_DEVICE, 4096, NULL, GPUPOOL_NOW, 0, &buffer),
                 GPUPOOL_E_DRIVER);
    assert_text_has("acquiring 4 KiB from pool 2");
    assert_text_has("4 MiB");
    assert_text_has("device 0 (GPU-");
    assert_text_has("cudaErrorMapBufferObjectFailed");
    false_daemon_await(&daemon_, &daemon_.releases, 1); /* the lease was given back */
    assert_int_equal(daemon_.leases, 0);

    /* The description is not repeated, so it must have been kept. */
    assert_ok(gpupool_acquire(client, FALSE_POOL_DEVICE, 4096, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_ok(gpupool_release(client, &buffer, NULL));

    char text[200];
    snprintf(text, sizeof text, "%s", gpupool_error_text());
    gpupool_close(client);
    assert_string_equal(gpupool_error_text(), text);

    for (int error = 0; error >= -40; error--)
        assert_memory_equal(gpupool_error_name(error), "GPUPOOL_", 8);
    assert_string_equal(gpupool_error_name(GPUPOOL_E_NO_GPU), "GPUPOOL_E_NO_GPU");
    assert_string_equal(gpupool_error_name(-1000), "GPUPOOL_E_unknown");
}

static void long_texts_are_cut_between_characters(void **state) {
    (void)state;
    char text[ERROR_TEXT_SIZE + 8];

    for (unsigned shift = 0; shift < 4; shift++) {
        memset(text, 'x', sizeof text);
        for (unsigned i = shift; i + 3 < sizeof text; i += 3)
            memcpy(text + i, "\xe2\x82\xac", 3); /* a euro sign */
        text[sizeof text - 1] = '\0';
        error_set(-1, "%s", text);
        size_t length = strlen(gpupool_error_text());
        assert_in_range(length, ERROR_TEXT_SIZE - 4, ERROR_TEXT_SIZE - 1);
        assert_int_equal((length - shift) % 3, 0);
        error_prefix(-1, "ab");
        length = strlen(gpupool_error_text());
        assert_in_range(length, ERROR_TEXT_SIZE - 4, ERROR_TEXT_SIZE - 1);
        assert_int_equal((length - 4 - shift) % 3, 0);
    }
}

static void options_of_other_versions_are_understood(void **state) {
    (void)state;
    struct {
        struct gpupool_options known;
        uint64_t later;
    } options = {.known = options_for(daemon_.path)};
    struct gpupool_client *client = NULL;

    false_daemon_run(&daemon_);
    options.known.struct_size = sizeof options;
    assert_ok(gpupool_open(&options.known, &client)); /* of a later header, but asks for nothing new */
    gpupool_close(client);
    client = NULL;
    options.later = 1;
    assert_error(gpupool_open(&options.known, &client), GPUPOOL_E_INVALID);
    options.known.struct_size = 0;
    assert_error(gpupool_open(&options.known, &client), GPUPOOL_E_INVALID);
    options.known.struct_size = sizeof options.known;
    options.known.flags = 0x80;
    assert_error(gpupool_open(&options.known, &client), GPUPOOL_E_INVALID);
    assert_error(gpupool_open(&options.known, NULL), GPUPOOL_E_INVALID);
    assert_null(client);
    options.known.struct_size =
        offsetof(struct gpupool_options, daemon_path); /* of an earlier one: flags unread */
    assert_ok(gpupool_open(&options.known, &client));
    gpupool_close(client);
    options.known = options_for(daemon_.path);
    options.known.prepare_host_bytes = MIB;
    options.known.struct_size = offsetof(struct gpupool_options, prepare_host_bytes);
    unsigned acquires = daemon_.acquires;
    assert_ok(gpupool_open(&options.known, &client)); /* of one without this option: it prepares nothing */
    gpupool_close(client);
    assert_int_equal(daemon_.acquires, acquires);
}

static void socket_is_found_in_the_environment(void **state) {
    (void)state;
    struct gpupool_client *client = NULL;

    false_daemon_run(&daemon_);
    setenv("GPUPOOL_SOCKET", daemon_.path, 1);
    assert_ok(gpupool_open(NULL, &client));
    assert_string_equal(gpupool_socket_path(client), daemon_.path);
    gpupool_close(client);
    unsetenv("GPUPOOL_SOCKET");
}

/* --- many threads --- */

#define THREADS 8
#define ROUNDS  100

/* Holds requests back until each thread has one, and answers them in another order than they came. */
struct shuffle {
    struct proto_message held[THREADS];
    unsigned count, round;
};

static bool answer_shuffled(struct false_daemon *daemon, struct false_session *session,
                            const struct proto_message *request) {
    struct shuffle *shuffle = daemon->user;

    if (request->header.operation != PROTO_QUERY)
        return false;
    shuffle->held[shuffle->count++] = *request;
    if (shuffle->count < THREADS)
        return true;
    shuffle->count = 0;
    shuffle->round++;
    for (unsigned i = 0; i < THREADS; i++) {
        static const unsigned steps[] = {1, 3, 5, 7}; /* coprime to THREADS */
        unsigned turn = (shuffle->round + i * steps[shuffle->round / 8 % 4]) % THREADS;
        false_daemon_serve(daemon, session, &shuffle->held[turn]);
    }
    return true;
}

struct worker {
    struct gpupool_client *client;
    unsigned number;
    pthread_t thread;
    int failures;
};

static void *query_many(void *argument) {
    struct worker *worker = argument;
    struct gpupool_buffer buffer;
    uint64_t size = 1000 + worker->number;

    if (gpupool_acquire(worker->client, FALSE_POOL_HOST, size, NULL, GPUPOOL_FOREVER, 0, &buffer) != 0) {
        worker->failures = -1;
        return NULL;
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct gpupool_buffer_info info = {0};
        if (gpupool_query(worker->client, &buffer, &info) != 0 || info.buffer.size_bytes != size ||
            info.buffer.data != buffer.data)
            worker->failures++;
    }
    if (gpupool_release(worker->client, &buffer, NULL) != 0)
        worker->failures++;
    return NULL;
}

static void each_thread_gets_its_own_reply(void **state) {
    (void)state;
    struct shuffle *shuffle = calloc(1, sizeof *shuffle);
    daemon_.user = shuffle;
    struct gpupool_client *client = start(answer_shuffled);
    struct worker workers[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.client = client, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, query_many, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        TEST_JOIN(workers[i].thread, NULL);
        assert_int_equal(workers[i].failures, 0);
    }
    assert_int_equal(shuffle->round, ROUNDS);
    assert_int_equal(daemon_.leases, 0);
    gpupool_close(client);
    free(shuffle);
}

/* --- no GPU --- */

static void host_pools_work_without_touching_a_gpu(void **state) {
    (void)state;
    struct gpupool_options options = options_for(daemon_.path);
    struct gpupool_client *client = NULL;
    struct gpupool_buffer buffer = {0};
    struct gpupool_pool pools[3];
    size_t count;
    uint32_t id;
    void *stream;

    false_daemon_run(&daemon_);
    options.flags |= GPUPOOL_OPEN_NO_CUDA;
    assert_ok(gpupool_open(&options, &client));
    assert_int_equal(gpu_sim_fail("any", 1, GPU_ERROR_UNKNOWN), 0);
    assert_ok(gpupool_pools(client, pools, 3, &count));
    assert_int_equal(pools[2].device, -1);
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1000, NULL, GPUPOOL_NOW, GPUPOOL_ZERO, &buffer));
    assert_int_equal(((char *)buffer.data)[999], 0);
    assert_ok(gpupool_release(client, &buffer, NULL));
    assert_error(gpupool_acquire(client, FALSE_POOL_DEVICE, 1, NULL, GPUPOOL_NOW, 0, &buffer),
                 GPUPOOL_E_NO_GPU);
    assert_error(gpupool_device_pool(client, -1, &id), GPUPOOL_E_NO_GPU);
    assert_error(gpupool_stream_create(client, 0, &stream), GPUPOOL_E_NO_GPU);
    gpupool_close(client);
    assert_false(gpu_sim_failed()); /* no call of the driver was made */
}

static void daemon_without_a_gpu_serves_host_pools(void **state) {
    (void)state;
    struct gpupool_buffer buffer;
    uint32_t id;

    daemon_.gpu = PROTO_GPU_NONE;
    struct gpupool_client *client = start(NULL);
    assert_int_equal(gpupool_gpu_kind(client), GPUPOOL_GPU_NONE);
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1000, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_ok(gpupool_release(client, &buffer, NULL));
    assert_error(gpupool_device_pool(client, 0, &id), GPUPOOL_E_NO_GPU);
    assert_text_has("the daemon serves no GPU");
    gpupool_close(client);
}

int main(void) {
    fixture_init();
    const struct CMUnitTest tests[] = {
        TEST(version_is_the_headers),
        TEST(pools_are_listed_and_found),
        TEST(host_memory_of_a_pair_is_of_the_devices_node),
        TEST(nothing_is_asked_that_cannot_be_answered),
        TEST(texts_say_what_failed_where_and_why),
        TEST(long_texts_are_cut_between_characters),
        TEST(options_of_other_versions_are_understood),
        TEST(socket_is_found_in_the_environment),
        TEST(each_thread_gets_its_own_reply),
        TEST(host_pools_work_without_touching_a_gpu),
        TEST(daemon_without_a_gpu_serves_host_pools),
    };
    int failed = cmocka_run_group_tests_name("client", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
