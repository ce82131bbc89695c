/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the simulated GPU's memory that is made apart from its addresses: what tests/gpu/gpu_table.c does
 * not ask, because a real GPU would not survive it, or says nothing of it.
 */
#include <pthread.h>
#include <sys/syscall.h>

#include "gpu/sim/internal.h"
#include "gpu_sim_fixture.h"
#include "tests/ghost.h"

#define GRANULE         GPU_ALLOCATION_GRANULE
#define ILLEGAL_ADDRESS 700
#define ONES            UINT64_C(0x0101010101010101)

static uint64_t create(uint64_t size_bytes) {
    uint64_t handle;

    assert_int_equal(gpu->vmm_create(0, size_bytes, &handle), 0);
    return handle;
}

static void *reserve(uint64_t size_bytes) {
    void *address;

    assert_int_equal(gpu->address_reserve(0, size_bytes, &address), 0);
    return address;
}

static void map_at(void *address, uint64_t size_bytes, uint64_t handle) {
    assert_int_equal(gpu->vmm_map(0, address, size_bytes, handle), 0);
    assert_int_equal(gpu->vmm_set_access(0, address, size_bytes, GPU_ACCESS_READ_WRITE), 0);
}

static int descriptor_of(uint64_t handle) {
    int fd;

    assert_int_equal(gpu->vmm_export(0, handle, &fd), 0);
    return fd;
}

static uint64_t free_bytes(void) {
    uint64_t bytes, total;

    assert_int_equal(gpu->device_memory(0, &bytes, &total), 0);
    return bytes;
}

/* A peer with a stream that is held up by shared[0], and a mapping of the descriptor's memory in slot 0. */
static struct peer held_up_peer(int fd) {
    struct peer peer = start_peer();

    shared[0] = shared[1] = 0;
    assert_int_equal(peer_ask(&peer, "register"), 0);
    assert_int_equal(peer_ask(&peer, "stream"), 0);
    assert_int_equal(peer_map(&peer, fd, GRANULE, GPU_ACCESS_READ_WRITE), 0);
    assert_int_equal(peer_ask(&peer, "wait64 0 1"), 0);
    assert_int_equal(peer_ask(&peer, "set 0 1 %u", (unsigned)GRANULE), 0);
    assert_int_equal(peer_ask(&peer, "write64 1 1"), 0);
    return peer;
}

/* --- streams --- */

static void work_on_unmapped_memory_ends_the_device(void **state) {
    uint64_t handle = create(GRANULE);
    char *memory = reserve(GRANULE);
    int fd = descriptor_of(handle);
    struct peer peer = held_up_peer(fd);

    (void)state;
    map_at(memory, GRANULE, handle);
    assert_int_equal(peer_ask(&peer, "unmap 0 %u", (unsigned)GRANULE), 0);
    __atomic_store_n(&shared[0], 1, __ATOMIC_RELEASE);
    WAIT_UNTIL(peer_ask(&peer, "query") == ILLEGAL_ADDRESS);
    assert_int_equal(peer_ask(&peer, "sync"), ILLEGAL_ADDRESS);
    assert_int_equal(peer_ask(&peer, "allocate %u", (unsigned)GRANULE), ILLEGAL_ADDRESS);
    /* Nothing that the stream was given after it is done, and the memory is as it was. */
    assert_int_equal(__atomic_load_n(&shared[1], __ATOMIC_ACQUIRE), 0);
    assert_int_equal(read_word(memory), 0);
    peer_end(&peer, 0);
    assert_int_equal(gpu->vmm_unmap(0, memory, GRANULE), 0);
    assert_int_equal(gpu->vmm_release(0, handle), 0);
    assert_int_equal(gpu->address_free(0, memory, GRANULE), 0);
    close(fd);
}

