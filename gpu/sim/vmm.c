/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated GPU's memory that is made apart from its addresses (VMM, gpu.h), of a device or of the host.
 * Memory is a sealed memfd. Other processes get a descriptor of it, whose name says which exporter made it,
 * on which device, and whether it is host memory. Reserved addresses map nothing that can be read; a mapping
 * lies over them and goes away at once when it is taken away, whatever a stream still does there.
 *
 * A range in the registry is one mapped handle (SIM_RANGE_VMM). The addresses that streams use are checked
 * when an operation is given, as for other memory, and again while it is done, piece by piece: the memory may
 * have been unmapped since. Then the device fails for this process as a real one does
 * (cudaErrorIllegalAddress). Where other memory is mapped there by then, the operation uses that.
 *
 * One lock: calls that change something write, streams that use such memory read, a piece at a time.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/high_fd.h"
#include "gpu/sim/internal.h"

/* Measured on H200, driver 580, CUDA 13.0. */
#define CREATE_NS      (25 * NS_PER_US)
#define RELEASE_NS     (49 * NS_PER_US)
#define EXPORT_NS      (100 * NS_PER_US)
#define IMPORT_NS      (40 * NS_PER_US)
#define RESERVE_NS     (6 * NS_PER_US)
#define MAP_NS         (3 * NS_PER_US)
#define UNMAP_NS       (25 * NS_PER_US)
#define UNMAP_EACH_NS  (17 * NS_PER_US)
#define ACCESS_NS      (25 * NS_PER_US)
#define ACCESS_EACH_NS (28 * NS_PER_US)
/* Of host memory, by its size. */
#define HOST_CREATE_GIB_NS (240 * NS_PER_MS)
#define HOST_ACCESS_GIB_NS (35 * NS_PER_MS)
#define HOST_UNMAP_GIB_NS  (25 * NS_PER_MS)

/* The names of the memfds, with device, the exporter's pid and nonce. */
#define NAME_FORMAT           "gpupool-sim-vmm/%u/%u/%s"
#define HOST_NAME_FORMAT      "gpupool-sim-vmm-host/%u/%u/%s"
#define NAME_MAX_SIZE         96u
#define ERROR_ILLEGAL_ADDRESS 700

/* The memory that a handle names. */
struct sim_memory {
    uint64_t handle;
    unsigned references; /* of the handle, while it is not released, and of each mapping */
    bool is_released, is_imported, is_host;
    unsigned physical; /* of host memory: whose driver made it */
    uint64_t size_bytes;
    int memfd;
    struct sim_link *exporter; /* NULL: this process, or one that is dead */
    struct list link;
};

struct reservation {
    uintptr_t start;
    uint64_t size_bytes;
    struct own_mapping *mapping;
    struct list link;
};

static struct {
    pthread_rwlock_t lock;
    struct list memories, reservations;
    uint64_t last_handle;
} vmm = {
    .lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP,
    .memories = {&vmm.memories, &vmm.memories},
    .reservations = {&vmm.reservations, &vmm.reservations},
};

static bool is_granular(uint64_t value) {
    return value != 0 && value % GPU_ALLOCATION_GRANULE == 0;
}

/* --- memory --- */

static struct sim_memory *memory_find(uint64_t handle) {
    list_for_each_entry(struct sim_memory, memory, &vmm.memories, link) {
        if (memory->handle == handle && !memory->is_released)
            return memory;
    }
    return NULL;
}

static void memory_unref(struct sim_memory *memory) {
    if (--memory->references > 0)
        return;
    list_remove(&memory->link);
    if (memory->exporter != NULL)
        sim_link_leave(memory->exporter);
    if (!memory->is_imported && !memory->is_host)
        sim_memory_discharge(memory->physical, memory->size_bytes);
    close_fd(memory->memfd);
    free(memory);
}

/* Adds memory and gives it a handle. Takes the descriptor where it succeeds. */
static int memory_add(const struct sim_memory *members, uint64_t *ret_handle) {
    struct sim_memory *memory = malloc(sizeof(*memory));

    if (memory == NULL)
        return GPU_ERROR_MEMORY_ALLOCATION;
    *memory = *members;
    memory->handle = ++vmm.last_handle;
    memory->references = 1;
    list_append(&vmm.memories, &memory->link);
    *ret_handle = memory->handle;
    return 0;
}

