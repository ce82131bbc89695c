/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client library with a daemon that behaves: what each call does, alone and from many threads.
 */
#include <gpupool/pair.h>

#include "tests/unit/client_fixture.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu/sim.h"

_Static_assert(GPUPOOL_VERSION_MAJOR == 0 && GPUPOOL_VERSION_MINOR == 1 && GPUPOOL_VERSION_PATCH == 0,
               "the header's version is the one that version_is_the_headers expects");

static void version_is_the_headers(void **state) {
    (void)state;
    assert_string_equal(gpupool_version(), "0.1.0");
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
        client->devices.list[0].numa_node = cases[i].node;
        assert_ok(gpupool_pair_host(&pair, 10000, &memory, GPUPOOL_NO_STREAM));
        assert_int_equal(pair.host.buffer.pool, cases[i].pool);
        assert_ok(gpupool_pair_clear(&pair, GPUPOOL_NO_STREAM));
    }
    gpupool_close(client);
    false_daemon_await(&daemon_, &daemon_.byes, 1);
}

static void host_buffer_lives_from_acquire_to_release(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct gpupool_buffer buffer, copy;
    struct gpupool_buffer_info info;

    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 10000, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_int_equal(buffer.size_bytes, 10000);
    assert_int_equal(buffer.capacity_bytes, 10240);
    assert_int_equal(buffer.device, -1);
    assert_int_equal((uintptr_t)buffer.data % 512, 0);
    memset(buffer.data, 0x5a, buffer.capacity_bytes);

    assert_ok(gpupool_query(client, &buffer, &info));
    assert_ptr_equal(info.buffer.data, buffer.data);
    assert_int_equal(info.segment, FALSE_POOL_HOST);
    assert_int_equal(info.holders, 1);

    assert_error(gpupool_shrink(client, &buffer, 0, NULL), GPUPOOL_E_INVALID);
    assert_error(gpupool_shrink(client, &buffer, 10241, NULL), GPUPOOL_E_INVALID);
    assert_ok(gpupool_shrink(client, &buffer, 600, NULL));
    assert_int_equal(buffer.size_bytes, 600);
    assert_int_equal(buffer.capacity_bytes, 1024);
    assert_int_equal(daemon_.releases, 1);

    copy = buffer;
    assert_ok(gpupool_release(client, &buffer, NULL));
    assert_null(buffer.data);
    assert_int_equal(buffer.lease, 0);
    assert_error(gpupool_release(client, &buffer, NULL), GPUPOOL_E_STALE);
    assert_error(gpupool_release(client, &copy, NULL), GPUPOOL_E_STALE);
    assert_text_has("no such lease in this session");
    assert_non_null(copy.data); /* a failed release leaves the buffer alone */
    assert_error(gpupool_query(client, &copy, &info), GPUPOOL_E_STALE);
    assert_int_equal(daemon_.leases, 0);
    gpupool_close(client);
}

static void zeroed_buffers_read_zero(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    static const unsigned char zero[5000];
    unsigned char back[5000];
    struct gpupool_buffer buffer;
    void *stream;

    assert_ok(gpupool_stream_create(client, 0, &stream));
    for (int round = 0; round < 3; round++) {
        uint32_t pool = round == 0 ? FALSE_POOL_DEVICE : FALSE_POOL_HOST;
        void *own = round == 2 ? NULL : stream;
        for (int i = 0; i < 20; i++) { /* comes by the same offsets again, dirty */
            assert_ok(gpupool_acquire(client, pool, sizeof back, own, GPUPOOL_NOW, GPUPOOL_ZERO, &buffer));
            if (pool == FALSE_POOL_DEVICE)
                assert_ok(gpupool_copy(client, 0, back, buffer.data, sizeof back, own));
            if (own != NULL)
                assert_ok(gpupool_stream_synchronize(client, 0, own));
            if (pool == FALSE_POOL_HOST)
                memcpy(back, buffer.data, sizeof back);
            assert_memory_equal(back, zero, sizeof back);
            assert_ok(gpupool_set(client, 0, buffer.data, 0xff, buffer.capacity_bytes, own));
            assert_ok(gpupool_stream_synchronize(client, 0, own)); /* this daemon looks at no fence */
            assert_ok(gpupool_release(client, &buffer, own));
        }
    }
    assert_ok(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
}

static void tokens_reach_the_same_memory(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL), *other = open_client();
    struct gpupool_buffer buffer, shared = {0};
    struct gpupool_token token = {0};

    assert_error(gpupool_attach(other, &token, &shared), GPUPOOL_E_NO_TOKEN);
    assert_null(shared.data);
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 3000, NULL, GPUPOOL_NOW, 0, &buffer));
    memcpy(buffer.data, "by another mapping", 19);
    assert_ok(gpupool_share(client, &buffer, &token));
    assert_ok(gpupool_attach(other, &token, &shared));
    assert_int_equal(shared.size_bytes, 3000);
    assert_ptr_not_equal(shared.data, buffer.data);
    assert_string_equal(shared.data, "by another mapping");
    false_daemon_await(&daemon_, &daemon_.opened, 2);
    assert_ok(gpupool_release(other, &shared, NULL));
    gpupool_close(other);
    gpupool_close(client);
    false_daemon_await(&daemon_, &daemon_.session_count, 0);
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
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, 0, 2, &buffer), GPUPOOL_E_INVALID);
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
    assert_error(gpupool_share(client, &garbage, NULL), GPUPOOL_E_INVALID);
    assert_error(gpupool_share(client, &garbage, &token), GPUPOOL_E_STALE);
    assert_error(gpupool_attach(client, NULL, &buffer), GPUPOOL_E_INVALID);
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
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].failures, 0);
    }
    assert_int_equal(shuffle->round, ROUNDS);
    assert_int_equal(daemon_.leases, 0);
    gpupool_close(client);
    free(shuffle);
}