static void work_uses_what_is_mapped_there_by_then(void **state) {
    uint64_t first = create(GRANULE), second = create(GRANULE);
    char *memory = reserve(GRANULE);
    void *stream;

    (void)state;
    shared[0] = 0;
    map_at(memory, GRANULE, first);
    assert_int_equal(gpu->stream_create(0, &stream), 0);
    assert_int_equal(gpu->stream_wait64(0, stream, &shared[0], 1), 0);
    assert_int_equal(gpu->memory_set(0, memory, 1, GRANULE, stream), 0);
    assert_int_equal(gpu->vmm_unmap(0, memory, GRANULE), 0);
    map_at(memory, GRANULE, second);
    assert_int_equal(read_word(memory), 0);
    __atomic_store_n(&shared[0], 1, __ATOMIC_RELEASE);
    assert_int_equal(gpu->stream_synchronize(0, stream), 0);
    assert_true(read_word(memory) == ONES);
    assert_int_equal(gpu->vmm_unmap(0, memory, GRANULE), 0);
    map_at(memory, GRANULE, first);
    assert_int_equal(read_word(memory), 0);
    assert_int_equal(gpu->stream_destroy(0, stream), 0);
    assert_int_equal(gpu->vmm_unmap(0, memory, GRANULE), 0);
    assert_int_equal(gpu->vmm_release(0, first), 0);
    assert_int_equal(gpu->vmm_release(0, second), 0);
    assert_int_equal(gpu->address_free(0, memory, GRANULE), 0);
}

