/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client library with a daemon that behaves: segments are opened once, registered whole or not at
 * all, and mapped where huge pages can be.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "tests/unit/client_fixture.h"

#define THREADS 8

/* A driver table that counts, over the simulated one. */
static const struct gpu *real;
static struct gpu counting;
static unsigned register_calls, unregister_calls, ipc_open_calls, register_fails_at;
static uint64_t registered_bytes;

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

static void count_calls(struct gpupool_client *client) {
    real = table_over(client, &counting);
    counting.host_register = counting_register;
    counting.host_unregister = counting_unregister;
    counting.ipc_open = counting_ipc_open;
    register_calls = unregister_calls = ipc_open_calls = register_fails_at = 0;
    registered_bytes = 0;
}

struct worker {
    struct gpupool_client *client;
    pthread_t thread;
    int failures;
};

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
        workers[i] = (struct worker){.client = client};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, take_both_kinds, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        TEST_JOIN(workers[i].thread, NULL);
        assert_int_equal(workers[i].failures, 0);
    }
    assert_int_equal(register_calls, 2); /* the segment, and the page's words for the fences */
    assert_int_equal(ipc_open_calls, 1);
    assert_int_equal(daemon_.opened, 1);
    assert_int_equal(daemon_.leases, 0);
    gpupool_close(client);
    assert_int_equal(unregister_calls, 2);
}

static void host_memory_is_registered_by_one_call_or_not_at_all(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct gpupool_buffer buffer = {0};

    count_calls(client);
    register_fails_at = 1;
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, GPUPOOL_NOW, 0, &buffer),
                 GPUPOOL_E_DRIVER);
    assert_text_has("cudaErrorMemoryAllocation");
    assert_int_equal(unregister_calls, 0);
    assert_int_equal(daemon_.leases, 0);
    assert_null(buffer.data);

    registered_bytes = 0;
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_int_equal(register_calls, 1 + 1);
    assert_int_equal(registered_bytes, FALSE_SEGMENT_SIZE);
    gpupool_close(client);
    assert_int_equal(unregister_calls, 1);
}

/* A thread may be in an acquire at the end of the process, with a lease in a segment that it has not opened.
 */
static void nothing_is_opened_after_the_segments_were_left(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct gpupool_buffer held, further = {0};
    static const uint32_t pools[] = {FALSE_POOL_HOST_B, FALSE_POOL_DEVICE, FALSE_POOL_HOST};

    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, GPUPOOL_NOW, 0, &held));
    assert_true(segments_leave(&client->session.segments));
    count_calls(client);
    for (unsigned i = 0; i < sizeof pools / sizeof *pools; i++) {
        assert_error(gpupool_acquire(client, pools[i], 1, NULL, GPUPOOL_NOW, 0, &further),
                     GPUPOOL_E_DISCONNECTED);
        assert_text_has("farewell");
    }
    assert_null(further.data);
    assert_int_equal(register_calls, 0);
    assert_int_equal(ipc_open_calls, 0);
    assert_int_equal(daemon_.leases, 1);
    gpupool_close(client);
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
            char *first =
                segments_locate(&client->session.segments, pools[j], pools[j], 0, FALSE_SEGMENT_SIZE);
            assert_non_null(first);
            assert_int_equal((uintptr_t)first % (2 * MIB), 0);
        }
        gpupool_close(client);
        munmap(disorder, (i + 1) * 68 * KIB);
    }
}

int main(void) {
    fixture_init();
    const struct CMUnitTest tests[] = {
        TEST(segments_are_opened_once_whoever_comes_first),
        TEST(host_memory_is_registered_by_one_call_or_not_at_all),
        TEST(nothing_is_opened_after_the_segments_were_left),
        TEST(host_segments_are_mapped_where_huge_pages_can_be),
    };
    int failed = cmocka_run_group_tests_name("client_segments", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