/* A driver table that counts, over the simulated one. */
static const struct gpu *real;
static struct gpu counting;
static unsigned register_calls, unregister_calls, ipc_open_calls, register_fails_at, synchronize_calls;
static uint64_t registered_bytes;
static int capture_answer; /* 0: no; 1: the stream is captured; else that error */

static int counting_register(void *memory, uint64_t size) {
    if (__atomic_add_fetch(&register_calls, 1, __ATOMIC_SEQ_CST) == register_fails_at)
        return GPU_ERROR_MEMORY_ALLOCATION;
    int error = real->host_register(memory, size);
    if (error == 0)
        __atomic_add_fetch(&registered_bytes, size, __ATOMIC_SEQ_CST);
    return error;
}

static int counting_unregister(void *memory) {
    __atomic_add_fetch(&unregister_calls, 1, __ATOMIC_SEQ_CST);
    return real->host_unregister(memory);
}

static int counting_ipc_open(unsigned device, const struct gpu_ipc_handle *handle, void **ret_memory) {
    __atomic_add_fetch(&ipc_open_calls, 1, __ATOMIC_SEQ_CST);
    return real->ipc_open(device, handle, ret_memory);
}

static int counting_synchronize(unsigned device, void *stream) {
    __atomic_add_fetch(&synchronize_calls, 1, __ATOMIC_SEQ_CST);
    return real->stream_synchronize(device, stream);
}

static int counting_capturing(unsigned device, void *stream, bool *ret_capturing) {
    if (capture_answer == 0)
        return real->stream_is_capturing(device, stream, ret_capturing);
    if (capture_answer > 1)
        return capture_answer;
    *ret_capturing = true;
    return 0;
}

static void count_calls(struct gpupool_client *client) {
    assert_ok(devices_gpu(&client->devices, &real));
    assert_non_null(real);
    counting = *real;
    counting.host_register = counting_register;
    counting.host_unregister = counting_unregister;
    counting.ipc_open = counting_ipc_open;
    counting.stream_synchronize = counting_synchronize;
    counting.stream_is_capturing = counting_capturing;
    register_calls = unregister_calls = ipc_open_calls = register_fails_at = synchronize_calls = 0;
    registered_bytes = 0;
    capture_answer = 0;
    client->devices.gpu = &counting;
}

static void *take_both_kinds(void *argument) {
    struct worker *worker = argument;
    struct gpupool_buffer host, device;

    for (unsigned i = 0; i < 30; i++) {
        if (gpupool_acquire(worker->client, FALSE_POOL_HOST, 100, NULL, GPUPOOL_NOW, 0, &host) != 0 ||
            gpupool_acquire(worker->client, FALSE_POOL_DEVICE, 100, NULL, GPUPOOL_NOW, 0, &device) != 0 ||
            gpupool_release(worker->client, &host, NULL) != 0 ||
            gpupool_release(worker->client, &device, NULL) != 0)
            worker->failures++;
    }
    return NULL;
}

static void segments_are_opened_once_whoever_comes_first(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct worker workers[THREADS];

    count_calls(client);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.client = client, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, take_both_kinds, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].failures, 0);
    }
    assert_int_equal(register_calls, 2); /* the segment, and the page's words for the fences */
    assert_int_equal(ipc_open_calls, 1);
    assert_int_equal(daemon_.opened, 1);
    assert_int_equal(daemon_.leases, 0);
    gpupool_close(client);
    assert_int_equal(unregister_calls, 2);
}