static void each_device_has_its_own_access(void **state) {
    uint64_t handle = create(GRANULE), value = 5;
    char *memory = reserve(GRANULE);

    (void)state;
    assert_int_equal(gpu->vmm_map(0, memory, GRANULE, handle), 0);
    assert_int_equal(gpu->memory_set(0, memory, 1, 8, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_set_access(1, memory, GRANULE, GPU_ACCESS_READ_WRITE), 0);
    assert_int_equal(gpu->memory_set(0, memory, 1, 8, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_set(1, memory, 1, 8, NULL), 0);
    assert_int_equal(gpu->device_synchronize(1), 0);
    assert_int_equal(gpu->vmm_set_access(0, memory, GRANULE, GPU_ACCESS_READ), 0);
    assert_int_equal(gpu->memory_copy(0, memory, &value, 8, NULL), GPU_ERROR_INVALID_VALUE);
    assert_true(read_word(memory) == ONES);
    assert_int_equal(gpu->vmm_set_access(0, memory, GRANULE, GPU_ACCESS_NONE), 0);
    assert_int_equal(gpu->memory_copy(0, &value, memory, 8, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_unmap(0, memory, GRANULE), 0);
    assert_int_equal(gpu->vmm_release(0, handle), 0);
    assert_int_equal(gpu->address_free(0, memory, GRANULE), 0);
}

/* --- host memory --- */

static uint64_t create_host(uint64_t size_bytes) {
    uint64_t handle;

    assert_int_equal(gpu->vmm_host_create(0, 0, size_bytes, &handle), 0);
    return handle;
}

static void host_memory_counts_for_no_device(void **state) {
    uint64_t free_before = free_bytes(), handle = create_host(4 * GRANULE), untouched = 3;

    (void)state;
    assert_int_equal(free_bytes(), free_before);
    assert_int_equal(gpu->vmm_release(0, handle), 0);
    assert_int_equal(free_bytes(), free_before);
    assert_int_equal(gpu->vmm_host_create(0, -1, GRANULE, &untouched), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_host_create(0, 0, GRANULE / 2, &untouched), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_host_granule(0, -1, &untouched), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(untouched, 3);
}

static void host_code_and_each_device_have_their_own_access(void **state) {
    uint64_t handle = create_host(GRANULE), device_handle = create(GRANULE);
    char *memory = reserve(GRANULE), *device_memory = reserve(GRANULE);

    (void)state;
    assert_int_equal(gpu->vmm_map(0, memory, GRANULE, handle), 0);
    assert_int_equal(gpu->vmm_host_set_access(0, memory, GRANULE, GPU_ACCESS_READ_WRITE), 0);
    memset(memory, 1, GRANULE);
    assert_int_equal(gpu->memory_set(0, memory, 2, 8, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_set_access(1, memory, GRANULE, GPU_ACCESS_READ_WRITE), 0);
    assert_int_equal(gpu->memory_set(0, memory, 2, 8, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_set(1, memory, 2, 8, NULL), 0);
    assert_int_equal(gpu->device_synchronize(1), 0);
    assert_true(*(uint64_t *)memory == 2 * ONES && *(uint64_t *)(memory + 8) == ONES);
    assert_int_equal(gpu->host_register(memory, 4096), GPU_ERROR_INVALID_VALUE);
    /* Host code gets no access to memory of a device. */
    map_at(device_memory, GRANULE, device_handle);
    assert_int_equal(gpu->vmm_host_set_access(0, device_memory, GRANULE, GPU_ACCESS_READ_WRITE),
                     GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_host_set_access(0, memory, GRANULE / 2, GPU_ACCESS_READ_WRITE),
                     GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_unmap(0, memory, GRANULE), 0);
    assert_int_equal(gpu->vmm_unmap(0, device_memory, GRANULE), 0);
    assert_int_equal(gpu->vmm_release(0, handle), 0);
    assert_int_equal(gpu->vmm_release(0, device_handle), 0);
    assert_int_equal(gpu->address_free(0, memory, GRANULE), 0);
    assert_int_equal(gpu->address_free(0, device_memory, GRANULE), 0);
}

/* A stream waits for a word of such memory, which host code writes. */
static void words_lie_in_mapped_host_memory(void **state) {
    uint64_t handle = create_host(GRANULE), device_handle = create(GRANULE), *words = reserve(GRANULE);
    uint64_t *device_words = reserve(GRANULE);
    void *stream;

    (void)state;
    map_at(device_words, GRANULE, device_handle);
    assert_int_equal(gpu->stream_create(0, &stream), 0);
    assert_int_equal(gpu->vmm_map(0, words, GRANULE, handle), 0);
    assert_int_equal(gpu->vmm_host_set_access(0, words, GRANULE, GPU_ACCESS_READ_WRITE), 0);
    assert_int_equal(gpu->stream_wait64(0, stream, words, 1), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_set_access(0, words, GRANULE, GPU_ACCESS_READ_WRITE), 0);
    assert_int_equal(gpu->stream_wait64(0, stream, device_words, 1), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->stream_wait64(0, stream, words, 1), 0);
    assert_int_equal(gpu->stream_write64(0, stream, words + 1, 2), 0);
    assert_int_equal(gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    __atomic_store_n(words, 1, __ATOMIC_RELEASE);
    assert_int_equal(gpu->stream_synchronize(0, stream), 0);
    assert_int_equal(words[1], 2);
    assert_int_equal(gpu->stream_destroy(0, stream), 0);
    assert_int_equal(gpu->vmm_unmap(0, words, GRANULE), 0);
    assert_int_equal(gpu->vmm_unmap(0, device_words, GRANULE), 0);
    assert_int_equal(gpu->vmm_release(0, handle), 0);
    assert_int_equal(gpu->vmm_release(0, device_handle), 0);
    assert_int_equal(gpu->address_free(0, words, GRANULE), 0);
    assert_int_equal(gpu->address_free(0, device_words, GRANULE), 0);
}

/* --- addresses --- */

static void reserved_addresses_are_not_host_memory(void **state) {
    char *room = reserve(2 * GRANULE), own[8] = {0};

    (void)state;
    assert_int_equal((uintptr_t)room % GRANULE, 0);
    assert_int_equal(gpu->host_register(room, 4096), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_copy(0, room, own, 8, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_copy(0, own, room + 2 * GRANULE - 8, 8, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->address_free(0, room, 2 * GRANULE), 0);
}

static void only_whole_rows_are_changed(void **state) {
    uint64_t handle = create(2 * GRANULE), other = create(GRANULE);
    char *room = reserve(8 * GRANULE);

    (void)state;
    assert_int_equal(gpu->vmm_map(0, room + 1, 2 * GRANULE, handle), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_map(0, room + 7 * GRANULE, 2 * GRANULE, handle), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_map(0, room, UINT64_MAX, handle), GPU_ERROR_INVALID_VALUE);
    map_at(room + GRANULE, 2 * GRANULE, handle);
    map_at(room + 4 * GRANULE, GRANULE, other);
    assert_int_equal(gpu->vmm_map(0, room + 2 * GRANULE, GRANULE, other), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_unmap(0, room + GRANULE, GRANULE), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_unmap(0, room + 2 * GRANULE, GRANULE), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_unmap(0, room + GRANULE, 4 * GRANULE), GPU_ERROR_INVALID_VALUE); /* a hole */
    assert_int_equal(gpu->vmm_unmap(0, room + GRANULE, 0), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_unmap(0, room + GRANULE, UINT64_MAX), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_set_access(0, room + GRANULE, GRANULE, GPU_ACCESS_READ),
                     GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_set_access(0, room + GRANULE, 2 * GRANULE, (enum gpu_access)4),
                     GPU_ERROR_INVALID_VALUE);
    write_word(room + 3 * GRANULE - 8, 9);
    assert_int_equal(read_word(room + 3 * GRANULE - 8), 9);
    /* A copy that goes on where nothing is mapped is refused. */
    assert_int_equal(gpu->memory_set(0, room + GRANULE, 1, 3 * GRANULE, NULL), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->address_free(0, room, 8 * GRANULE), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_unmap(0, room + GRANULE, 2 * GRANULE), 0);
    assert_int_equal(gpu->vmm_unmap(0, room + 4 * GRANULE, GRANULE), 0);
    assert_int_equal(gpu->address_free(0, room, 4 * GRANULE), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->address_free(0, room + GRANULE, 7 * GRANULE), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->address_free(0, room, 8 * GRANULE), 0);
    assert_int_equal(gpu->vmm_release(0, handle), 0);
    assert_int_equal(gpu->vmm_release(0, other), 0);
    assert_int_equal(gpu->address_reserve(0, GRANULE / 2, (void **)&room), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->address_reserve(0, 0, (void **)&room), GPU_ERROR_INVALID_VALUE);
}

/* --- handles --- */

static void memory_counts_until_nobody_here_has_it(void **state) {
    uint64_t free_before = free_bytes(), all, handle = create(4 * GRANULE), untouched = 3;
    char *room = reserve(4 * GRANULE);

    (void)state;
    assert_int_equal(free_bytes(), free_before - 4 * GRANULE);
    assert_int_equal(gpu->vmm_create(0, SIM_DEVICE_BYTES, &untouched), GPU_ERROR_MEMORY_ALLOCATION);
    assert_int_equal(untouched, 3);
    map_at(room, 4 * GRANULE, handle);
    assert_int_equal(gpu->vmm_release(0, handle), 0);
    assert_int_equal(free_bytes(), free_before - 4 * GRANULE);
    assert_int_equal(gpu->vmm_release(0, handle), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_map(0, room, 4 * GRANULE, handle), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_unmap(0, room, 4 * GRANULE), 0);
    assert_int_equal(free_bytes(), free_before);
    all = create(free_before);
    assert_int_equal(free_bytes(), 0);
    assert_int_equal(gpu->vmm_release(0, all), 0);
    assert_int_equal(gpu->address_free(0, room, 4 * GRANULE), 0);
}

static void only_such_memory_is_imported(void **state) {
    uint64_t handle;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int unsealed = memfd_create("gpupool-sim-vmm/0/1/000102030405060708090a0b0c0d0e0f", MFD_CLOEXEC);
    int no_device = memfd_create("gpupool-sim-vmm-host/99/1/000102030405060708090a0b0c0d0e0f",
                                 MFD_CLOEXEC | MFD_ALLOW_SEALING);

    (void)state;
    assert_int_equal(ftruncate(plain, (off_t)GRANULE), 0);
    assert_int_equal(ftruncate(unsealed, (off_t)GRANULE), 0);
    assert_int_equal(ftruncate(no_device, (off_t)GRANULE), 0);
    assert_int_equal(fcntl(plain, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(fcntl(no_device, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(gpu->vmm_import(0, -1, &handle), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_import(0, null, &handle), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_import(0, plain, &handle), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_import(0, unsealed, &handle), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->vmm_import(0, no_device, &handle), GPU_ERROR_INVALID_VALUE);
    close(no_device);
    close(null);
    close(plain);
    close(unsealed);
}

static void memory_outlives_its_exporter(void **state) {
    struct peer exporter = start_peer();
    char *room = reserve(GRANULE);
    uint64_t handle;

    (void)state;
    assert_int_equal(peer_ask(&exporter, "offer %u", (unsigned)GRANULE), 0);
    int pidfd = (int)syscall(SYS_pidfd_open, exporter.pid, 0);
    int fd = (int)syscall(SYS_pidfd_getfd, pidfd, (int)peer_value(&exporter), 0);
    assert_true(fd >= 0);
    peer_end(&exporter, SIGKILL);
    assert_int_equal(gpu->vmm_import(0, fd, &handle), 0);
    map_at(room, GRANULE, handle);
    write_word(room, 4);
    assert_int_equal(read_word(room), 4);
    assert_int_equal(gpu->vmm_unmap(0, room, GRANULE), 0);
    assert_int_equal(gpu->vmm_release(0, handle), 0);
    assert_int_equal(gpu->address_free(0, room, GRANULE), 0);
    close(fd);
    close(pidfd);
}

static void a_failing_call_does_nothing(void **state) {
    static const char *const calls[] = {"vmm_granule",     "vmm_create",  "vmm_export",     "vmm_import",
                                        "address_reserve", "vmm_map",     "vmm_set_access", "vmm_unmap",
                                        "vmm_release",     "address_free"};
    static const char *const host_calls[] = {"vmm_host_granule", "vmm_host_create", "vmm_host_set_access"};
    enum {
        CALLS = sizeof(calls) / sizeof(calls[0])
    };
    uint64_t free_before = free_bytes();
    unsigned fds = open_fds();

    (void)state;
    for (unsigned i = 0; i < CALLS + sizeof(host_calls) / sizeof(host_calls[0]); i++) {
        const char *call = i < CALLS ? calls[i] : host_calls[i - CALLS];
        bool is_host = i >= CALLS;
        uint64_t granule = 0, handle = 0, imported = 0;
        void *room = NULL;
        int fd = -1, errors = 0;

        assert_int_equal(gpu_sim_fail(call, 1, GPU_ERROR_UNKNOWN), 0);
#define TWICE(call) /* the failing call fails once, and then succeeds */                                     \
    do {                                                                                                     \
        if ((call) != 0) {                                                                                   \
            errors++;                                                                                        \
            assert_int_equal((call), 0);                                                                     \
        }                                                                                                    \
    } while (0)
        TWICE(is_host ? gpu->vmm_host_granule(0, 0, &granule) : gpu->vmm_granule(0, &granule));
        TWICE(is_host ? gpu->vmm_host_create(0, 0, granule, &handle) : gpu->vmm_create(0, granule, &handle));
        TWICE(gpu->vmm_export(0, handle, &fd));
        TWICE(gpu->vmm_import(0, fd, &imported));
        TWICE(gpu->address_reserve(0, granule, &room));
        TWICE(gpu->vmm_map(0, room, granule, imported));
        TWICE(gpu->vmm_set_access(0, room, granule, GPU_ACCESS_READ_WRITE));
        if (is_host)
            TWICE(gpu->vmm_host_set_access(0, room, granule, GPU_ACCESS_READ_WRITE));
        TWICE(gpu->vmm_unmap(0, room, granule));
        TWICE(gpu->vmm_release(0, imported));
        assert_int_equal(gpu->vmm_release(0, handle), 0);
        TWICE(gpu->address_free(0, room, granule));
        assert_int_equal(errors, 1);
        assert_int_equal(gpu_sim_fail(call, 0, 0), 0);
        close(fd);
        assert_int_equal(free_bytes(), free_before);
        assert_int_equal(open_fds(), fds);
    }
}

/* --- processes --- */

static void importers_are_listed_until_they_have_none(void **state) {
    uint64_t handle = create(GRANULE);
    int fd = descriptor_of(handle);
    struct peer peer = start_peer();

    (void)state;
    assert_int_equal(gpu->vmm_release(0, handle), 0);
    assert_false(is_listed(peer.pid));
    assert_int_equal(peer_map(&peer, fd, GRANULE, GPU_ACCESS_READ_WRITE), 0);
    assert_true(is_listed(peer.pid));
    assert_int_equal(peer_ask(&peer, "release 1"), 0);
    assert_true(is_listed(peer.pid));
    assert_int_equal(peer_ask(&peer, "unmap 0 %u", (unsigned)GRANULE), 0);
    WAIT_UNTIL(!is_listed(peer.pid));
    peer_end(&peer, 0);
    close(fd);
}

static void a_dead_importer_writes_on_and_stays_listed(void **state) {
    uint64_t handle = create(GRANULE), *memory = reserve(GRANULE), last;
    int fd = descriptor_of(handle);
    struct peer peer =
        peer_start(GPU_PEER, "sim", -1, (char *[]){"GPUPOOL_SIM_LINGER_MS=" GHOST_LINGERS, NULL});
    pid_t ghost;

    (void)state;
    map_at(memory, GRANULE, handle);
    assert_int_equal(peer_map(&peer, fd, GRANULE, GPU_ACCESS_READ_WRITE), 0);
    assert_int_equal(peer_map(&peer, fd, GRANULE, GPU_ACCESS_READ_WRITE), 0);
    assert_int_equal(peer_ask(&peer, "unmap 0 %u", (unsigned)GRANULE), 0);
    WAIT_UNTIL((ghost = find_ghost(peer.pid)) > 0);
    write_word(memory, 0);
    kill(peer.pid, SIGKILL);
    WAIT_UNTIL(__atomic_load_n(memory, __ATOMIC_ACQUIRE) > 3);
    assert_true(is_listed(peer.pid));
    kill(ghost, SIGKILL);
    WAIT_UNTIL(!is_listed(peer.pid));
    last = read_word(memory);
    assert_true(last > 3);
    assert_int_equal(read_word(memory), last);
    peer_end(&peer, SIGKILL);
    assert_int_equal(gpu->vmm_unmap(0, memory, GRANULE), 0);
    assert_int_equal(gpu->vmm_release(0, handle), 0);
    assert_int_equal(gpu->address_free(0, memory, GRANULE), 0);
    close(fd);
}

/* --- threads --- */

#define THREADS 4u
#define ROUNDS  100u

static void *change_and_use(void *argument) {
    uint64_t number = *(unsigned *)argument + 1, value = 0;
    char *room;
    void *stream;
    long wrong =
        gpu->address_reserve(0, 4 * GRANULE, (void **)&room) != 0 || gpu->stream_create(0, &stream) != 0;

    for (unsigned round = 0; wrong == 0 && round < ROUNDS; round++) {
        char *at = room + round % 3 * GRANULE;
        uint64_t handle;
        wrong = gpu->vmm_create(0, GRANULE, &handle) != 0 || gpu->vmm_map(0, at, GRANULE, handle) != 0 ||
                gpu->vmm_release(0, handle) != 0 ||
                gpu->vmm_set_access(0, at, GRANULE, GPU_ACCESS_READ_WRITE) != 0 ||
                gpu->memory_set(0, at + 4096, (uint8_t)number, 8, stream) != 0 ||
                gpu->stream_synchronize(0, stream) != 0 ||
                gpu->memory_copy(0, &value, at + 4096, 8, stream) != 0 || value != number * ONES ||
                gpu->vmm_unmap(0, at, GRANULE) != 0;
    }
    if (wrong == 0)
        wrong = gpu->stream_destroy(0, stream) != 0 || gpu->address_free(0, room, 4 * GRANULE) != 0;
    return (void *)wrong;
}

static void threads_do_not_disturb_each_other(void **state) {
    unsigned numbers[THREADS];
    pthread_t threads[THREADS];
    uint64_t free_before = free_bytes();

    (void)state;
    for (unsigned i = 0; i < THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, change_and_use, &numbers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        void *wrong;
        TEST_JOIN(threads[i], &wrong);
        assert_null(wrong);
    }
    assert_int_equal(free_bytes(), free_before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_on_unmapped_memory_ends_the_device),
        cmocka_unit_test(work_uses_what_is_mapped_there_by_then),
        cmocka_unit_test(each_device_has_its_own_access),
        cmocka_unit_test(host_memory_counts_for_no_device),
        cmocka_unit_test(host_code_and_each_device_have_their_own_access),
        cmocka_unit_test(words_lie_in_mapped_host_memory),
        cmocka_unit_test(reserved_addresses_are_not_host_memory),
        cmocka_unit_test(only_whole_rows_are_changed),
        cmocka_unit_test(memory_counts_until_nobody_here_has_it),
        cmocka_unit_test(only_such_memory_is_imported),
        cmocka_unit_test(memory_outlives_its_exporter),
        cmocka_unit_test(a_failing_call_does_nothing),
        cmocka_unit_test(importers_are_listed_until_they_have_none),
        cmocka_unit_test(a_dead_importer_writes_on_and_stays_listed),
        cmocka_unit_test(threads_do_not_disturb_each_other),
    };

    return cmocka_run_group_tests_name("gpu_sim_vmm", tests, sim_setup, sim_teardown);
}
