/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the promises of gpu.h on a driver: `gpu_table cuda|sim PEER`, where PEER is the program gpu_peer.
 * The same checks run on a real GPU and on the simulated one, so that the simulation stays what it imitates.
 * Built with the CUDA runtime (GPU_TABLE_CUDA) it also checks that the caller's own CUDA state is left alone.
 * Prints the checks that failed; exits 0 when none did, 1 otherwise, 77 where the driver has no GPU.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <time.h>

#ifdef GPU_TABLE_CUDA
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#endif

#include "base/clock.h"
#include "base/units.h"
#include "gpu_peer.h"

#define BOUND_NS  (120 * NS_PER_S) /* a wait that takes longer has failed */
#define OTHER_UID 65534

static const struct gpu *gpu;
static const char *peer_path;
static bool is_cuda;
static int shared_fd;
static uint64_t *shared;
static unsigned checks, failures;

#define check(condition)                                                                                     \
    do {                                                                                                     \
        checks++;                                                                                            \
        if (!(condition)) {                                                                                  \
            failures++;                                                                                      \
            fprintf(stderr, "FAILED %s:%d: %s\n", __func__, __LINE__, #condition);                           \
        }                                                                                                    \
    } while (0)

/* The call's error must be the one expected. */
#define check_error(call, expected)                                                                          \
    do {                                                                                                     \
        int error_ = (call), expected_ = (expected);                                                         \
        checks++;                                                                                            \
        if (error_ != expected_) {                                                                           \
            failures++;                                                                                      \
            fprintf(stderr, "FAILED %s:%d: %s: %s (%d), expected %s (%d)\n", __func__, __LINE__, #call,      \
                    gpu->error_name(error_), error_, gpu->error_name(expected_), expected_);                 \
        }                                                                                                    \
    } while (0)

static bool bounded_pause(uint64_t end_ns) {
    nanosleep(&(struct timespec){.tv_nsec = (long)NS_PER_MS}, NULL);
    return clock_now_ns() < end_ns;
}

/* Whether a condition comes to hold within the bound. */
#define comes_true(condition)                                                                                \
    __extension__({                                                                                          \
        uint64_t end_ns_ = clock_now_ns() + BOUND_NS;                                                        \
        bool holds_;                                                                                         \
        while (!(holds_ = (condition)) && bounded_pause(end_ns_))                                            \
            continue;                                                                                        \
        holds_;                                                                                              \
    })

static struct peer start_peer(void) {
    struct peer peer = peer_start(peer_path, gpu->name, shared_fd, NULL);

    check_error(peer_ask(&peer, "start"), 0);
    return peer;
}

static uint64_t read_word(const void *memory) {
    uint64_t value = 0;

    check_error(gpu->memory_copy(0, &value, memory, sizeof(value), NULL), 0);
    check_error(gpu->stream_synchronize(0, NULL), 0);
    return value;
}

static void write_word(void *memory, uint64_t value) {
    check_error(gpu->memory_copy(0, memory, &value, sizeof(value), NULL), 0);
    check_error(gpu->stream_synchronize(0, NULL), 0);
}

static void *allocate(uint64_t size_bytes) {
    void *memory = NULL;

    check_error(gpu->memory_allocate(0, size_bytes, &memory), 0);
    return memory;
}

/* --- the checks --- */

static void devices_are_described(void) {
    struct gpu_device device = {0};
    struct peer peer = start_peer();
    char text[GPU_UUID_TEXT_SIZE];
    uint64_t free_bytes = 0, total_bytes = 0;
    unsigned count = 0;

    check_error(gpu->device_count(&count), 0);
    check(count > 0);
    for (unsigned i = 0; i < count; i++) {
        check_error(gpu->device_describe(i, &device), 0);
        gpu_uuid_format(&device.uuid, text);
        check_error(peer_ask(&peer, "describe %u", i), 0);
        check(strcmp(peer.text, text) == 0);
        printf("device %u: %s, %s, %" PRIu64 " MiB, NUMA node %d\n", i, text, device.name,
               device.total_bytes / MIB, device.numa_node);
    }
    check_error(gpu->device_describe(count, &device), GPU_ERROR_INVALID_DEVICE);
    check_error(gpu->device_memory(count, &free_bytes, &total_bytes), GPU_ERROR_INVALID_DEVICE);
    check_error(gpu->device_memory(0, &free_bytes, &total_bytes), 0);
    check(free_bytes > 0 && free_bytes <= total_bytes);
    peer_end(&peer, 0);
}

static void memory_is_allocated_and_refused(void) {
    void *untouched = shared, *memory = allocate(4 * MIB);
    uint64_t free_bytes = 0, total_bytes = 0;

    check_error(gpu->device_memory(0, &free_bytes, &total_bytes), 0);
    check_error(gpu->memory_allocate(0, 0, &untouched), GPU_ERROR_INVALID_VALUE);
    check_error(gpu->memory_allocate(0, MIB, &untouched), GPU_ERROR_INVALID_VALUE);
    check_error(gpu->memory_allocate(0, total_bytes / (2 * MIB) * (2 * MIB) + 2 * MIB, &untouched),
                GPU_ERROR_MEMORY_ALLOCATION);
    check_error(gpu->memory_allocate(99, 2 * MIB, &untouched), GPU_ERROR_INVALID_DEVICE);
    check(untouched == shared);
    write_word(memory, 5);
    write_word((char *)memory + 4 * MIB - 8, 6);
    check(read_word(memory) == 5);
    check(read_word((char *)memory + 4 * MIB - 8) == 6);
    check_error(gpu->memory_free(0, memory), 0);
    check(gpu->memory_free(0, memory) != 0);
    check_error(gpu->memory_free(0, NULL), GPU_ERROR_INVALID_VALUE);
}

static void handles_share_memory(void) {
    char *memory = allocate(4 * MIB);
    void *untouched = shared;
    struct gpu_ipc_handle handle = {{0}}, interior = {{0}};
    struct peer peer = start_peer();

    check_error(gpu->ipc_export(0, memory, &handle), 0);
    check_error(gpu->ipc_export(0, memory + 2 * MIB, &interior), 0);
    check_error(gpu->ipc_open(0, &handle, &untouched), GPU_ERROR_INVALID_CONTEXT);
    check(untouched == shared);
    write_word(memory, 7);
    check_error(peer_open(&peer, &handle), 0);
    check_error(peer_ask(&peer, "get 0 0"), 0);
    check(peer_value(&peer) == 7);
    check_error(peer_ask(&peer, "put 0 %u 8", (unsigned)(2 * MIB)), 0);
    check(read_word(memory + 2 * MIB) == 8);
    /* Open already: the same pointer, counted. The interior pointer's handle is the base's. */
    check_error(peer_open(&peer, &handle), 0);
    check_error(peer_ask(&peer, "same 0 1"), 0);
    check_error(peer_ask(&peer, "close 0"), 0);
    check_error(peer_open(&peer, &interior), 0);
    check_error(peer_ask(&peer, "same 1 2"), 0);
    check_error(peer_ask(&peer, "get 2 0"), 0);
    check(peer_value(&peer) == 7);
    check_error(peer_ask(&peer, "export 2"), GPU_ERROR_INVALID_VALUE);
    check_error(peer_ask(&peer, "close 2"), 0);
    check_error(peer_ask(&peer, "close 1"), 0);
    check(peer_ask(&peer, "close 1") != 0);
    check_error(gpu->memory_free(0, memory), 0);
    check(peer_open(&peer, &handle) != 0);
    peer_end(&peer, 0);
}

static void handles_are_good_under_any_uid(void) {
    void *memory;
    struct gpu_ipc_handle handle = {{0}};
    struct peer peer;

    if (geteuid() != 0) {
        printf("not root: handles under another uid were not tried\n");
        return;
    }
    memory = allocate(2 * MIB);
    peer = start_peer();
    write_word(memory, 9);
    check_error(gpu->ipc_export(0, memory, &handle), 0);
    check_error(peer_ask(&peer, "setuid %u", OTHER_UID), 0);
    check_error(peer_open(&peer, &handle), 0);
    check_error(peer_ask(&peer, "get 0 0"), 0);
    check(peer_value(&peer) == 9);
    peer_end(&peer, SIGKILL);
    check_error(gpu->memory_free(0, memory), 0);
}

static void mappings_outlive_the_exporter(void) {
    struct peer exporter = start_peer();
    struct gpu_ipc_handle handle = {{0}};
    void *memory = NULL;

    check_error(peer_ask(&exporter, "allocate %u", (unsigned)(2 * MIB)), 0);
    check_error(peer_ask(&exporter, "put 0 0 10"), 0);
    check_error(peer_ask(&exporter, "export 0"), 0);
    check(peer_handle_parse(exporter.text, &handle) == 0);
    check_error(gpu->ipc_open(0, &handle, &memory), 0);
    check(read_word(memory) == 10);
    check_error(peer_ask(&exporter, "free 0"), 0);
    check(read_word(memory) == 10);
    peer_end(&exporter, SIGKILL);
    check(read_word(memory) == 10);
    write_word(memory, 11);
    check(read_word(memory) == 11);
    check_error(gpu->ipc_close(0, memory), 0);
    check(gpu->ipc_open(0, &handle, &memory) != 0);
}

/* -1: not known. */
static int is_listed(pid_t pid) {
    pid_t pids[256];
    size_t count = 0;
    int r = gpu->processes(0, pids, 256, &count);

    if (r == GPU_ERROR_NOT_SUPPORTED)
        return -1;
    check_error(r, 0);
    for (size_t i = 0; r == 0 && i < count && i < 256; i++)
        if (pids[i] == pid)
            return 1;
    return 0;
}

static void processes_are_listed_while_they_hold_memory(void) {
    void *memory = allocate(2 * MIB);
    struct gpu_ipc_handle handle = {{0}};
    struct peer peer = start_peer();
    size_t count = 0;

    check_error(gpu->ipc_export(0, memory, &handle), 0);
    if (is_listed(getpid()) < 0)
        printf("the driver does not list processes here\n");
    else {
        check(is_listed(getpid()) == 1);
        check_error(peer_open(&peer, &handle), 0);
        check(comes_true(is_listed(peer.pid) == 1));
        check_error(gpu->processes(0, NULL, 0, &count), 0);
        check(count >= 2);
        peer_end(&peer, SIGKILL);
        check(comes_true(is_listed(peer.pid) == 0));
    }
    if (peer.fd >= 0)
        peer_end(&peer, 0);
    check_error(gpu->memory_free(0, memory), 0);
}

static void *reserve(uint64_t size_bytes) {
    void *address = NULL;

    check_error(gpu->address_reserve(0, size_bytes, &address), 0);
    return address;
}

static uint64_t create(uint64_t size_bytes) {
    uint64_t handle = 0;

    check_error(gpu->vmm_create(0, size_bytes, &handle), 0);
    return handle;
}

static void map_with_access(void *address, uint64_t size_bytes, uint64_t handle) {
    check_error(gpu->vmm_map(0, address, size_bytes, handle), 0);
    check_error(gpu->vmm_set_access(0, address, size_bytes, GPU_ACCESS_READ_WRITE), 0);
}

static void handles_are_mapped_side_by_side_and_moved(uint64_t granule) {
    char *row = reserve(8 * granule);
    uint64_t small = create(granule), large = create(2 * granule);

    check_error(gpu->vmm_map(0, row, granule, large), GPU_ERROR_NOT_SUPPORTED);
    check(gpu->vmm_map(0, row, 4 * granule, large) != 0);
    check_error(gpu->vmm_map(0, row, granule, small), 0);
    check(gpu->vmm_map(0, row, 2 * granule, large) != 0);
    check_error(gpu->vmm_map(0, row + granule, 2 * granule, large), 0);
    check_error(gpu->vmm_set_access(0, row, 3 * granule, GPU_ACCESS_READ_WRITE), 0);
    /* New memory is zero; a set over the border reaches both. */
    check(read_word(row) == 0 && read_word(row + 3 * granule - 8) == 0);
    check_error(gpu->memory_set(0, row + granule - 8, 1, 16, NULL), 0);
    check(read_word(row + granule) == UINT64_C(0x0101010101010101));
    /* One handle at two places, and other memory where the first one was. */
    map_with_access(row + 4 * granule, granule, small);
    check(read_word(row + 5 * granule - 8) == UINT64_C(0x0101010101010101));
    check_error(gpu->vmm_unmap(0, row, 3 * granule), 0);
    check(gpu->memory_set(0, row, 1, 8, NULL) != 0);
    map_with_access(row, 2 * granule, large);
    check(read_word(row) == UINT64_C(0x0101010101010101) && read_word(row + 8) == 0);
    /* A released handle's memory lives while it is mapped. */
    check_error(gpu->vmm_release(0, small), 0);
    check_error(gpu->vmm_release(0, large), 0);
    check(read_word(row + 5 * granule - 8) == UINT64_C(0x0101010101010101));
    check_error(gpu->vmm_unmap(0, row, 2 * granule), 0);
    check_error(gpu->vmm_unmap(0, row + 4 * granule, granule), 0);
    check_error(gpu->address_free(0, row, 8 * granule), 0);
}

static void descriptors_share_memory(uint64_t granule) {
    struct peer peer = start_peer();
    uint64_t handle = create(granule);
    char *memory = reserve(granule);
    int fd = -1;

    map_with_access(memory, granule, handle);
    write_word(memory, 21);
    check_error(gpu->vmm_export(0, handle, &fd), 0);
    check((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    check_error(peer_map(&peer, fd, granule, GPU_ACCESS_READ_WRITE), 0);
    check_error(peer_ask(&peer, "get 0 0"), 0);
    check(peer_value(&peer) == 21);
    check_error(peer_ask(&peer, "put 0 8 22"), 0);
    check(read_word(memory + 8) == 22);
    /* Once more, to read only; the importer itself may raise that. */
    check_error(peer_map(&peer, fd, granule, GPU_ACCESS_READ), 0);
    check_error(peer_ask(&peer, "get 1 8"), 0);
    check(peer_value(&peer) == 22);
    check_error(peer_ask(&peer, "put 1 8 23"), GPU_ERROR_INVALID_VALUE);
    check_error(peer_ask(&peer, "access 1 %llu 3", (unsigned long long)granule), 0);
    check_error(peer_ask(&peer, "put 1 8 23"), 0);
    check(read_word(memory + 8) == 23);
    check_error(peer_ask_line(&peer, "import", fd), 0);
    check_error(peer_ask(&peer, "export_again %s", peer.text), GPU_ERROR_INVALID_VALUE);
    if (is_listed(getpid()) >= 0)
        check(comes_true(is_listed(peer.pid) == 1));
    /* The descriptor outlives the handle and the mappings. */
    check_error(gpu->vmm_unmap(0, memory, granule), 0);
    check_error(gpu->vmm_release(0, handle), 0);
    peer_end(&peer, SIGKILL);
    if (is_listed(getpid()) >= 0)
        check(comes_true(is_listed(peer.pid) == 0));
    check_error(gpu->vmm_import(0, fd, &handle), 0);
    map_with_access(memory, granule, handle);
    check(read_word(memory + 8) == 23);
    check_error(gpu->vmm_unmap(0, memory, granule), 0);
    check_error(gpu->vmm_release(0, handle), 0);
    check_error(gpu->address_free(0, memory, granule), 0);
    close_fd(fd);
}

/* The mappings change while a stream is held up, and wait for nothing. */
static void mappings_change_beside_work(uint64_t granule) {
    uint64_t handle = create(granule);
    char *memory = reserve(granule);
    void *stream = NULL;

    shared[0] = 0;
    map_with_access(memory, granule, handle);
    check_error(gpu->stream_create(0, &stream), 0);
    check_error(gpu->stream_wait64(0, stream, &shared[0], 1), 0);
    check_error(gpu->vmm_unmap(0, memory, granule), 0);
    map_with_access(memory, granule, handle);
    check_error(gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    __atomic_store_n(&shared[0], 1, __ATOMIC_RELEASE);
    check_error(gpu->stream_synchronize(0, stream), 0);
    check_error(gpu->stream_destroy(0, stream), 0);
    check_error(gpu->vmm_unmap(0, memory, granule), 0);
    check_error(gpu->vmm_release(0, handle), 0);
    check_error(gpu->address_free(0, memory, granule), 0);
}

static void memory_is_made_apart_from_its_addresses(void) {
    uint64_t granule = 0, untouched = 7;
    int r = gpu->vmm_granule(0, &granule);

    if (r != 0) {
        printf("memory cannot be made apart from its addresses here: %s\n", gpu->error_name(r));
        check(is_cuda);
        return;
    }
    printf("memory apart from its addresses: multiples of %" PRIu64 " KiB\n", granule / KIB);
    check(granule > 0 && GPU_ALLOCATION_GRANULE % granule == 0);
    check_error(gpu->vmm_create(99, granule, &untouched), GPU_ERROR_INVALID_DEVICE);
    check(gpu->vmm_create(0, granule / 2, &untouched) != 0);
    check(untouched == 7);
    handles_are_mapped_side_by_side_and_moved(granule);
    descriptors_share_memory(granule);
    mappings_change_beside_work(granule);
}

/* --- host memory apart from its addresses --- */

/* Host code and the device see one memory, in this process and in the one that imports it. */
static void host_memory_is_shared_by_descriptor(int node, uint64_t granule) {
    struct peer peer = start_peer();
    char *memory = reserve(2 * granule);
    uint64_t handle = 0;
    int fd = -1;

    check_error(gpu->vmm_host_create(0, node, 2 * granule, &handle), 0);
    map_with_access(memory, 2 * granule, handle);
    check_error(gpu->vmm_host_set_access(0, memory, 2 * granule, GPU_ACCESS_READ_WRITE), 0);
    memset(memory, 1, 2 * granule);
    check(read_word(memory + 2 * granule - 8) == UINT64_C(0x0101010101010101));
    check_error(gpu->memory_set(0, memory, 2, granule, NULL), 0);
    check_error(gpu->device_synchronize(0), 0);
    check(memory[0] == 2 && memory[granule - 1] == 2 && memory[granule] == 1);
    check_error(gpu->vmm_export(0, handle, &fd), 0);
    check((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    check_error(gpu->vmm_release(0, handle), 0);
    check_error(peer_ask_line(&peer, "import", fd), 0);
    handle = peer_value(&peer);
    check_error(peer_ask(&peer, "map %" PRIu64 " %" PRIu64 " 3 3", handle, 2 * granule), 0);
    check_error(peer_ask(&peer, "release %" PRIu64, handle), 0);
    check_error(peer_ask(&peer, "load 0 0"), 0);
    check(peer_value(&peer) == UINT64_C(0x0202020202020202));
    check_error(peer_ask(&peer, "store 0 0 31"), 0);
    check(*(volatile uint64_t *)memory == 31 && read_word(memory) == 31);
    check_error(peer_ask(&peer, "put 0 8 32"), 0);
    check(*(volatile uint64_t *)(memory + 8) == 32);
    check_error(gpu->vmm_unmap(0, memory, 2 * granule), 0);
    check_error(gpu->address_free(0, memory, 2 * granule), 0);
    check_error(peer_ask(&peer, "load 0 8"), 0);
    check(peer_value(&peer) == 32);
    peer_end(&peer, SIGKILL);
    close_fd(fd);
}

/* Every device of this process can use it, and unmapping waits for no work. */
static void host_memory_is_for_all_devices(int node, uint64_t granule) {
    char *memory = reserve(granule);
    uint64_t handle = 0;
    unsigned count = 0;
    void *stream = NULL;

    check_error(gpu->vmm_host_create(0, node, granule, &handle), 0);
    check_error(gpu->vmm_map(0, memory, granule, handle), 0);
    check_error(gpu->vmm_host_set_access(0, memory, granule, GPU_ACCESS_READ_WRITE), 0);
    check(gpu->host_register(memory, granule) != 0);
    check_error(gpu->device_count(&count), 0);
    for (unsigned i = 0; i < count; i++) {
        check_error(gpu->vmm_set_access(i, memory, granule, GPU_ACCESS_READ_WRITE), 0);
        check_error(gpu->memory_set(i, memory + 8, (uint8_t)(40 + i), 1, NULL), 0);
        check_error(gpu->stream_synchronize(i, NULL), 0);
        check(*(volatile uint8_t *)(memory + 8) == 40 + i);
    }
    shared[0] = 0;
    *(uint64_t *)memory = 0;
    check_error(gpu->stream_create(0, &stream), 0);
    /* Streams write and wait for words of it. */
    check_error(gpu->stream_write64(0, stream, (uint64_t *)memory, 5), 0);
    check_error(gpu->stream_wait64(0, stream, (uint64_t *)memory, 5), 0);
    check_error(gpu->stream_synchronize(0, stream), 0);
    check(*(volatile uint64_t *)memory == 5);
    check_error(gpu->stream_wait64(0, stream, &shared[0], 1), 0);
    check_error(gpu->vmm_unmap(0, memory, granule), 0);
    check_error(gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    __atomic_store_n(&shared[0], 1, __ATOMIC_RELEASE);
    check_error(gpu->stream_synchronize(0, stream), 0);
    check_error(gpu->stream_destroy(0, stream), 0);
    check_error(gpu->vmm_release(0, handle), 0);
    check_error(gpu->address_free(0, memory, granule), 0);
}

static void host_memory_is_made_apart_from_its_addresses(void) {
    struct gpu_device device = {0};
    uint64_t granule = 0, untouched = 7;

    check_error(gpu->device_describe(0, &device), 0);
    int node = device.numa_node >= 0 ? device.numa_node : 0;
    int r = gpu->vmm_host_granule(0, node, &granule);
    if (r != 0) {
        printf("host memory cannot be made apart from its addresses here: %s\n", gpu->error_name(r));
        check(is_cuda);
        return;
    }
    printf("host memory apart from its addresses, node %d: multiples of %" PRIu64 " KiB\n", node,
           granule / KIB);
    check(granule > 0 && GPU_ALLOCATION_GRANULE % granule == 0);
    check_error(gpu->vmm_host_create(99, node, granule, &untouched), GPU_ERROR_INVALID_DEVICE);
    check(gpu->vmm_host_create(0, -1, granule, &untouched) != 0);
    check(untouched == 7);
    host_memory_is_shared_by_descriptor(node, granule);
    host_memory_is_for_all_devices(node, granule);
}

static void host_memory_is_registered_once(void) {
    check_error(gpu->host_register(shared, PEER_SHARED_BYTES), GPU_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    check_error(gpu->host_unregister(shared), 0);
    check_error(gpu->host_unregister(shared), GPU_ERROR_HOST_MEMORY_NOT_REGISTERED);
    check_error(gpu->host_register(shared, PEER_SHARED_BYTES), 0);
}

static void streams_work_in_order_and_on_their_own(void) {
    char *memory = allocate(2 * MIB);
    void *stream = NULL, *other = NULL;
    bool capturing = true;

    memset(shared, 0, 8192);
    check_error(gpu->stream_create(0, &stream), 0);
    check_error(gpu->stream_create(0, &other), 0);
    check_error(gpu->stream_is_capturing(0, stream, &capturing), 0);
    check(!capturing);
    check_error(gpu->stream_wait64(0, stream, &shared[0], 1), 0);
    check_error(gpu->memory_set(0, memory, 1, 4096, stream), 0);
    check_error(gpu->memory_copy(0, &shared[256], memory, 512, stream), 0);
    check_error(gpu->memory_set(0, memory, 2, 4096, stream), 0);
    check_error(gpu->memory_copy(0, &shared[512], memory, 512, stream), 0);
    check_error(gpu->stream_write64(0, stream, &shared[1], 42), 0);
    check_error(gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    check_error(gpu->memory_set(0, memory + MIB, 3, 4096, other), 0);
    check_error(gpu->stream_synchronize(0, other), 0);
    check_error(gpu->stream_query(0, other), 0);
    check_error(gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    check(__atomic_load_n(&shared[1], __ATOMIC_ACQUIRE) == 0);
    check_error(gpu->stream_write64(0, other, &shared[0], 1), 0);
    check(comes_true(__atomic_load_n(&shared[1], __ATOMIC_ACQUIRE) == 42));
    check_error(gpu->stream_synchronize(0, stream), 0);
    check_error(gpu->stream_query(0, stream), 0);
    check(shared[256] == UINT64_C(0x0101010101010101));
    check(shared[512] == UINT64_C(0x0202020202020202));
    check(read_word(memory + MIB) == UINT64_C(0x0303030303030303));
    /* Words are compared cyclically: all three are reached. */
    shared[2] = 5;
    check_error(gpu->stream_wait64(0, stream, &shared[2], 5), 0);
    check_error(gpu->stream_wait64(0, stream, &shared[2], 4), 0);
    check_error(gpu->stream_wait64(0, stream, &shared[2], UINT64_MAX - 5), 0);
    check_error(gpu->stream_synchronize(0, stream), 0);
    check(gpu->stream_write64(0, stream, &(uint64_t){0}, 1) != 0);
    /* The special ones. */
    check_error(gpu->memory_set(0, memory, 4, 8, (void *)0x1), 0);
    check_error(gpu->stream_synchronize(0, (void *)0x1), 0);
    check_error(gpu->memory_set(0, memory + 8, 5, 8, (void *)0x2), 0);
    check_error(gpu->stream_synchronize(0, (void *)0x2), 0);
    check_error(gpu->device_synchronize(0), 0);
    check(read_word(memory) == UINT64_C(0x0404040404040404));
    check(read_word(memory + 8) == UINT64_C(0x0505050505050505));
    check_error(gpu->stream_destroy(0, stream), 0);
    check_error(gpu->stream_destroy(0, other), 0);
    check_error(gpu->memory_free(0, memory), 0);
}

static void words_order_streams_of_two_processes(void) {
    struct peer peer = start_peer();
    void *stream = NULL;

    memset(shared, 0, 4096);
    check_error(gpu->stream_create(0, &stream), 0);
    check_error(peer_ask(&peer, "register"), 0);
    check_error(peer_ask(&peer, "stream"), 0);
    check_error(peer_ask(&peer, "wait64 0 1"), 0);
    check_error(peer_ask(&peer, "write64 1 5"), 0);
    check_error(gpu->stream_wait64(0, stream, &shared[1], 5), 0);
    check_error(gpu->stream_write64(0, stream, &shared[2], 6), 0);
    check_error(gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    __atomic_store_n(&shared[0], 1, __ATOMIC_RELEASE); /* the CPU may complete a word, too */
    check_error(gpu->stream_synchronize(0, stream), 0);
    check(shared[2] == 6);
    check_error(peer_ask(&peer, "sync"), 0);
    peer_end(&peer, 0);
    check_error(gpu->stream_destroy(0, stream), 0);
}

static void errors_have_names(void) {
    check(strcmp(gpu->error_name(GPU_ERROR_MEMORY_ALLOCATION), "cudaErrorMemoryAllocation") == 0);
    check(strcmp(gpu->error_name(GPU_ERROR_INVALID_CONTEXT), "cudaErrorDeviceUninitialized") == 0);
    check(strcmp(gpu->error_name(GPU_ERROR_MAP_BUFFER_OBJECT_FAILED), "cudaErrorMapBufferObjectFailed") == 0);
    check(strcmp(gpu->error_text(GPU_ERROR_MEMORY_ALLOCATION), "out of memory") == 0);
    check(gpu->error_name(123456) != NULL && gpu->error_text(123456) != NULL);
}

#ifdef GPU_TABLE_CUDA
static CUcontext current_context(void) {
    PFN_cuCtxGetCurrent_v4000 get = NULL;
    enum cudaDriverEntryPointQueryResult status;
    CUcontext context = (CUcontext)(uintptr_t)1;

#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", (void **)&get, 12000, cudaEnableDefault, &status);
#else
    cudaGetDriverEntryPoint("cuCtxGetCurrent", (void **)&get, cudaEnableDefault, &status);
#endif
    if (get != NULL)
        get(&context);
    return context;
}

/* Calls that succeed and calls that fail, on device 0. */
static void make_calls(void) {
    void *memory = allocate(2 * MIB), *untouched = NULL, *stream = NULL;

    check_error(gpu->stream_create(0, &stream), 0);
    check_error(gpu->memory_set(0, memory, 0, 4096, stream), 0);
    check_error(gpu->stream_synchronize(0, stream), 0);
    check_error(gpu->stream_destroy(0, stream), 0);
    check_error(gpu->host_register(shared, PEER_SHARED_BYTES), GPU_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    check_error(gpu->memory_allocate(0, UINT64_C(1) << 50, &untouched), GPU_ERROR_MEMORY_ALLOCATION);
    check_error(gpu->memory_free(0, memory), 0);
    check(gpu->memory_free(0, memory) != 0);
}

/* First of all checks: nothing has made a context current on this thread yet. */
static void a_thread_without_a_context_keeps_none(void) {
    unsigned device = 99;

    check(current_context() == NULL);
    check_error(gpu->device_current(&device), 0);
    check(device == 0);
    check(current_context() == NULL);
    make_calls();
    check(current_context() == NULL);
    check(cudaPeekAtLastError() == cudaSuccess);
}

/* Last of all checks: the runtime makes a context current here. */
static void the_callers_state_is_left_alone(void) {
    void *memory = NULL, *stream = NULL;
    unsigned count = 0, device = 99;
    cudaGraph_t graph = NULL;
    bool capturing = false;
    CUcontext before;
    int ordinal = -1;

    check_error(gpu->device_count(&count), 0);
    check(cudaSetDevice((int)count - 1) == cudaSuccess);
    check(cudaMalloc(&memory, (size_t)1 << 50) == cudaErrorMemoryAllocation);
    before = current_context();
    check(before != NULL);
    make_calls();
    check(current_context() == before);
    check(cudaGetDevice(&ordinal) == cudaSuccess && ordinal == (int)count - 1);
    check_error(gpu->device_current(&device), 0);
    check(device == count - 1);
    /* The program's own error is still there for it to find; ours are not. */
    check(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
    check(cudaGetLastError() == cudaErrorMemoryAllocation);
    check(cudaGetLastError() == cudaSuccess);
    make_calls();
    check(cudaPeekAtLastError() == cudaSuccess);

    check_error(gpu->stream_create(0, &stream), 0);
    check(cudaSetDevice(0) == cudaSuccess);
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    check_error(gpu->stream_is_capturing(0, stream, &capturing), 0);
    check(capturing);
    check(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    if (graph != NULL)
        cudaGraphDestroy(graph);
    check_error(gpu->stream_is_capturing(0, stream, &capturing), 0);
    check(!capturing);
    check_error(gpu->stream_destroy(0, stream), 0);
}
#endif

int main(int argc, char **argv) {
    int r;

    if (argc != 3 || (strcmp(argv[1], "cuda") != 0 && strcmp(argv[1], "sim") != 0)) {
        fprintf(stderr, "usage: gpu_table cuda|sim PEER\n");
        return 2;
    }
    is_cuda = strcmp(argv[1], "cuda") == 0;
    peer_path = argv[2];
    r = is_cuda ? gpu_cuda(&gpu) : gpu_sim(NULL, &gpu);
    if (r != 0) {
        fprintf(stderr, "no GPU for this: error %d (toolkit %s)\n", r, gpu_cuda_toolkit());
        return is_cuda && (r == GPU_ERROR_INSUFFICIENT_DRIVER || r == GPU_ERROR_NO_DEVICE) ? 77 : 1;
    }
    shared_fd = memfd_create("gpu-table", MFD_CLOEXEC);
    if (shared_fd < 0 || ftruncate(shared_fd, (off_t)PEER_SHARED_BYTES) < 0)
        return 2;
    shared = mmap(NULL, PEER_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
    if (shared == MAP_FAILED)
        return 2;
    check_error(gpu->host_register(shared, PEER_SHARED_BYTES), 0);
#ifdef GPU_TABLE_CUDA
    if (is_cuda)
        a_thread_without_a_context_keeps_none();
#endif
    devices_are_described();
    memory_is_allocated_and_refused();
    handles_share_memory();
    handles_are_good_under_any_uid();
    mappings_outlive_the_exporter();
    processes_are_listed_while_they_hold_memory();
    memory_is_made_apart_from_its_addresses();
    host_memory_is_made_apart_from_its_addresses();
    host_memory_is_registered_once();
    streams_work_in_order_and_on_their_own();
    words_order_streams_of_two_processes();
    errors_have_names();
#ifdef GPU_TABLE_CUDA
    if (is_cuda)
        the_callers_state_is_left_alone();
#endif
    check_error(gpu->host_unregister(shared), 0);
    printf("%s: %u checks, %u failed\n", gpu->name, checks, failures);
    return failures == 0 ? 0 : 1;
}