static void host_memory_is_registered_in_pieces_or_not_at_all(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct gpupool_buffer buffer = {0};

    count_calls(client);
    client->segments.register_piece_bytes = FALSE_SEGMENT_SIZE / 4;
    register_fails_at = 3;
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, GPUPOOL_NOW, 0, &buffer),
                 GPUPOOL_E_DRIVER);
    assert_text_has("cudaErrorMemoryAllocation");
    assert_int_equal(unregister_calls, 2);
    assert_int_equal(daemon_.leases, 0);
    assert_null(buffer.data);

    registered_bytes = 0;
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_int_equal(register_calls, 3 + 4);
    assert_int_equal(registered_bytes, FALSE_SEGMENT_SIZE);
    gpupool_close(client);
    assert_int_equal(unregister_calls, 2 + 4);
}

/* Else the kernel would map a huge page of the daemon's by 512 entries. */
static void host_segments_are_mapped_where_huge_pages_can_be(void **state) {
    (void)state;
    false_daemon_run(&daemon_);
    for (unsigned i = 0; i < 4; i++) { /* address space is handed out differently each time */
        struct gpupool_client *client = open_client();
        struct gpupool_buffer buffers[2];
        static const uint32_t pools[2] = {FALSE_POOL_HOST, FALSE_POOL_HOST_B};
        void *disorder = mmap(NULL, (i + 1) * 68 * KIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(disorder, MAP_FAILED);
        for (unsigned j = 0; j < 2; j++) {
            assert_ok(gpupool_acquire(client, pools[j], 1, NULL, GPUPOOL_NOW, 0, &buffers[j]));
            char *first = segments_locate(&client->segments, pools[j], pools[j], 0, FALSE_SEGMENT_SIZE);
            assert_non_null(first);
            assert_int_equal((uintptr_t)first % (2 * MIB), 0);
        }
        gpupool_close(client);
        munmap(disorder, (i + 1) * 68 * KIB);
    }
}

static void captured_streams_are_refused_before_anything_is_done(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct gpupool_buffer buffers[2], other = {0};

    count_calls(client);
    assert_ok(gpupool_acquire(client, FALSE_POOL_DEVICE, 1000, NULL, GPUPOOL_NOW, 0, &buffers[0]));
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1000, NULL, GPUPOOL_NOW, 0, &buffers[1]));
    unsigned messages = daemon_.messages, synchronized = synchronize_calls;
    static const int answers[] = {1, 906 /* cudaErrorStreamCaptureImplicit */};
    for (unsigned i = 0; i < 2; i++) {
        capture_answer = answers[i];
        for (unsigned j = 0; j < 2; j++) {
            assert_error(gpupool_release(client, &buffers[j], NULL), GPUPOOL_E_CAPTURING);
            assert_error(gpupool_shrink(client, &buffers[j], 1, NULL), GPUPOOL_E_CAPTURING);
        }
        assert_error(gpupool_acquire(client, FALSE_POOL_DEVICE, 1, NULL, GPUPOOL_NOW, GPUPOOL_ZERO, &other),
                     GPUPOOL_E_CAPTURING);
        assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 1, &other, GPUPOOL_NOW, GPUPOOL_ZERO, &other),
                     GPUPOOL_E_CAPTURING);
    }
    assert_int_equal(daemon_.messages, messages);
    assert_int_equal(synchronize_calls, synchronized);
    /* memory can be had: nothing is enqueued for that */
    assert_ok(gpupool_acquire(client, FALSE_POOL_DEVICE, 1, NULL, GPUPOOL_NOW, 0, &other));
    capture_answer = 0;
    assert_ok(gpupool_release(client, &buffers[0], NULL));
    assert_ok(gpupool_release(client, &buffers[1], NULL));
    assert_int_equal(synchronize_calls, synchronized); /* nobody waits */
    gpupool_close(client);
}

static struct proto_release last_release; /* the daemon's thread writes it before it answers */

static bool note_release(struct false_daemon *daemon, struct false_session *session,
                         const struct proto_message *request) {
    (void)daemon;
    (void)session;
    if (request->header.operation == PROTO_RELEASE)
        last_release = request->release;
    return false;
}

static bool release_is_ready(struct gpupool_client *client) {
    return fence_is_ready(client, (struct fence){last_release.fence, last_release.fence_value});
}

