/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated GPU in one process: devices, memory, registered host memory, streams, planned faults. Other
 * processes appear where what an environment variable does is to be seen.
 */
#include <errno.h>
#include <pthread.h>

#include "gpu_sim_fixture.h"

static void uuids_survive_their_text(void **state) {
    struct gpu_uuid uuid, parsed;
    char text[GPU_UUID_TEXT_SIZE];
    static const char *const malformed[] = {
        "",
        "GPU-",
        "GPU-51310000-0000-4000-8000-00000000000",
        "GPU-51310000-0000-4000-8000-0000000000000",
        "GPU-51310000-0000-4000-8000-00000000000g",
        "GPU-51310000x0000-4000-8000-000000000000",
        "MIG-51310000-0000-4000-8000-000000000000",
        "gpu-51310000-0000-4000-8000-000000000000",
    };

    (void)state;
    for (unsigned i = 0; i < GPU_UUID_BYTES; i++)
        uuid.bytes[i] = (uint8_t)(17 * i + 3);
    gpu_uuid_format(&uuid, text);
    assert_string_equal(text, "GPU-03142536-4758-697a-8b9c-adbecfe0f102");
    assert_int_equal(gpu_uuid_parse(text, &parsed), 0);
    assert_true(gpu_uuid_equal(&uuid, &parsed));
    assert_int_equal(gpu_uuid_parse("GPU-03142536-4758-697A-8B9C-ADBECFE0F102", &parsed), 0);
    assert_true(gpu_uuid_equal(&uuid, &parsed));
    parsed.bytes[15] ^= 1;
    assert_false(gpu_uuid_equal(&uuid, &parsed));
    for (unsigned i = 0; i < sizeof(malformed) / sizeof(malformed[0]); i++) {
        struct gpu_uuid untouched = uuid;

        assert_int_equal(gpu_uuid_parse(malformed[i], &untouched), -EINVAL);
        assert_true(gpu_uuid_equal(&untouched, &uuid));
    }
}

static void devices_are_the_same_ones_in_every_process(void **state) {
    struct gpu_device devices[SIM_DEVICES], untouched = {.numa_node = 77};
    struct peer peer = start_peer();
    char text[GPU_UUID_TEXT_SIZE];
    unsigned count = 0;

    (void)state;
    assert_int_equal(gpu->device_count(&count), 0);
    assert_int_equal(count, SIM_DEVICES);
    for (unsigned i = 0; i < SIM_DEVICES; i++) {
        assert_int_equal(gpu->device_describe(i, &devices[i]), 0);
        assert_int_equal(devices[i].total_bytes, SIM_DEVICE_BYTES);
        gpu_uuid_format(&devices[i].uuid, text);
        assert_memory_equal(text, "GPU-51310000-", 13);
        assert_int_equal(peer_ask(&peer, "describe %u", i), 0);
        assert_string_equal(peer.text, text);
    }
    assert_false(gpu_uuid_equal(&devices[0].uuid, &devices[1].uuid));
    assert_int_equal(gpu->device_describe(SIM_DEVICES, &untouched), GPU_ERROR_INVALID_DEVICE);
    assert_int_equal(untouched.numa_node, 77);
    /* A process that asks for nothing special sees all that there may be. */
    assert_int_equal(peer_ask(&peer, "count"), 0);
    assert_int_equal(peer_value(&peer), GPU_SIM_DEVICES_MAX);
    peer_end(&peer, 0);
}

static void visible_devices_renumber(void **state) {
    static const struct {
        const char *variable;
        int error;
        unsigned count;
        const char *first;
    } cases[] = {
        {"CUDA_VISIBLE_DEVICES=1,0", 0, 2, "GPU-51310000-0000-4000-8000-000000000001"},
        {"CUDA_VISIBLE_DEVICES= 3 , 0", 0, 2, "GPU-51310000-0000-4000-8000-000000000003"},
        {"CUDA_VISIBLE_DEVICES=2,99,1", 0, 1, "GPU-51310000-0000-4000-8000-000000000002"},
        {"CUDA_VISIBLE_DEVICES=2,2", 0, 1, "GPU-51310000-0000-4000-8000-000000000002"},
        {"CUDA_VISIBLE_DEVICES=GPU-51310000-0000-4000-8000-000000000002,0", 0, 2,
         "GPU-51310000-0000-4000-8000-000000000002"},
        {"CUDA_VISIBLE_DEVICES=GPU-5131", GPU_ERROR_NO_DEVICE, 0, NULL}, /* ambiguous */
        {"CUDA_VISIBLE_DEVICES=99", GPU_ERROR_NO_DEVICE, 0, NULL},
        {"CUDA_VISIBLE_DEVICES=x", GPU_ERROR_NO_DEVICE, 0, NULL},
        {"CUDA_VISIBLE_DEVICES=", GPU_ERROR_NO_DEVICE, 0, NULL},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct peer peer = peer_start(GPU_PEER, "sim", -1, (char *[]){(char *)cases[i].variable, NULL});

        assert_int_equal(peer_ask(&peer, "start"), cases[i].error);
        if (cases[i].error == 0) {
            assert_int_equal(peer_ask(&peer, "count"), 0);
            assert_int_equal(peer_value(&peer), cases[i].count);
            assert_int_equal(peer_ask(&peer, "describe 0"), 0);
            assert_string_equal(peer.text, cases[i].first);
        }
        peer_end(&peer, 0);
    }
}

