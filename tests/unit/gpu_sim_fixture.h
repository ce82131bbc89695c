/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_SIM_FIXTURE_H
#define TESTS_GPU_SIM_FIXTURE_H
/*
 * The fixture of the simulated GPU's test programs: the table (2 devices of 256 MiB, no latencies), a memfd
 * that is mapped and registered here and shared with peers, and counting descriptors.
 */
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "base/units.h"
#include "gpu/sim/sim.h"
#include "gpu_peer.h"
#include "tests/entries.h"
#include "tests/unit/unit.h"

#define SIM_DEVICES      2u
#define SIM_DEVICE_BYTES (256 * MIB)

static const struct gpu *gpu;
static int shared_fd = -1;
static uint64_t *shared; /* PEER_SHARED_BYTES of registered memory */

static inline unsigned open_fds(void) {
    return count_entries("/proc/self/fd");
}

static inline void *allocate(uint64_t size_bytes) {
    void *memory = NULL;

    assert_int_equal(gpu->memory_allocate(0, size_bytes, &memory), 0);
    return memory;
}

static inline struct gpu_ipc_handle export(void *memory) {
    struct gpu_ipc_handle handle;

    assert_int_equal(gpu->ipc_export(0, memory, &handle), 0);
    return handle;
}

static inline struct peer start_peer(void) {
    struct peer peer = peer_start(GPU_PEER, "sim", shared_fd, NULL);

    assert_int_equal(peer_ask(&peer, "start"), 0);
    return peer;
}

static inline uint64_t read_word(const void *memory) {
    uint64_t value;

    assert_int_equal(gpu->memory_copy(0, &value, memory, sizeof(value), NULL), 0);
    return value;
}

static inline void write_word(void *memory, uint64_t value) {
    assert_int_equal(gpu->memory_copy(0, memory, &value, sizeof(value), NULL), 0);
}

/* Whether the driver lists the process on device 0. */
static inline bool is_listed(pid_t pid) {
    pid_t pids[64];
    size_t count;

    assert_int_equal(gpu->processes(0, pids, 64, &count), 0);
    for (size_t i = 0; i < count && i < 64; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

static inline int sim_setup(void **state) {
    (void)state;
    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    if (gpu_sim(&(struct gpu_sim_options){.devices = SIM_DEVICES, .device_bytes = SIM_DEVICE_BYTES}, &gpu) !=
        0)
        return -1;
    shared_fd = memfd_create("gpu-test", MFD_CLOEXEC);
    if (shared_fd < 0 || ftruncate(shared_fd, (off_t)PEER_SHARED_BYTES) < 0)
        return -1;
    shared = mmap(NULL, PEER_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
    return shared != MAP_FAILED && gpu->host_register(shared, PEER_SHARED_BYTES) == 0 ? 0 : -1;
}

static inline int sim_teardown(void **state) {
    (void)state;
    return gpu->host_unregister(shared);
}

#endif