static void releases_stand_behind_fences_of_streams_of_any_device(void **state) {
    (void)state;
    struct gpupool_client *client = start(note_release);
    struct gpupool_buffer buffer, gate;
    const struct gpu *gpu;
    void *stream;

    assert_ok(devices_need_gpu(&client->devices, &gpu));
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 8, NULL, GPUPOOL_NOW, GPUPOOL_ZERO, &gate));
    assert_ok(gpupool_stream_create(client, 3, &stream)); /* current is device 0 */
    assert_int_equal(gpu->stream_wait64(3, stream, gate.data, 1), 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, GPUPOOL_NOW, 0, &buffer));
        if (i == 1)
            assert_ok(gpupool_shrink(client, &buffer, 512, stream));
        assert_ok(gpupool_release(client, &buffer, i == 2 ? GPUPOOL_NO_STREAM : stream));
        if (i == 2)
            assert_int_equal(last_release.fence, 0);
        else
            assert_false(release_is_ready(client));
    }
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_ok(gpupool_release(client, &buffer, stream));
    assert_false(release_is_ready(client));
    __atomic_store_n((uint64_t *)gate.data, 1, __ATOMIC_SEQ_CST);
    assert_ok(gpupool_stream_synchronize(client, 3, stream));
    assert_true(release_is_ready(client));
    assert_ok(gpupool_stream_destroy(client, 3, stream));
    gpupool_close(client);
}

static unsigned limited; /* releases that were refused */

static bool keep_no_fences(struct false_daemon *daemon, struct false_session *session,
                           const struct proto_message *request) {
    note_release(daemon, session, request);
    if (request->header.operation != PROTO_RELEASE || request->release.fence == 0)
        return false;
    limited++;
    false_send_error(session, request->header.request, PROTO_E_LIMIT, "no more fences");
    return true;
}

/* Lets the gate's stream go. */
static void *open_gate_late(void *argument) {
    poll(NULL, 0, 30);
    __atomic_store_n((uint64_t *)argument, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void at_the_daemons_limit_a_release_waits_for_its_fence(void **state) {
    (void)state;
    struct gpupool_client *client = start(keep_no_fences);
    struct gpupool_buffer buffer, gate, kept;
    const struct gpu *gpu;
    pthread_t thread;
    void *stream;

    limited = 0;
    assert_ok(devices_need_gpu(&client->devices, &gpu));
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 8, NULL, GPUPOOL_NOW, GPUPOOL_ZERO, &gate));
    assert_ok(gpupool_acquire(client, FALSE_POOL_DEVICE, 8, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_ok(gpupool_stream_create(client, 0, &stream));
    assert_int_equal(gpu->stream_wait64(0, stream, gate.data, 1), 0);
    struct fence first; /* the page is had while there is time for it */
    assert_ok(fences_enqueue(client, 0, stream, &first));
    client->answer_timeout_ns = IMPATIENT_NS; /* it does not wait longer than for an answer */
    kept = buffer;
    assert_error(gpupool_release(client, &buffer, stream), GPUPOOL_E_TIMED_OUT);
    assert_memory_equal(&buffer, &kept, sizeof kept); /* still the caller's */
    client->answer_timeout_ns = PATIENT_NS;
    assert_int_equal(pthread_create(&thread, NULL, open_gate_late, gate.data), 0);
    assert_ok(gpupool_release(client, &buffer, stream));
    pthread_join(thread, NULL);
    assert_int_equal(limited, 2);
    assert_int_equal(last_release.lease, kept.lease);
    assert_int_equal(last_release.fence, 0);
    assert_int_equal(gpu->stream_query(0, stream), 0);
    assert_ok(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
}

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
        TEST(host_buffer_lives_from_acquire_to_release),
        TEST(zeroed_buffers_read_zero),
        TEST(tokens_reach_the_same_memory),
        TEST(nothing_is_asked_that_cannot_be_answered),
        TEST(texts_say_what_failed_where_and_why),
        TEST(long_texts_are_cut_between_characters),
        TEST(options_of_other_versions_are_understood),
        TEST(socket_is_found_in_the_environment),
        TEST(each_thread_gets_its_own_reply),
        TEST(segments_are_opened_once_whoever_comes_first),
        TEST(host_memory_is_registered_in_pieces_or_not_at_all),
        TEST(host_segments_are_mapped_where_huge_pages_can_be),
        TEST(captured_streams_are_refused_before_anything_is_done),
        TEST(releases_stand_behind_fences_of_streams_of_any_device),
        TEST(at_the_daemons_limit_a_release_waits_for_its_fence),
        TEST(host_pools_work_without_touching_a_gpu),
        TEST(daemon_without_a_gpu_serves_host_pools),
    };
    int failed = cmocka_run_group_tests_name("client", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
