/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated GPU's memory: which ranges of addresses the driver knows. A range is registered when it is
 * allocated, opened or registered, and unregistered when it is freed, closed or unregistered; operations that
 * streams still hold keep it, and its mapping, alive until they are done. The registry is an array sorted by
 * address; ranges in it never overlap. An allocation counts against its device's size from its making to its
 * freeing.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/high_fd.h"
#include "base/lock.h"
#include "base/units.h"
#include "gpu/sim/internal.h"

/* Fresh memory holds this, so that no program comes to rely on zeros. Of large allocations only both ends do:
 * touching every page would cost more than the rest of a test. */
#define FRESH_BYTE      0xa5
#define FRESH_FULL_MAX  (64 * MIB)
#define FRESH_END_BYTES (4 * MIB)

/* Measured on H200, driver 580, CUDA 13.0. Times that grow with the size are those of a GiB. */
#define ALLOCATE_NS            (25 * NS_PER_US)
#define ALLOCATE_GIB_NS        (44 * NS_PER_US)
#define FREE_NS                (22 * NS_PER_US)
#define FREE_GIB_NS            (203 * NS_PER_US)
#define HOST_REGISTER_NS       (150 * NS_PER_US)
#define HOST_REGISTER_GIB_NS   (31 * NS_PER_MS)
#define HOST_UNREGISTER_NS     (50 * NS_PER_US)
#define HOST_UNREGISTER_GIB_NS (11500 * NS_PER_US)

#define PAGE_BYTES UINT64_C(4096)