static int memfd_make(unsigned physical, bool is_host, uint64_t size_bytes, int *ret_memfd) {
    char nonce[SIM_NONCE_TEXT_SIZE], name[NAME_MAX_SIZE];
    struct sim_handle own;
    int r = sim_exporter(&own);

    if (r != 0)
        return r;
    sim_nonce_format(own.nonce, nonce);
    snprintf(name, sizeof(name), is_host ? HOST_NAME_FORMAT : NAME_FORMAT, physical, (unsigned)own.pid,
             nonce);
    return sim_memfd_make(name, size_bytes, ret_memfd);
}

/* A driver exports memory to find out. */
static int granule_get(uint64_t *ret_granule_bytes) {
    struct sim_handle own;
    int r = sim_exporter(&own);

    if (r == 0)
        *ret_granule_bytes = GPU_ALLOCATION_GRANULE;
    return r;
}

int sim_vmm_granule(unsigned device, uint64_t *ret_granule_bytes) {
    unsigned physical;
    int r = sim_enter_on(SIM_VMM_GRANULE, device, &physical);
    return r != 0 ? r : granule_get(ret_granule_bytes);
}

int sim_vmm_host_granule(unsigned device, int node, uint64_t *ret_granule_bytes) {
    unsigned physical;
    int r = sim_enter_on(SIM_VMM_HOST_GRANULE, device, &physical);

    if (r == 0 && node < 0)
        r = GPU_ERROR_INVALID_VALUE;
    return r != 0 ? r : granule_get(ret_granule_bytes);
}

/* Leaves in new memory the words of an earlier owner. */
static int soil(int memfd, uint64_t size_bytes) {
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);

    if (memory == MAP_FAILED)
        return GPU_ERROR_MEMORY_ALLOCATION;
    sim_memory_soil(memory, size_bytes);
    munmap(memory, size_bytes);
    return 0;
}

/* Makes memory that is charged already, and its handle. */
static int memory_make(unsigned physical, bool is_host, uint64_t size_bytes, uint64_t *ret_handle) {
    _cleanup_(close_fdp) int memfd = -1;
    int r = memfd_make(physical, is_host, size_bytes, &memfd);

    if (r == 0 && sim_settings.unclean != SIM_CLEAN)
        r = soil(memfd, size_bytes);
    if (r != 0)
        return r;
    pthread_rwlock_wrlock(&vmm.lock);
    r = memory_add(
        &(struct sim_memory){
            .physical = physical, .is_host = is_host, .size_bytes = size_bytes, .memfd = memfd},
        ret_handle);
    pthread_rwlock_unlock(&vmm.lock);
    if (r == 0)
        memfd = -1;
    return r;
}

int sim_vmm_create(unsigned device, uint64_t size_bytes, uint64_t *ret_handle) {
    unsigned physical;
    int r = sim_enter_on(SIM_VMM_CREATE, device, &physical);

    if (r != 0)
        return r;
    if (!is_granular(size_bytes))
        return GPU_ERROR_INVALID_VALUE;
    r = sim_memory_charge(physical, size_bytes);
    if (r != 0)
        return r;
    r = memory_make(physical, false, size_bytes, ret_handle);
    if (r != 0)
        sim_memory_discharge(physical, size_bytes);
    else
        sim_spend(CREATE_NS, 0, 0);
    return r;
}

int sim_vmm_host_create(unsigned device, int node, uint64_t size_bytes, uint64_t *ret_handle) {
    unsigned physical;
    int r = sim_enter_on(SIM_VMM_HOST_CREATE, device, &physical);

    if (r != 0)
        return r;
    if (!is_granular(size_bytes) || node < 0)
        return GPU_ERROR_INVALID_VALUE;
    r = memory_make(physical, true, size_bytes, ret_handle);
    if (r == 0)
        sim_spend(CREATE_NS, HOST_CREATE_GIB_NS, size_bytes);
    return r;
}