static void *current_device_of_thread(void *ret_device) {
    return gpu->device_current(ret_device) == 0 ? ret_device : NULL;
}

static void current_device_is_each_threads_own(void **state) {
    unsigned device = 7;

    (void)state;
    assert_int_equal(gpu_sim_set_device(SIM_DEVICES), GPU_ERROR_INVALID_DEVICE);
    assert_int_equal(gpu_sim_set_device(1), 0);
    gpu->memory_free(0, allocate(2 * MIB));
    assert_int_equal(gpu->device_current(&device), 0);
    assert_int_equal(device, 1);
    assert_non_null(RUN_IN_THREAD(current_device_of_thread, &device));
    assert_int_equal(device, 0);
    assert_int_equal(gpu_sim_set_device(0), 0);
}

static void memory_ends_where_the_device_does(void **state) {
    void *memory[SIM_DEVICE_BYTES / (64 * MIB)], *more = shared, *other;
    uint64_t free_bytes, total_bytes;

    (void)state;
    for (unsigned i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        memory[i] = allocate(64 * MIB);
    assert_int_equal(gpu->device_memory(0, &free_bytes, &total_bytes), 0);
    assert_int_equal(free_bytes, 0);
    assert_int_equal(total_bytes, SIM_DEVICE_BYTES);
    assert_int_equal(gpu->memory_allocate(0, 2 * MIB, &more), GPU_ERROR_MEMORY_ALLOCATION);
    assert_int_equal(gpu->memory_allocate(0, UINT64_MAX - 2 * MIB + 1, &more), GPU_ERROR_MEMORY_ALLOCATION);
    assert_ptr_equal(more, shared);
    /* The other device has its own. */
    assert_int_equal(gpu->memory_allocate(1, 2 * MIB, &other), 0);
    assert_int_equal(gpu->memory_free(1, other), 0);
    assert_int_equal(gpu->memory_free(0, memory[0]), 0);
    assert_int_equal(gpu->device_memory(0, &free_bytes, &total_bytes), 0);
    assert_int_equal(free_bytes, 64 * MIB);
    memory[0] = allocate(64 * MIB);
    for (unsigned i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        assert_int_equal(gpu->memory_free(0, memory[i]), 0);
}

static void what_is_not_an_allocation_is_refused(void **state) {
    void *memory = allocate(4 * MIB), *untouched = shared;

    (void)state;
    assert_int_equal(gpu->memory_allocate(0, 0, &untouched), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_allocate(0, 2 * MIB + 4096, &untouched), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_allocate(SIM_DEVICES, 2 * MIB, &untouched), GPU_ERROR_INVALID_DEVICE);
    assert_ptr_equal(untouched, shared);
    assert_int_equal(gpu->memory_free(0, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_free(0, (char *)memory + 2 * MIB), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_free(0, shared), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_free(1, memory), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_free(0, memory), 0);
    assert_int_equal(gpu->memory_free(0, memory), GPU_ERROR_INVALID_VALUE);
}

static void fresh_memory_is_not_zero(void **state) {
    uint64_t sizes[] = {2 * MIB, 64 * MIB, 128 * MIB};

    (void)state;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char *memory = allocate(sizes[i]);

        assert_int_equal(read_word(memory), UINT64_C(0xa5a5a5a5a5a5a5a5));
        assert_int_equal(read_word(memory + sizes[i] - 8), UINT64_C(0xa5a5a5a5a5a5a5a5));
        assert_int_equal(gpu->memory_free(0, memory), 0);
    }
}

/* How many bytes of a range are in this machine's memory. */
static uint64_t resident_bytes(char *memory, uint64_t size_bytes) {
    unsigned char *pages = malloc(size_bytes / 4096);
    uint64_t resident = 0;

    assert_non_null(pages);
    assert_int_equal(mincore(memory, size_bytes, pages), 0);
    for (uint64_t i = 0; i < size_bytes / 4096; i++)
        resident += (pages[i] & 1u) * UINT64_C(4096);
    free(pages);
    return resident;
}

/* A daemon zeroes what it allocates, and a simulated GPU may have more memory than this machine. */
static void zeroed_memory_takes_none_of_this_machines(void **state) {
    char *memory = allocate(64 * MIB);

    (void)state;
    assert_int_equal(resident_bytes(memory, 64 * MIB), 64 * MIB);
    assert_int_equal(gpu->memory_set(0, memory + 8, 0, 64 * MIB - 16, NULL), 0);
    assert_int_equal(gpu->stream_synchronize(0, NULL), 0);
    assert_int_equal(resident_bytes(memory, 64 * MIB), 2 * 4096);
    assert_int_equal(read_word(memory), UINT64_C(0xa5a5a5a5a5a5a5a5));
    for (uint64_t i = 8; i < 64 * MIB - 8; i += 16 * KIB - 8)
        assert_int_equal(read_word(memory + i), 0);
    assert_int_equal(read_word(memory + 64 * MIB - 8), UINT64_C(0xa5a5a5a5a5a5a5a5));
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void host_memory_is_registered_once(void **state) {
    char *host = mmap(NULL, 64 * KIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *memory = allocate(2 * MIB);

    (void)state;
    assert_ptr_not_equal(host, MAP_FAILED);
    assert_int_equal(gpu->host_unregister(host), GPU_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert_int_equal(gpu->host_register(host + 16 * KIB, 16 * KIB), 0);
    assert_int_equal(gpu->host_register(host + 16 * KIB, 16 * KIB), GPU_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    assert_int_equal(gpu->host_register(host, 64 * KIB), GPU_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    assert_int_equal(gpu->host_register(host + 28 * KIB, 8 * KIB), GPU_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    /* Neighbours do not overlap. */
    assert_int_equal(gpu->host_register(host, 16 * KIB), 0);
    assert_int_equal(gpu->host_register(host + 32 * KIB, 32 * KIB), 0);
    assert_int_equal(gpu->host_unregister(host + 20 * KIB), GPU_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert_int_equal(gpu->host_unregister(host), 0);
    assert_int_equal(gpu->host_unregister(host + 16 * KIB), 0);
    assert_int_equal(gpu->host_unregister(host + 32 * KIB), 0);
    assert_int_equal(gpu->host_unregister(host), GPU_ERROR_HOST_MEMORY_NOT_REGISTERED);
    /* These ranges cannot be pinned. */
    assert_int_equal(gpu->host_register(host, 0), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->host_register(host + 1, 4096), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->host_register(memory, 4096), GPU_ERROR_INVALID_VALUE);
    munmap(host + 32 * KIB, 32 * KIB);
    assert_int_equal(gpu->host_register(host, 64 * KIB), GPU_ERROR_INVALID_VALUE);
    munmap(host, 32 * KIB);
    assert_int_equal(gpu->host_register(host, 4096), GPU_ERROR_INVALID_VALUE);
    gpu->memory_free(0, memory);
}

static void a_stream_works_in_order_and_the_caller_goes_on(void **state) {
    uint8_t *memory = allocate(2 * MIB);
    void *stream, *other;
    bool capturing = true;

    (void)state;
    memset(shared, 0, 4096);
    assert_int_equal(gpu->stream_create(0, &stream), 0);
    assert_int_equal(gpu->stream_create(0, &other), 0);
    assert_int_equal(gpu->stream_is_capturing(0, stream, &capturing), 0);
    assert_false(capturing);
    /* Each step would come out differently in another order. */
    assert_int_equal(gpu->stream_wait64(0, stream, &shared[0], 1), 0);
    assert_int_equal(gpu->memory_set(0, memory, 1, 4096, stream), 0);
    assert_int_equal(gpu->memory_copy(0, (char *)shared + 1024, memory, 512, stream), 0);
    assert_int_equal(gpu->memory_set(0, memory, 2, 4096, stream), 0);
    assert_int_equal(gpu->memory_copy(0, (char *)shared + 2048, memory, 512, stream), 0);
    assert_int_equal(gpu->stream_write64(0, stream, &shared[1], 42), 0);
    assert_int_equal(gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    assert_int_equal(((uint8_t *)shared)[1024], 0);
    /* The waiting stream delays no other. */
    assert_int_equal(gpu->memory_set(0, memory + MIB, 9, 4096, other), 0);
    assert_int_equal(gpu->stream_synchronize(0, other), 0);
    assert_int_equal(gpu->stream_query(0, other), 0);
    assert_int_equal(gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    assert_int_equal(__atomic_load_n(&shared[1], __ATOMIC_ACQUIRE), 0);
    /* Another stream lets it go. */
    assert_int_equal(gpu->stream_write64(0, other, &shared[0], 1), 0);
    WAIT_UNTIL(__atomic_load_n(&shared[1], __ATOMIC_ACQUIRE) == 42);
    assert_int_equal(gpu->stream_synchronize(0, stream), 0);
    assert_int_equal(gpu->stream_query(0, stream), 0);
    assert_int_equal(((uint8_t *)shared)[1024 + 511], 1);
    assert_int_equal(((uint8_t *)shared)[2048 + 511], 2);
    assert_int_equal(gpu->stream_destroy(0, stream), 0);
    assert_int_equal(gpu->stream_destroy(0, other), 0);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void what_a_captured_stream_gets_is_not_done(void **state) {
    uint8_t *memory = allocate(2 * MIB);
    unsigned operations = 0;
    bool capturing;
    void *stream, *other;

    (void)state;
    assert_int_equal(gpu->stream_create(0, &stream), 0);
    assert_int_equal(gpu->stream_create(0, &other), 0);
    shared[0] = 1;
    assert_int_equal(gpu_sim_capture_end(0, stream, &operations), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu_sim_capture_begin(0, stream), 0);
    assert_int_equal(gpu_sim_capture_begin(0, stream), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->stream_is_capturing(0, stream, &capturing), 0);
    assert_true(capturing);
    assert_int_equal(gpu->stream_write64(0, stream, &shared[0], 2), 0);
    assert_int_equal(gpu->memory_set(0, memory, 1, 4096, stream), 0);
    assert_int_equal(gpu->stream_is_capturing(0, other, &capturing), 0);
    assert_false(capturing);
    assert_int_equal(gpu->stream_synchronize(0, other), 0);
    assert_int_equal(gpu->device_synchronize(1), 0);
    assert_int_equal(gpu_sim_capture_end(0, stream, &operations), 0);
    assert_int_equal(operations, 2);
    assert_int_equal(gpu->stream_synchronize(0, stream), 0);
    assert_int_equal(shared[0], 1);
    /* nothing comes of a capture whose stream, or device, somebody waits for */
    for (unsigned way = 0; way < 3; way++) {
        assert_int_equal(gpu_sim_capture_begin(0, stream), 0);
        assert_int_equal(way == 0   ? gpu->stream_synchronize(0, stream)
                         : way == 1 ? gpu->stream_query(0, stream)
                                    : gpu->device_synchronize(0),
                         900);
        assert_int_equal(gpu->stream_is_capturing(0, stream, &capturing), 0);
        assert_true(capturing);
        assert_int_equal(gpu_sim_capture_end(0, stream, &operations), 901);
    }
    assert_int_equal(gpu->stream_query(0, stream), 0);
    assert_int_equal(gpu->stream_destroy(0, stream), 0);
    assert_int_equal(gpu->stream_destroy(0, other), 0);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void a_word_is_compared_cyclically(void **state) {
    void *stream;

    (void)state;
    assert_int_equal(gpu->stream_create(0, &stream), 0);
    /* Reached: equal, above, and above across the wrap. */
    shared[0] = 5;
    assert_int_equal(gpu->stream_wait64(0, stream, &shared[0], 5), 0);
    assert_int_equal(gpu->stream_wait64(0, stream, &shared[0], 4), 0);
    assert_int_equal(gpu->stream_wait64(0, stream, &shared[0], UINT64_MAX - 5), 0);
    assert_int_equal(gpu->stream_synchronize(0, stream), 0);
    /* Not reached: just below, and the wrap the other way. */
    __atomic_store_n(&shared[1], UINT64_MAX, __ATOMIC_RELEASE);
    assert_int_equal(gpu->stream_wait64(0, stream, &shared[1], 0), 0);
    assert_int_equal(gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    __atomic_store_n(&shared[1], 0, __ATOMIC_RELEASE);
    assert_int_equal(gpu->stream_synchronize(0, stream), 0);
    assert_int_equal(gpu->stream_destroy(0, stream), 0);
}

static void words_and_copies_stay_inside_what_the_device_knows(void **state) {
    char *memory = allocate(2 * MIB), *end = memory + 2 * MIB;
    uint64_t own[2] = {0};
    char *hole = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    assert_ptr_not_equal(hole, MAP_FAILED);
    munmap(hole + 4096, 4096);
    assert_int_equal(gpu->stream_write64(0, NULL, &own[0], 1), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->stream_wait64(0, NULL, &own[0], 0), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->stream_write64(0, NULL, NULL, 1), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->stream_write64(0, NULL, (void *)memory, 1), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->stream_write64(0, NULL, (void *)((char *)shared + 4), 1), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->stream_write64(0, NULL, (void *)((char *)shared + PEER_SHARED_BYTES), 1),
                     GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->stream_write64(0, NULL, (void *)((char *)shared + PEER_SHARED_BYTES - 8), 1), 0);

    assert_int_equal(gpu->memory_set(0, end - 8, 1, 8, NULL), 0);
    assert_int_equal(gpu->memory_set(0, end - 8, 1, 9, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_set(0, memory, 1, UINT64_MAX, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_set(0, own, 1, 8, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_set(0, memory, 1, 0, NULL), 0);
    assert_int_equal(gpu->memory_copy(0, memory, shared, 2 * MIB, NULL), 0);
    assert_int_equal(gpu->memory_copy(0, memory + 1, shared, 2 * MIB, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_copy(0, memory, shared + 1, 2 * MIB, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_copy(0, own, end - 8, 16, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_copy(0, own, NULL, 8, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_copy(0, memory, hole, 2 * 4096, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_copy(0, memory, hole, 4096, NULL), 0);
    assert_int_equal(gpu->device_synchronize(0), 0);
    assert_int_equal(gpu->memory_free(0, memory), 0);
    assert_int_equal(gpu->memory_copy(0, own, memory, 8, NULL), GPU_ERROR_INVALID_VALUE);
    munmap(hole, 4096);
    munmap(hole + 2 * 4096, 4096);
}

static void pageable_memory_is_used_before_the_call_returns(void **state) {
    uint8_t *memory = allocate(2 * MIB);
    uint64_t word = 17;
    void *stream;

    (void)state;
    assert_int_equal(gpu->stream_create(0, &stream), 0);
    assert_int_equal(gpu->memory_set(0, memory, 0, 4096, stream), 0);
    assert_int_equal(gpu->memory_copy(0, memory, &word, sizeof(word), stream), 0);
    word = 0;
    assert_int_equal(gpu->memory_copy(0, &word, memory, sizeof(word), stream), 0);
    assert_int_equal(word, 17);
    /* Between two places that the device does not know, too. */
    assert_int_equal(gpu->memory_copy(0, &word, &(uint64_t){23}, sizeof(word), stream), 0);
    assert_int_equal(word, 23);
    assert_int_equal(gpu->stream_destroy(0, stream), 0);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void *use_thread_stream(void *memory) {
    uint64_t value = 31;
    bool good = gpu->memory_copy(0, memory, &value, sizeof(value), (void *)0x2) == 0 &&
                gpu->stream_write64(0, (void *)0x2, &shared[3], 31) == 0;

    return good ? memory : NULL; /* the stream ends with the thread */
}

static void default_streams_are_there(void **state) {
    void *memory = allocate(2 * MIB);

    (void)state;
    __atomic_store_n(&shared[0], 0, __ATOMIC_RELEASE);
    __atomic_store_n(&shared[3], 0, __ATOMIC_RELEASE);
    /* NULL and 0x1 are one stream, the thread's own is another. */
    assert_int_equal(gpu->stream_wait64(0, NULL, &shared[0], 1), 0);
    assert_int_equal(gpu->stream_query(0, (void *)0x1), GPU_ERROR_NOT_READY);
    assert_int_equal(gpu->stream_query(0, (void *)0x2), 0);
    assert_int_equal(gpu->stream_query(1, NULL), 0);
    __atomic_store_n(&shared[0], 1, __ATOMIC_RELEASE);
    assert_int_equal(gpu->stream_synchronize(0, (void *)0x1), 0);
    assert_non_null(RUN_IN_THREAD(use_thread_stream, memory));
    assert_int_equal(__atomic_load_n(&shared[3], __ATOMIC_ACQUIRE), 31);
    assert_int_equal(read_word(memory), 31);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void what_is_not_a_stream_is_refused(void **state) {
    void *stream, *untouched = shared;

    (void)state;
    assert_int_equal(gpu->stream_create(SIM_DEVICES, &untouched), GPU_ERROR_INVALID_DEVICE);
    assert_ptr_equal(untouched, shared);
    assert_int_equal(gpu->stream_create(0, &stream), 0);
    assert_int_equal(gpu->stream_synchronize(1, stream), GPU_ERROR_INVALID_RESOURCE_HANDLE);
    assert_int_equal(gpu->stream_destroy(0, NULL), GPU_ERROR_INVALID_RESOURCE_HANDLE);
    assert_int_equal(gpu->stream_destroy(0, (void *)0x1), GPU_ERROR_INVALID_RESOURCE_HANDLE);
    assert_int_equal(gpu->stream_destroy(0, (void *)0x2), GPU_ERROR_INVALID_RESOURCE_HANDLE);
    assert_int_equal(gpu->stream_query(0, shared), GPU_ERROR_INVALID_RESOURCE_HANDLE);
    assert_int_equal(gpu->memory_set(0, shared, 0, 8, shared), GPU_ERROR_INVALID_RESOURCE_HANDLE);
    assert_int_equal(gpu->stream_destroy(0, stream), 0);
    assert_int_equal(gpu->stream_destroy(0, stream), GPU_ERROR_INVALID_RESOURCE_HANDLE);
    assert_int_equal(gpu->stream_query(0, stream), GPU_ERROR_INVALID_RESOURCE_HANDLE);
}

static void *free_memory(void *memory) {
    return gpu->memory_free(0, memory) == 0 ? memory : NULL;
}

static void memory_is_freed_after_the_work_on_it(void **state) {
    char *memory = allocate(2 * MIB);
    void *stream, *result;
    pthread_t thread;

    (void)state;
    __atomic_store_n(&shared[0], 0, __ATOMIC_RELEASE);
    shared[8] = 0;
    write_word(memory, 77);
    assert_int_equal(gpu->stream_create(0, &stream), 0);
    assert_int_equal(gpu->stream_wait64(0, stream, &shared[0], 1), 0);
    assert_int_equal(gpu->memory_copy(0, &shared[8], memory, 8, stream), 0);
    assert_int_equal(pthread_create(&thread, NULL, free_memory, memory), 0);
    assert_int_equal(gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    __atomic_store_n(&shared[0], 1, __ATOMIC_RELEASE);
    TEST_JOIN(thread, &result);
    assert_non_null(result);
    assert_int_equal(shared[8], 77);
    assert_int_equal(gpu->stream_destroy(0, stream), 0);
}

static void a_destroyed_stream_has_done_its_work(void **state) {
    void *stream;

    (void)state;
    memset(shared, 0, 4096);
    assert_int_equal(gpu->stream_create(0, &stream), 0);
    for (unsigned i = 1; i <= 100; i++)
        assert_int_equal(gpu->stream_write64(0, stream, &shared[i], i), 0);
    assert_int_equal(gpu->stream_destroy(0, stream), 0);
    for (unsigned i = 1; i <= 100; i++)
        assert_int_equal(shared[i], i);
}

/* Something of everything, given back whatever failed. */
static int use_the_gpu(void) {
    void *memory = NULL, *stream = NULL;
    struct gpu_ipc_handle handle;
    uint64_t word = 3;
    int r = gpu->memory_allocate(0, 2 * MIB, &memory);

    if (r == 0)
        r = gpu->stream_create(0, &stream);
    if (r == 0)
        r = gpu->memory_set(0, memory, 0, 4096, stream);
    if (r == 0)
        r = gpu->memory_copy(0, &word, memory, sizeof(word), stream);
    if (r == 0)
        r = gpu->ipc_export(0, memory, &handle);
    if (r == 0)
        r = gpu->stream_synchronize(0, stream);
    gpu_sim_fail("any", 0, 0); /* giving back does not fail */
    if (stream != NULL)
        assert_int_equal(gpu->stream_destroy(0, stream), 0);
    if (memory != NULL)
        assert_int_equal(gpu->memory_free(0, memory), 0);
    return r;
}

static void every_call_can_be_made_to_fail(void **state) {
    unsigned before, rounds = 0;
    bool failed;

    (void)state;
    assert_int_equal(use_the_gpu(), 0); /* what lasts is made: the exporter, the default streams */
    before = open_fds();
    do {
        uint64_t free_bytes, total_bytes;
        int r;

        rounds++;
        assert_int_equal(gpu_sim_fail("any", rounds, GPU_ERROR_UNKNOWN), 0);
        r = use_the_gpu();
        failed = r != 0;
        assert_int_equal(r, failed ? GPU_ERROR_UNKNOWN : 0);
        assert_int_equal(open_fds(), before);
        assert_int_equal(gpu->device_memory(0, &free_bytes, &total_bytes), 0);
        assert_int_equal(free_bytes, total_bytes);
    } while (failed);
    assert_int_equal(rounds, 7); /* six calls, and the round in which none failed */
}

static void a_failure_means_one_call_of_one_kind(void **state) {
    void *memory = allocate(2 * MIB), *other = NULL;

    (void)state;
    assert_int_equal(gpu_sim_fail("no_such_call", 1, 1), -EINVAL);
    assert_int_equal(gpu_sim_fail("memory_allocate", 2, GPU_ERROR_MEMORY_ALLOCATION), 0);
    assert_false(gpu_sim_failed());
    assert_int_equal(gpu->memory_free(0, memory), 0);
    memory = allocate(2 * MIB);
    assert_int_equal(gpu->memory_allocate(0, 2 * MIB, &other), GPU_ERROR_MEMORY_ALLOCATION);
    assert_null(other);
    assert_true(gpu_sim_failed());
    assert_int_equal(gpu->memory_allocate(0, 2 * MIB, &other), 0);
    assert_int_equal(gpu->memory_free(0, memory), 0);
    assert_int_equal(gpu->memory_free(0, other), 0);
    assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
}

static void faults_are_planned_from_outside(void **state) {
    struct peer peer = peer_start(GPU_PEER, "sim", -1,
                                  (char *[]){"GPUPOOL_SIM_FAIL=memory_allocate:2:2,stream_create:2+:999",
                                             "GPUPOOL_SIM_HANG=memory_free:1:20", NULL});
    uint64_t begin_ns;

    (void)state;
    assert_int_equal(peer_ask(&peer, "allocate %u", 2u << 20), 0);
    assert_int_equal(peer_ask(&peer, "allocate %u", 2u << 20), 2);
    assert_int_equal(peer_ask(&peer, "allocate %u", 2u << 20), 0);
    assert_int_equal(peer_ask(&peer, "stream"), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(peer_ask(&peer, "stream"), 999);
    begin_ns = clock_now_ns();
    assert_int_equal(peer_ask(&peer, "free 0"), 0);
    assert_true(clock_now_ns() - begin_ns >= 20 * NS_PER_MS); /* what a hang means: no less */
    assert_int_equal(peer_ask(&peer, "free 1"), 0);
    peer_end(&peer, 0);
}

static void *remove_late(void *path) {
    poll(NULL, 0, 20); /* a call that does not hang is back before */
    unlink(path);
    return NULL;
}

static void a_call_may_hang_as_long_as_there_is_a_file(void **state) {
    char path[] = "/tmp/gpupool-hang-XXXXXX", variable[96];
    int fd = mkstemp(path);
    pthread_t thread;

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    snprintf(variable, sizeof(variable), "GPUPOOL_SIM_HANG=memory_allocate:1:%s,memory_free:1:1", path);
    struct peer peer = peer_start(GPU_PEER, "sim", -1, (char *[]){variable, NULL});
    assert_int_equal(peer_ask(&peer, "start"), 0);
    assert_int_equal(pthread_create(&thread, NULL, remove_late, path), 0);
    int error = peer_ask(&peer, "allocate %u", 2u << 20);
    bool is_there = access(path, F_OK) == 0;
    TEST_JOIN(thread, NULL);
    assert_int_equal(error, 0);
    assert_false(is_there);
    assert_int_equal(peer_ask(&peer, "free 0"), 0);
    peer_end(&peer, 0);
}

static void a_lost_device_fails_all_calls_on_it_and_no_others(void **state) {
    struct peer peer =
        peer_start(GPU_PEER, "sim", -1,
                   (char *[]){"GPUPOOL_SIM_FAIL=memory_allocate@0:2!:214,stream_create@1:1:999", NULL});

    (void)state;
    assert_int_equal(peer_ask(&peer, "allocate %u", 2u << 20), 0);
    assert_int_equal(peer_ask(&peer, "stream"), 0); /* the other plan is for another device */
    assert_int_equal(peer_ask(&peer, "allocate %u", 2u << 20), 214);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(peer_ask(&peer, "allocate %u", 2u << 20), 214);
        assert_int_equal(peer_ask(&peer, "stream"), 214);
        assert_int_equal(peer_ask(&peer, "free 0"), 214);
    }
    peer_end(&peer, 0);
}

static void a_plan_that_cannot_be_read_is_an_error(void **state) {
    static const char *const malformed[] = {
        "GPUPOOL_SIM_FAIL=memory_allocate",        "GPUPOOL_SIM_FAIL=memory_allocate:1",
        "GPUPOOL_SIM_FAIL=memory_allocate:0:2",    "GPUPOOL_SIM_FAIL=memory_allocate:1:0",
        "GPUPOOL_SIM_FAIL=memory_alocate:1:2",     "GPUPOOL_SIM_FAIL=memory_allocate:1:2x",
        "GPUPOOL_SIM_FAIL=memory_allocate:-1:2",   "GPUPOOL_SIM_FAIL=ipc_open:1:201,,ipc_open:2:201",
        "GPUPOOL_SIM_FAIL=ipc_open@:1:201",        "GPUPOOL_SIM_FAIL=ipc_open@99:1:201",
        "GPUPOOL_SIM_FAIL=ipc_open:~1+:201",       "GPUPOOL_SIM_HANG=ipc_open:1!:201",
        "GPUPOOL_SIM_HANG=memory_allocate:1:long", "GPUPOOL_SIM_LINGER_MS=soon",
        "GPUPOOL_SIM_FAIL=ipc_open:1:/tmp",
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(malformed) / sizeof(malformed[0]); i++) {
        struct peer peer = peer_start(GPU_PEER, "sim", -1, (char *[]){(char *)malformed[i], NULL});

        assert_int_equal(peer_ask(&peer, "start"), GPU_ERROR_INVALID_VALUE);
        peer_end(&peer, 0);
    }
}

static void a_forked_child_has_no_gpu(void **state) {
    void *memory = allocate(2 * MIB);
    int status;
    pid_t pid;

    (void)state;
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct gpu *again;
        void *other;

        _exit(gpu->memory_allocate(0, 2 * MIB, &other) == 3 && gpu->memory_free(0, memory) == 3 &&
                      gpu->stream_synchronize(0, NULL) == 3 && gpu_sim(NULL, &again) == 3
                  ? 0
                  : 1);
    }
    TEST_REAP(pid, &status);
    assert_int_equal(status, 0);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void errors_have_cudas_names(void **state) {
    (void)state;
    assert_string_equal(gpu->error_name(0), "cudaSuccess");
    assert_string_equal(gpu->error_name(GPU_ERROR_MEMORY_ALLOCATION), "cudaErrorMemoryAllocation");
    assert_string_equal(gpu->error_text(GPU_ERROR_MEMORY_ALLOCATION), "out of memory");
    assert_non_null(gpu->error_name(-1));
    assert_non_null(gpu->error_text(123456));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uuids_survive_their_text),
        cmocka_unit_test(devices_are_the_same_ones_in_every_process),
        cmocka_unit_test(visible_devices_renumber),
        cmocka_unit_test(current_device_is_each_threads_own),
        cmocka_unit_test(memory_ends_where_the_device_does),
        cmocka_unit_test(what_is_not_an_allocation_is_refused),
        cmocka_unit_test(fresh_memory_is_not_zero),
        cmocka_unit_test(zeroed_memory_takes_none_of_this_machines),
        cmocka_unit_test(host_memory_is_registered_once),
        cmocka_unit_test(a_stream_works_in_order_and_the_caller_goes_on),
        cmocka_unit_test(what_a_captured_stream_gets_is_not_done),
        cmocka_unit_test(what_a_captured_stream_gets_is_not_done),
        cmocka_unit_test(a_word_is_compared_cyclically),
        cmocka_unit_test(words_and_copies_stay_inside_what_the_device_knows),
        cmocka_unit_test(pageable_memory_is_used_before_the_call_returns),
        cmocka_unit_test(default_streams_are_there),
        cmocka_unit_test(what_is_not_a_stream_is_refused),
        cmocka_unit_test(memory_is_freed_after_the_work_on_it),
        cmocka_unit_test(a_destroyed_stream_has_done_its_work),
        cmocka_unit_test(every_call_can_be_made_to_fail),
        cmocka_unit_test(a_failure_means_one_call_of_one_kind),
        cmocka_unit_test(faults_are_planned_from_outside),
        cmocka_unit_test(a_call_may_hang_as_long_as_there_is_a_file),
        cmocka_unit_test(a_lost_device_fails_all_calls_on_it_and_no_others),
        cmocka_unit_test(a_plan_that_cannot_be_read_is_an_error),
        cmocka_unit_test(a_forked_child_has_no_gpu),
        cmocka_unit_test(errors_have_cudas_names),
    };

    return cmocka_run_group_tests_name("gpu_sim", tests, sim_setup, sim_teardown);
}