static struct {
    pthread_mutex_t lock;
    struct sim_range **ranges; /* by start */
    size_t count, capacity;
    uint64_t allocated_bytes[GPU_SIM_DEVICES_MAX];
    uint64_t last_id;
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* How many registered ranges start at or below an address. Locked. */
static size_t ranges_up_to(uintptr_t address) {
    size_t low = 0, high = memory.count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (memory.ranges[middle]->start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool range_holds(const struct sim_range *range, uintptr_t address) {
    return address >= range->start && address - range->start < range->size_bytes;
}

/* The index of the first registered range with a byte in [start, start + size), or -1. Locked. */
static ssize_t first_touching(uintptr_t start, uint64_t size_bytes) {
    size_t index = ranges_up_to(start);

    if (index > 0 && range_holds(memory.ranges[index - 1], start))
        return (ssize_t)index - 1;
    if (index < memory.count && memory.ranges[index]->start - start < size_bytes)
        return (ssize_t)index;
    return -1;
}

static void remove_at(size_t index) {
    memory.count--;
    memmove(&memory.ranges[index], &memory.ranges[index + 1],
            (memory.count - index) * sizeof(memory.ranges[0]));
}

struct sim_range *sim_range_new(enum sim_range_kind kind, unsigned physical, void *start,
                                uint64_t size_bytes) {
    struct sim_range *range = calloc(1, sizeof(*range));

    if (range != NULL)
        *range = (struct sim_range){.kind = kind,
                                    .start = (uintptr_t)start,
                                    .size_bytes = size_bytes,
                                    .references = 1,
                                    .physical = physical,
                                    .memfd = -1};
    return range;
}

struct sim_range *sim_range_map(enum sim_range_kind kind, unsigned physical, int memfd, uint64_t size_bytes) {
    struct own_mapping *mapping;

    if (own_mapping_make(memfd, size_bytes, PAGE_BYTES, &mapping) < 0)
        return NULL;
    struct sim_range *range = sim_range_new(kind, physical, mapping->memory, size_bytes);
    if (range == NULL)
        (void)own_mapping_unmap(mapping);
    else
        range->mapping = mapping;
    return range;
}

struct sim_range *sim_range_ref(struct sim_range *range) {
    __atomic_add_fetch(&range->references, 1, __ATOMIC_RELAXED);
    return range;
}

struct sim_range *sim_range_unref(struct sim_range *range) {
    if (range == NULL || __atomic_sub_fetch(&range->references, 1, __ATOMIC_ACQ_REL) > 0)
        return NULL;
    (void)own_mapping_unmap(range->mapping);
    close_fd(range->memfd);
    free(range);
    return NULL;
}

struct sim_range *sim_range_find(const void *address) {
    LOCKED(&memory.lock);
    size_t index = ranges_up_to((uintptr_t)address);
    if (index == 0 || !range_holds(memory.ranges[index - 1], (uintptr_t)address))
        return NULL;
    return sim_range_ref(memory.ranges[index - 1]);
}

struct sim_range *sim_range_find_allocation(uint64_t id) {
    LOCKED(&memory.lock);
    for (size_t i = 0; i < memory.count; i++)
        if (memory.ranges[i]->kind == SIM_RANGE_DEVICE && memory.ranges[i]->id == id)
            return sim_range_ref(memory.ranges[i]);
    return NULL;
}

bool sim_range_touches(const void *start, uint64_t size_bytes) {
    LOCKED(&memory.lock);
    return first_touching((uintptr_t)start, size_bytes) >= 0;
}

/* Locked. */
static int insert(struct sim_range *range) {
    size_t index;

    if (memory.count == memory.capacity) {
        size_t capacity = memory.capacity > 0 ? 2 * memory.capacity : 64;
        struct sim_range **ranges = realloc(memory.ranges, capacity * sizeof(*ranges));

        if (ranges == NULL)
            return GPU_ERROR_MEMORY_ALLOCATION;
        memory.ranges = ranges;
        memory.capacity = capacity;
    }
    index = ranges_up_to(range->start);
    memmove(&memory.ranges[index + 1], &memory.ranges[index],
            (memory.count - index) * sizeof(memory.ranges[0]));
    memory.ranges[index] = range;
    memory.count++;
    return 0;
}

int sim_range_register(struct sim_range *range) {
    LOCKED(&memory.lock);
    /* The kernel has just given us these addresses: host memory that was registered there has been unmapped
     * since. */
    for (;;) {
        ssize_t stale = first_touching(range->start, range->size_bytes);

        if (stale < 0 || memory.ranges[stale]->kind != SIM_RANGE_HOST)
            break;
        sim_range_unref(memory.ranges[stale]);
        remove_at((size_t)stale);
    }
    range->id = ++memory.last_id;
    return insert(range);
}

bool sim_range_unregister(struct sim_range *range) {
    pthread_mutex_lock(&memory.lock);
    size_t index = ranges_up_to(range->start);
    bool found = index > 0 && memory.ranges[index - 1] == range;
    if (found) {
        remove_at(index - 1);
        if (range->kind == SIM_RANGE_DEVICE)
            memory.allocated_bytes[range->physical] -= range->size_bytes;
    }
    pthread_mutex_unlock(&memory.lock);
    if (found)
        sim_range_unref(range);
    return found;
}

bool sim_is_mapped(const void *start, uint64_t size_bytes) {
    unsigned char resident[1024]; /* 4 MiB at a time */
    uintptr_t page = (uintptr_t)start & ~(PAGE_BYTES - 1), end = (uintptr_t)start + size_bytes;

    if (end < (uintptr_t)start)
        return false;
    while (page < end) {
        uint64_t part =
            end - page < sizeof(resident) * PAGE_BYTES ? end - page : sizeof(resident) * PAGE_BYTES;

        if (mincore((void *)page, part, resident) < 0 && errno == ENOMEM)
            return false;
        page += (part + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    }
    return true;
}

/* --- the table's calls --- */

int sim_device_memory(unsigned device, uint64_t *ret_free_bytes, uint64_t *ret_total_bytes) {
    unsigned physical;
    int r = sim_enter_on(SIM_DEVICE_MEMORY, device, &physical);

    if (r != 0)
        return r;
    LOCKED(&memory.lock);
    *ret_free_bytes = sim_settings.device_bytes - memory.allocated_bytes[physical];
    *ret_total_bytes = sim_settings.device_bytes;
    return 0;
}

void sim_memory_soil(void *start, uint64_t size_bytes) {
    if (size_bytes <= FRESH_FULL_MAX) {
        memset(start, FRESH_BYTE, size_bytes);
        return;
    }
    memset(start, FRESH_BYTE, FRESH_END_BYTES);
    memset((char *)start + size_bytes - FRESH_END_BYTES, FRESH_BYTE, FRESH_END_BYTES);
}

int sim_memfd_make(const char *name, uint64_t size_bytes, int *ret_memfd) {
    _cleanup_(close_fdp) int memfd = high_fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));

    if (memfd < 0 || ftruncate(memfd, (off_t)size_bytes) < 0)
        return GPU_ERROR_MEMORY_ALLOCATION;
    /* An importer must not be able to cut pages out from under the exporter. */
    if (fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return GPU_ERROR_UNKNOWN;
    *ret_memfd = take_fd(&memfd);
    return 0;
}

/* Makes the memory of an allocation whose bytes are charged already. */
static int allocation_create(unsigned physical, uint64_t size_bytes, struct sim_range **ret_range) {
    _cleanup_(close_fdp) int memfd = -1;
    int r = sim_memfd_make("gpupool-sim-device", size_bytes, &memfd);

    if (r != 0)
        return r;
    _cleanup_(sim_range_unrefp) struct sim_range *range =
        sim_range_map(SIM_RANGE_DEVICE, physical, memfd, size_bytes);
    if (range == NULL)
        return GPU_ERROR_MEMORY_ALLOCATION;
    range->memfd = take_fd(&memfd);
    sim_memory_soil((void *)range->start, size_bytes);
    r = sim_random(range->secret, sizeof(range->secret));
    if (r == 0)
        r = sim_range_register(range);
    if (r == 0)
        *ret_range = take_ptr(&range);
    return r;
}

int sim_memory_charge(unsigned physical, uint64_t size_bytes) {
    LOCKED(&memory.lock);
    if (size_bytes > sim_settings.device_bytes - memory.allocated_bytes[physical])
        return GPU_ERROR_MEMORY_ALLOCATION;
    memory.allocated_bytes[physical] += size_bytes;
    return 0;
}

void sim_memory_discharge(unsigned physical, uint64_t size_bytes) {
    LOCKED(&memory.lock);
    memory.allocated_bytes[physical] -= size_bytes;
}

int sim_memory_allocate(unsigned device, uint64_t size_bytes, void **ret_memory) {
    struct sim_range *range = NULL;
    unsigned physical;
    int r = sim_enter_context(SIM_MEMORY_ALLOCATE, device, &physical);

    if (r != 0)
        return r;
    if (size_bytes == 0 || size_bytes % GPU_ALLOCATION_GRANULE != 0)
        return GPU_ERROR_INVALID_VALUE;
    r = sim_memory_charge(physical, size_bytes);
    if (r != 0)
        return r;
    r = allocation_create(physical, size_bytes, &range);
    if (r != 0) {
        sim_memory_discharge(physical, size_bytes);
        return r;
    }
    sim_spend(ALLOCATE_NS, ALLOCATE_GIB_NS, size_bytes);
    *ret_memory = (void *)range->start;
    return 0;
}

int sim_memory_free(unsigned device, void *freed) {
    _cleanup_(sim_range_unrefp) struct sim_range *range = NULL;
    unsigned physical;
    int r = sim_enter_context(SIM_MEMORY_FREE, device, &physical);

    if (r != 0)
        return r;
    range = sim_range_find(freed);
    if (range == NULL || range->kind != SIM_RANGE_DEVICE || range->start != (uintptr_t)freed ||
        range->physical != physical)
        return GPU_ERROR_INVALID_VALUE;
    sim_streams_drain(physical); /* as cudaFree does */
    if (!sim_range_unregister(range))
        return GPU_ERROR_INVALID_VALUE;
    sim_spend(FREE_NS, FREE_GIB_NS, range->size_bytes);
    return 0;
}

int sim_host_register(void *start, uint64_t size_bytes) {
    struct sim_range *range;
    unsigned physical;
    ssize_t touching;
    int r = sim_enter(SIM_HOST_REGISTER);

    if (r == 0)
        r = sim_context(0, &physical);
    if (r != 0)
        return r;
    if (size_bytes == 0 || (uintptr_t)start % PAGE_BYTES != 0 || size_bytes % PAGE_BYTES != 0 ||
        !sim_is_mapped(start, size_bytes) || sim_is_reserved(start, size_bytes))
        return GPU_ERROR_INVALID_VALUE;
    range = sim_range_new(SIM_RANGE_HOST, 0, start, size_bytes);
    if (range == NULL)
        return GPU_ERROR_MEMORY_ALLOCATION;
    pthread_mutex_lock(&memory.lock);
    touching = first_touching(range->start, size_bytes);
    if (touching < 0)
        r = insert(range);
    else if (memory.ranges[touching]->kind == SIM_RANGE_HOST)
        r = GPU_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else
        r = GPU_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&memory.lock);
    if (r != 0) {
        sim_range_unref(range);
        return r;
    }
    sim_spend(HOST_REGISTER_NS, HOST_REGISTER_GIB_NS, size_bytes);
    return 0;
}

int sim_host_unregister(void *start) {
    _cleanup_(sim_range_unrefp) struct sim_range *range = NULL;
    int r = sim_enter(SIM_HOST_UNREGISTER);

    if (r != 0)
        return r;
    range = sim_range_find(start);
    if (range == NULL || range->kind != SIM_RANGE_HOST || range->start != (uintptr_t)start)
        return GPU_ERROR_HOST_MEMORY_NOT_REGISTERED;
    /* The caller may unmap the memory next: nothing may touch it any more, whatever the device. */
    sim_streams_drain(SIM_ALL_DEVICES);
    if (!sim_range_unregister(range))
        return GPU_ERROR_HOST_MEMORY_NOT_REGISTERED;
    sim_spend(HOST_UNREGISTER_NS, HOST_UNREGISTER_GIB_NS, range->size_bytes);
    return 0;
}