int sim_vmm_release(unsigned device, uint64_t handle) {
    unsigned physical;
    int r = sim_enter_on(SIM_VMM_RELEASE, device, &physical);

    if (r != 0)
        return r;
    pthread_rwlock_wrlock(&vmm.lock);
    struct sim_memory *memory = memory_find(handle);
    if (memory != NULL) {
        memory->is_released = true;
        memory_unref(memory);
    }
    pthread_rwlock_unlock(&vmm.lock);
    if (memory == NULL)
        return GPU_ERROR_INVALID_VALUE;
    sim_spend(RELEASE_NS, 0, 0);
    return 0;
}

int sim_vmm_export(unsigned device, uint64_t handle, int *ret_fd) {
    unsigned physical;
    int fd = -1, r = sim_enter_on(SIM_VMM_EXPORT, device, &physical);

    if (r != 0)
        return r;
    pthread_rwlock_rdlock(&vmm.lock);
    const struct sim_memory *memory = memory_find(handle);
    if (memory == NULL || memory->is_imported)
        r = GPU_ERROR_INVALID_VALUE;
    else
        fd = fcntl(memory->memfd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    pthread_rwlock_unlock(&vmm.lock);
    if (r != 0 || fd < 0)
        return r != 0 ? r : GPU_ERROR_UNKNOWN;
    sim_spend(EXPORT_NS, 0, 0);
    *ret_fd = fd;
    return 0;
}

/* Reads the name of a memfd, as /proc shows it. False: it is no memory's. */
static bool name_read(const char *link, struct sim_handle *exporter, bool *ret_is_host) {
    static const char device[] = "/memfd:gpupool-sim-vmm/", host[] = "/memfd:gpupool-sim-vmm-host/";
    char nonce[SIM_NONCE_TEXT_SIZE];

    *ret_is_host = strncmp(link, host, sizeof(host) - 1) == 0;
    if (!*ret_is_host && strncmp(link, device, sizeof(device) - 1) != 0)
        return false;
    link += *ret_is_host ? sizeof(host) - 1 : sizeof(device) - 1;
    return sscanf(link, "%u/%u/%32[0-9a-f]", &exporter->physical, &exporter->pid, nonce) == 3 &&
           exporter->physical < GPU_SIM_DEVICES_MAX && sim_nonce_parse(nonce, exporter->nonce) == 0;
}

/* Finds out what a descriptor is of. Returns 0 or INVALID_VALUE. */
static int descriptor_read(int fd, struct sim_handle *ret_exporter, struct sim_memory *memory) {
    char path[32], link[NAME_MAX_SIZE + 32];
    struct sim_handle exporter = {.magic = SIM_MAGIC};
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, link, sizeof(link) - 1);
    if (length < 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
        (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0 || fstat(fd, &status) < 0 ||
        !is_granular((uint64_t)status.st_size))
        return GPU_ERROR_INVALID_VALUE;
    link[length] = '\0';
    if (!name_read(link, &exporter, &memory->is_host))
        return GPU_ERROR_INVALID_VALUE;
    *ret_exporter = exporter;
    memory->size_bytes = (uint64_t)status.st_size;
    return 0;
}

int sim_vmm_import(unsigned device, int fd, uint64_t *ret_handle) {
    _cleanup_(close_fdp) int memfd = -1;
    struct sim_handle exporter;
    struct sim_memory members = {.is_imported = true};
    unsigned physical;
    int r = sim_enter_context(SIM_VMM_IMPORT, device, &physical);

    if (r == 0)
        r = descriptor_read(fd, &exporter, &members);
    if (r != 0)
        return r;
    members.physical = exporter.physical;
    memfd = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (memfd < 0)
        return GPU_ERROR_UNKNOWN;
    members.memfd = memfd;
    pthread_rwlock_wrlock(&vmm.lock);
    /* The memory outlives its exporter. A dead one lists no process, and one that is not reached is taken for
     * dead. */
    if (!sim_handle_is_own(&exporter))
        (void)sim_link_join(&exporter, &members.exporter);
    r = memory_add(&members, ret_handle);
    if (r != 0 && members.exporter != NULL)
        sim_link_leave(members.exporter);
    pthread_rwlock_unlock(&vmm.lock);
    if (r != 0)
        return r;
    memfd = -1;
    sim_spend(IMPORT_NS, 0, 0);
    return 0;
}

/* --- addresses --- */

/* The reservation that has all of a range, or NULL. */
static struct reservation *reservation_find(uintptr_t start, uint64_t size_bytes) {
    list_for_each_entry(struct reservation, reservation, &vmm.reservations, link) {
        if (start >= reservation->start && size_bytes <= reservation->size_bytes &&
            start - reservation->start <= reservation->size_bytes - size_bytes)
            return reservation;
    }
    return NULL;
}

/* Makes reserved addresses unreadable again. */
static void cover(uintptr_t start, uint64_t size_bytes) {
    (void)mmap((void *)start, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
               -1, 0);
}

int sim_address_reserve(unsigned device, uint64_t size_bytes, void **ret_address) {
    _cleanup_(freep) struct reservation *reservation = NULL;
    unsigned physical;
    int r = sim_enter_context(SIM_ADDRESS_RESERVE, device, &physical);

    if (r != 0)
        return r;
    if (!is_granular(size_bytes) || size_bytes > UINT64_MAX / 2)
        return GPU_ERROR_INVALID_VALUE;
    reservation = malloc(sizeof(*reservation));
    if (reservation == NULL)
        return GPU_ERROR_MEMORY_ALLOCATION;
    char *room = mmap(NULL, size_bytes + GPU_ALLOCATION_GRANULE, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return GPU_ERROR_MEMORY_ALLOCATION;
    uint64_t before = GPU_ALLOCATION_GRANULE - (uintptr_t)room % GPU_ALLOCATION_GRANULE;
    munmap(room, before);
    if (before < GPU_ALLOCATION_GRANULE)
        munmap(room + before + size_bytes, GPU_ALLOCATION_GRANULE - before);
    *reservation = (struct reservation){.start = (uintptr_t)room + before, .size_bytes = size_bytes};
    if (own_mapping_adopt(room + before, size_bytes, &reservation->mapping) < 0) {
        munmap(room + before, size_bytes);
        return GPU_ERROR_MEMORY_ALLOCATION;
    }
    *ret_address = (void *)reservation->start;
    pthread_rwlock_wrlock(&vmm.lock);
    list_append(&vmm.reservations, &reservation->link);
    reservation = NULL;
    pthread_rwlock_unlock(&vmm.lock);
    sim_spend(RESERVE_NS, 0, 0);
    return 0;
}

int sim_address_free(unsigned device, void *address, uint64_t size_bytes) {
    unsigned physical;
    int r = sim_enter_context(SIM_ADDRESS_FREE, device, &physical);

    if (r != 0)
        return r;
    pthread_rwlock_wrlock(&vmm.lock);
    struct reservation *reservation = reservation_find((uintptr_t)address, size_bytes);
    if (reservation == NULL || reservation->start != (uintptr_t)address ||
        reservation->size_bytes != size_bytes || sim_range_touches(address, size_bytes))
        r = GPU_ERROR_INVALID_VALUE;
    else {
        list_remove(&reservation->link);
        (void)own_mapping_unmap(reservation->mapping);
        free(reservation);
    }
    pthread_rwlock_unlock(&vmm.lock);
    return r;
}

bool sim_is_reserved(const void *start, uint64_t size_bytes) {
    bool found = false;

    pthread_rwlock_rdlock(&vmm.lock);
    list_for_each_entry(const struct reservation, reservation, &vmm.reservations, link) {
        uintptr_t from = (uintptr_t)start;
        found = found || (from < reservation->start + reservation->size_bytes &&
                          (reservation->start <= from || reservation->start - from < size_bytes));
    }
    pthread_rwlock_unlock(&vmm.lock);
    return found;
}

/* --- mappings --- */

/* Locked. Takes a reference to the memory. */
static int map(uintptr_t start, struct sim_memory *memory) {
    struct sim_range *range;
    void *at = mmap((void *)start, memory->size_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->memfd, 0);

    if (at == MAP_FAILED)
        return GPU_ERROR_MEMORY_ALLOCATION;
    own_mapping_advise(at, memory->size_bytes);
    range = sim_range_new(SIM_RANGE_VMM, memory->physical, at, memory->size_bytes);
    if (range == NULL || sim_range_register(range) != 0) {
        sim_range_unref(range);
        cover(start, memory->size_bytes);
        return GPU_ERROR_MEMORY_ALLOCATION;
    }
    memory->references++;
    range->memory = memory;
    if (memory->is_imported)
        range->ghost_key = sim_import_note(memory->memfd, memory->size_bytes);
    return 0;
}

int sim_vmm_map(unsigned device, void *address, uint64_t size_bytes, uint64_t handle) {
    unsigned physical;
    int r = sim_enter_context(SIM_VMM_MAP, device, &physical);

    if (r != 0)
        return r;
    pthread_rwlock_wrlock(&vmm.lock);
    struct sim_memory *memory = memory_find(handle);
    if (memory == NULL || (uintptr_t)address % GPU_ALLOCATION_GRANULE != 0 || size_bytes == 0 ||
        reservation_find((uintptr_t)address, size_bytes) == NULL || sim_range_touches(address, size_bytes))
        r = GPU_ERROR_INVALID_VALUE;
    else if (size_bytes != memory->size_bytes)
        r = size_bytes < memory->size_bytes ? GPU_ERROR_NOT_SUPPORTED : GPU_ERROR_INVALID_VALUE;
    else
        r = map((uintptr_t)address, memory);
    pthread_rwlock_unlock(&vmm.lock);
    if (r == 0)
        sim_spend(MAP_NS, 0, 0);
    return r;
}

/* The mapping that begins at an address and ends by the end, with a reference for the caller. NULL: none. */
static struct sim_range *mapping_at(uintptr_t start, uintptr_t end) {
    _cleanup_(sim_range_unrefp) struct sim_range *range = sim_range_find((const void *)start);
    bool found = range != NULL && range->kind == SIM_RANGE_VMM && range->start == start &&
                 range->size_bytes <= end - start;
    return found ? take_ptr(&range) : NULL;
}

/* Whether a range of addresses is mappings side by side. *ret_count: how many. */
static bool is_row(uintptr_t start, uint64_t size_bytes, unsigned *ret_count) {
    uintptr_t end = start + size_bytes;

    *ret_count = 0;
    while (start < end) {
        _cleanup_(sim_range_unrefp) struct sim_range *range = mapping_at(start, end);
        if (range == NULL)
            return false;
        start += range->size_bytes;
        ++*ret_count;
    }
    return *ret_count > 0;
}

static void unmap(struct sim_range *range) {
    if (range->ghost_key != 0)
        sim_import_forget(range->ghost_key);
    cover(range->start, range->size_bytes);
    memory_unref(range->memory);
    sim_range_unregister(range);
}

int sim_vmm_unmap(unsigned device, void *address, uint64_t size_bytes) {
    uintptr_t start = (uintptr_t)address, end = start + size_bytes;
    uint64_t host_bytes = 0;
    unsigned physical, count;
    int r = sim_enter_context(SIM_VMM_UNMAP, device, &physical);

    if (r != 0)
        return r;
    pthread_rwlock_wrlock(&vmm.lock);
    if (!is_row(start, size_bytes, &count))
        r = GPU_ERROR_INVALID_VALUE;
    while (r == 0 && start < end) {
        _cleanup_(sim_range_unrefp) struct sim_range *range = mapping_at(start, end);
        start += range->size_bytes;
        host_bytes += range->memory->is_host ? range->size_bytes : 0;
        unmap(range);
    }
    pthread_rwlock_unlock(&vmm.lock);
    if (r == 0)
        sim_spend(UNMAP_NS + count * UNMAP_EACH_NS, HOST_UNMAP_GIB_NS, host_bytes);
    return r;
}

/* The access of the CPU, by which host code reaches device memory here: that of any device. */
static int protection_of(const struct sim_range *range) {
    unsigned any = range->host_access;

    for (unsigned i = 0; i < GPU_SIM_DEVICES_MAX; i++)
        any |= range->access[i];
    return any == GPU_ACCESS_NONE ? PROT_NONE : any == GPU_ACCESS_READ ? PROT_READ : PROT_READ | PROT_WRITE;
}

/* Sets the access of a device, or of host code (physical GPU_SIM_DEVICES_MAX), to a mapping. */
static int access_set(struct sim_range *range, unsigned physical, enum gpu_access access) {
    uint8_t *accessor = physical < GPU_SIM_DEVICES_MAX ? &range->access[physical] : &range->host_access;
    uint8_t before = *accessor;

    if (accessor == &range->host_access && !range->memory->is_host)
        return GPU_ERROR_INVALID_VALUE;
    *accessor = (uint8_t)access;
    if (mprotect((void *)range->start, range->size_bytes, protection_of(range)) == 0)
        return 0;
    *accessor = before;
    return GPU_ERROR_MAP_BUFFER_OBJECT_FAILED;
}

/* Sets the access of a device, or of host code, to mappings that lie side by side. */
static int access_set_all(unsigned physical, void *address, uint64_t size_bytes, enum gpu_access access,
                          unsigned *ret_count) {
    uintptr_t start = (uintptr_t)address, end = start + size_bytes;
    int r = 0;

    pthread_rwlock_wrlock(&vmm.lock);
    if (!is_row(start, size_bytes, ret_count) || (access & ~GPU_ACCESS_READ_WRITE) != 0)
        r = GPU_ERROR_INVALID_VALUE;
    while (r == 0 && start < end) {
        _cleanup_(sim_range_unrefp) struct sim_range *range = mapping_at(start, end);
        r = access_set(range, physical, access);
        start += range->size_bytes;
    }
    pthread_rwlock_unlock(&vmm.lock);
    return r;
}

int sim_vmm_set_access(unsigned device, void *address, uint64_t size_bytes, enum gpu_access access) {
    unsigned physical, count;
    int r = sim_enter_on(SIM_VMM_SET_ACCESS, device, &physical);

    if (r == 0)
        r = access_set_all(physical, address, size_bytes, access, &count);
    if (r == 0)
        sim_spend(ACCESS_NS + count * ACCESS_EACH_NS, 0, 0);
    return r;
}

int sim_vmm_host_set_access(unsigned device, void *address, uint64_t size_bytes, enum gpu_access access) {
    unsigned physical, count;
    int r = sim_enter_context(SIM_VMM_HOST_SET_ACCESS, device, &physical);

    if (r == 0)
        r = access_set_all(GPU_SIM_DEVICES_MAX, address, size_bytes, access, &count);
    if (r == 0)
        sim_spend(ACCESS_NS + count * ACCESS_EACH_NS, HOST_ACCESS_GIB_NS, size_bytes);
    return r;
}

/* --- streams --- */

bool sim_vmm_reaches(unsigned physical, const void *address, uint64_t size_bytes, enum gpu_access access) {
    uintptr_t start = (uintptr_t)address, end = start + size_bytes;

    if (end < start)
        return false;
    while (start < end) {
        _cleanup_(sim_range_unrefp) struct sim_range *range = sim_range_find((const void *)start);
        if (range == NULL || range->kind != SIM_RANGE_VMM || (range->access[physical] & access) != access)
            return false;
        start = range->start + range->size_bytes;
    }
    return true;
}

bool sim_vmm_is_host(const void *address) {
    _cleanup_(sim_range_unrefp) struct sim_range *range = sim_range_find(address);
    return range != NULL && range->kind == SIM_RANGE_VMM && range->memory->is_host;
}

void sim_vmm_use_begin(void) {
    pthread_rwlock_rdlock(&vmm.lock);
}

void sim_vmm_use_end(void) {
    pthread_rwlock_unlock(&vmm.lock);
}

/* Devices that failed for this process, and do no work of it any more. Atomic. */
static bool faulted[GPU_SIM_DEVICES_MAX];

bool sim_vmm_has_faulted(unsigned physical) {
    return __atomic_load_n(&faulted[physical], __ATOMIC_ACQUIRE);
}

void sim_vmm_fault(unsigned physical) {
    __atomic_store_n(&faulted[physical], true, __ATOMIC_RELEASE);
    sim_lose(physical, ERROR_ILLEGAL_ADDRESS);
}
