/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/supply/backing.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mapping.h"
#include "base/memfd.h"
#include "base/units.h"
#include "daemon/core/limits.h"
#include "daemon/loop/descriptors.h"
#include "daemon/loop/log.h"
#include "daemon/loop/worker.h"
#include "daemon/supply/cgroup.h"
#include "daemon/supply/host_pages.h"
#include "daemon/supply/numa.h"

static void backing_freep(struct backing **backing) {
    *backing = backing_free(*backing);
}

/* --- device memory --- */

/* The worker enters a call of the driver. */
static void enter_call(struct worker *worker, const char **ret_call, const char *call) {
    *ret_call = call;
    worker_enter_call(worker, call);
}

static int fail_call(const struct backing *backing, const char *call, int r, char error[BACKING_ERROR_SIZE]) {
    bool is_host = backing_kind(backing->kind)->pool_kind == PROTO_POOL_HOST;
    uint64_t free_bytes, total_bytes;
    char left[96] = "";

    if (!is_host && r == GPU_ERROR_MEMORY_ALLOCATION &&
        backing->gpu->device_memory(backing->device, &free_bytes, &total_bytes) == 0)
        snprintf(left, sizeof left, "; %s of its %s are free", BYTES_TEXT(free_bytes),
                 BYTES_TEXT(total_bytes));
    snprintf(error, BACKING_ERROR_SIZE, "%s of %s %s device %u failed with %s (%s)%s", call,
             BYTES_TEXT(backing->size_bytes), is_host ? "of host memory by the driver of" : "on",
             backing->device, backing->gpu->error_name(r), backing->gpu->error_text(r), left);
    return -EIO;
}

/* The daemon's contexts are made here and nowhere else. */
static int make_context(const struct backing_order *order, struct worker *worker, const char **ret_call) {
    enter_call(worker, ret_call, "cuDevicePrimaryCtxRetain");
    return order->gpu->context_make(order->device);
}

static void log_lost(const struct backing *backing, const char *doing, int r) {
    log_error("%s %s on device %u failed with %s: the memory is lost until the daemon restarts", doing,
              BYTES_TEXT(backing->size_bytes), backing->device, backing->gpu->error_name(r));
}

/* --- device memory by cudaMalloc --- */

static int legacy_make(const struct backing_order *order, struct worker *worker, struct backing *backing,
                       char error[BACKING_ERROR_SIZE]) {
    const struct gpu *gpu = order->gpu;
    unsigned device = order->device;
    uint64_t size_bytes = order->size_bytes;
    const char *call;

    int r = make_context(order, worker, &call);
    if (r == 0) {
        enter_call(worker, &call, "cudaMalloc");
        r = gpu->memory_allocate(device, size_bytes, &backing->memory);
    }
    if (r == 0) {
        /* The contents that another tenant left there must not be seen. */
        enter_call(worker, &call, "cudaMemsetAsync");
        r = gpu->memory_set(device, backing->memory, 0, size_bytes, NULL);
    }
    if (r == 0) {
        enter_call(worker, &call, "cudaStreamSynchronize");
        r = gpu->stream_synchronize(device, NULL);
    }
    if (r == 0) {
        enter_call(worker, &call, "cudaIpcGetMemHandle");
        r = gpu->ipc_export(device, backing->memory, &backing->handle);
    }
    worker_leave_call(worker);
    if (r != 0)
        return fail_call(backing, call, r, error);
    return 0;
}

static void legacy_free(struct backing *backing) {
    int r = backing->memory != NULL ? backing->gpu->memory_free(backing->device, backing->memory) : 0;

    if (r != 0 && !backing->lost)
        log_lost(backing, "freeing", r);
}

static int legacy_describe(const struct backing *backing, struct proto_segment *description) {
    memcpy(description->handle, backing->handle.bytes, sizeof backing->handle.bytes);
    return -1;
}

/* --- memory by cuMemCreate --- */

/* Zeroes what is mapped at an address. */
static int vmm_zero_mapped(const struct backing *backing, void *address, struct worker *worker,
                           const char **ret_call) {
    const struct gpu *gpu = backing->gpu;

    enter_call(worker, ret_call, "cuMemSetAccess");
    int r = gpu->vmm_set_access(backing->device, address, backing->size_bytes, GPU_ACCESS_READ_WRITE);
    if (r != 0)
        return r;
    enter_call(worker, ret_call, "cudaMemsetAsync");
    r = gpu->memory_set(backing->device, address, 0, backing->size_bytes, NULL);
    if (r != 0)
        return r;
    enter_call(worker, ret_call, "cudaStreamSynchronize");
    return gpu->stream_synchronize(backing->device, NULL);
}

/* Takes the mapping of the memory away again. A mapping that stays keeps the memory: that is logged. */
static int vmm_unmap(const struct backing *backing, void *address, struct worker *worker,
                     const char **ret_call) {
    enter_call(worker, ret_call, "cuMemUnmap");
    int r = backing->gpu->vmm_unmap(backing->device, address, backing->size_bytes);
    if (r != 0)
        log_lost(backing, "unmapping", r);
    return r;
}

/* Zeroes new memory through addresses of its own, in the device's context. *ret_call: the call that failed.
 */
static int vmm_zero(const struct backing *backing, struct worker *worker, const char **ret_call) {
    const struct gpu *gpu = backing->gpu;
    uint64_t size_bytes = backing->size_bytes;
    const char *later = NULL;
    void *address;

    enter_call(worker, ret_call, "cuMemAddressReserve");
    int r = gpu->address_reserve(backing->device, size_bytes, &address);
    if (r != 0)
        return r;
    enter_call(worker, ret_call, "cuMemMap");
    r = gpu->vmm_map(backing->device, address, size_bytes, backing->vmm_handle);
    if (r == 0) {
        r = vmm_zero_mapped(backing, address, worker, ret_call);
        /* Work that may still be under way keeps its addresses: taking them away would end the device. */
        if (r != 0) {
            enter_call(worker, &later, "cudaDeviceSynchronize");
            if (gpu->device_synchronize(backing->device) != 0)
                return r;
        }
        int unmapped = vmm_unmap(backing, address, worker, r == 0 ? ret_call : &later);
        if (unmapped != 0)
            return r != 0 ? r : unmapped;
    }
    enter_call(worker, r == 0 ? ret_call : &later, "cuMemAddressFree");
    int freed = gpu->address_free(backing->device, address, size_bytes);
    return r != 0 ? r : freed;
}

/* create: the call of the driver. */
static int vmm_make_by(int (*create)(const struct backing_order *order, uint64_t *ret_handle),
                       const struct backing_order *order, struct worker *worker, struct backing *backing,
                       char error[BACKING_ERROR_SIZE]) {
    const struct gpu *gpu = order->gpu;
    const char *call = "cuMemCreate";

    worker_enter_call(worker, call);
    int r = create(order, &backing->vmm_handle);
    backing->has_vmm_handle = r == 0;
    if (r == 0 && order->zeroes)
        r = make_context(order, worker, &call);
    /* The device zeroes host memory too: it does so at the speed of a copy, and the CPU at a tenth of that.
     */
    if (r == 0 && order->zeroes)
        r = vmm_zero(backing, worker, &call);
    if (r == 0) {
        enter_call(worker, &call, "cuMemExportToShareableHandle");
        r = gpu->vmm_export(order->device, backing->vmm_handle, &backing->fd);
    }
    worker_leave_call(worker);
    if (r != 0)
        return fail_call(backing, call, r, error);
    backing->fd = descriptors_for_client(backing->fd);
    if (backing->fd < 0) {
        snprintf(
            error, BACKING_ERROR_SIZE,
            "no descriptor is left for a segment of %s: raise LimitNOFILE, or the pool's step, so that there "
            "are fewer segments",
            BYTES_TEXT(order->size_bytes));
        return -EMFILE;
    }
    return 0;
}

static int vmm_create(const struct backing_order *order, uint64_t *ret_handle) {
    return order->gpu->vmm_create(order->device, order->size_bytes, ret_handle);
}

static int vmm_make(const struct backing_order *order, struct worker *worker, struct backing *backing,
                    char error[BACKING_ERROR_SIZE]) {
    return vmm_make_by(vmm_create, order, worker, backing, error);
}

static int vmm_granule(const struct gpu *gpu, unsigned device, int node, uint64_t *ret_granule_bytes) {
    (void)node;
    return gpu->vmm_granule(device, ret_granule_bytes);
}

static void vmm_free(struct backing *backing) {
    int r = backing->has_vmm_handle ? backing->gpu->vmm_release(backing->device, backing->vmm_handle) : 0;

    if (r != 0 && !backing->lost)
        log_lost(backing, "releasing", r);
}

static int descriptor_describe(const struct backing *backing, struct proto_segment *description) {
    (void)description;
    return backing->fd;
}

/* --- host memory: a memfd --- */

/* Whether the kernel gives transparent huge pages to a shared mapping that asks for them, when it is touched.
 */
static bool transparent_pages_available(void) {
    char text[128] = "";
    _cleanup_(fclosep) FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");
    if (file == NULL || fgets(text, sizeof text, file) == NULL)
        return false;
    return strstr(text, "[never]") == NULL && strstr(text, "[deny]") == NULL;
}

/* Maps a memfd of the size. Returns 0 or a negative errno; on failure nothing is left. */
static int map_memfd(struct backing *backing, unsigned flags) {
    _cleanup_(close_fdp) int fd =
        descriptors_for_client(memfd_create("gpupool", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    if (fd < 0)
        return -errno;
    /* A memfd is made with mode 0777, with which a client could give it extended attributes: kernel memory
     * that counts as the daemon's. */
    if (fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t)backing->size_bytes) < 0)
        return -errno;
    /* With hugetlb this reserves the pages, or fails. */
    void *mapping;
    int r = mapping_make(fd, backing->size_bytes, HOST_PAGES_HUGE_BYTES, &mapping);
    if (r < 0)
        return r;
    if (fcntl(fd, F_ADD_SEALS, MEMFD_SEALS) < 0) {
        r = -errno;
        munmap(mapping, backing->size_bytes);
        return r;
    }
    (void)madvise(mapping, backing->size_bytes, MADV_DONTDUMP); /* a core file shows no tenant's memory */
    backing->fd = take_fd(&fd);
    backing->mapping = mapping;
    return 0;
}

/* Keeps the machine alive: the kernel would answer an allocation that is too large by killing a process, not
 * by an error. 1/32 of the node, at least 256 MiB, is left to other programs. */
static int check_available(int node, uint64_t size_bytes, char error[BACKING_ERROR_SIZE]) {
    uint64_t total, available;

    if (numa_memory(node, &total, &available) < 0)
        return 0;
    uint64_t kept = total / 32 > 256 * MIB ? total / 32 : 256 * MIB;
    if (available >= kept && available - kept >= size_bytes)
        return 0;
    snprintf(error, BACKING_ERROR_SIZE,
             "node %d has %s of memory left, too little for a segment of %s beside the %s that stay free",
             node, BYTES_TEXT(available), BYTES_TEXT(size_bytes), BYTES_TEXT(kept));
    return -ENOMEM;
}

/* The part of its control group's memory that the daemon leaves free beside the pools, for itself and the
 * kernel: 1/32, at least several times the 5 MiB that a daemon without CUDA has at rest. */
#define GROUP_KEPT_MIN_BYTES (32 * MIB)

/* Of segments that are being made, whose pages count in part already. */
static _Atomic uint64_t promised_bytes;

/* Keeps the daemon alive: beyond the limit of its control group the kernel kills it. Others' segments that
 * are being made count as a whole. promise_end() follows where this returns 0. */
static int promise(uint64_t size_bytes, char error[BACKING_ERROR_SIZE]) {
    struct cgroup_memory group;

    uint64_t promised = atomic_fetch_add(&promised_bytes, size_bytes);
    cgroup_memory("", &group);
    uint64_t kept =
        group.limit_bytes / 32 > GROUP_KEPT_MIN_BYTES ? group.limit_bytes / 32 : GROUP_KEPT_MIN_BYTES;
    uint64_t available = group.available_bytes > promised ? group.available_bytes - promised : 0;
    if (group.limit_bytes == UINT64_MAX || (available >= kept && available - kept >= size_bytes))
        return 0;
    atomic_fetch_sub(&promised_bytes, size_bytes);
    snprintf(error, BACKING_ERROR_SIZE,
             "the daemon's control group %s (%s: %s) has %s left, too little for a segment of %s beside %s",
             group.group, group.setting, BYTES_TEXT(group.limit_bytes), BYTES_TEXT(available),
             BYTES_TEXT(size_bytes), BYTES_TEXT(kept));
    return -ENOMEM;
}

static void promise_end(uint64_t size_bytes) {
    atomic_fetch_sub(&promised_bytes, size_bytes);
}

/* Makes the pages of a mapping. Memory of hugetlb does not count in the group. */
static int make_pages(struct backing *backing, bool ask_transparent, struct worker *worker,
                      uint64_t *ret_huge_bytes, char error[BACKING_ERROR_SIZE]) {
    bool counts = backing->pages != BACKING_PAGES_HUGETLB;
    int r = counts ? promise(backing->size_bytes, error) : 0;

    if (r < 0)
        return r;
    worker_enter_call(worker, "making pages");
    r = host_pages_make(backing->mapping, backing->size_bytes, ask_transparent, worker, ret_huge_bytes);
    worker_leave_call(worker);
    if (counts)
        promise_end(backing->size_bytes);
    if (r < 0)
        snprintf(error, BACKING_ERROR_SIZE, "the kernel gave no pages for %s of host memory: %s",
                 BYTES_TEXT(backing->size_bytes), strerror(-r));
    return r;
}

void backing_lock(struct backing *backing, struct worker *worker) {
    static _Atomic bool complained;

    if (backing->mapping == NULL || backing->locked)
        return;
    worker_enter_call(worker, "mlock");
    int r = host_pages_lock(backing->mapping, backing->size_bytes);
    worker_leave_call(worker);
    backing->locked = r == 0;
    if (!backing->locked && backing->pages != BACKING_PAGES_HUGETLB && !atomic_exchange(&complained, true))
        log_warning(
            "host memory could not be locked (%s) and may be swapped out until a client pins it; raise "
            "LimitMEMLOCK (ulimit -l)",
            strerror(-r));
}

static int memfd_make(const struct backing_order *order, struct worker *worker, struct backing *backing,
                      char error[BACKING_ERROR_SIZE]) {
    enum config_huge_pages huge_pages = order->huge_pages;
    uint64_t size_bytes = order->size_bytes, huge_bytes = 0;
    bool ask_transparent = false;
    int node = order->node, r = -ENOMEM;

    if (huge_pages != CONFIG_HUGE_PAGES_OFF && numa_free_huge_pages(node) * 2 * MIB >= size_bytes) {
        r = map_memfd(backing, MFD_HUGETLB | MFD_HUGE_2MB);
        if (r == 0)
            backing->pages = BACKING_PAGES_HUGETLB;
    }
    if (r < 0 && huge_pages == CONFIG_HUGE_PAGES_REQUIRE) {
        snprintf(error, BACKING_ERROR_SIZE,
                 "node %d has no %s of 2 MiB huge pages free, and huge_pages = require: reserve more "
                 "with sysctl vm.nr_hugepages",
                 node, BYTES_TEXT(size_bytes));
        return r;
    }
    if (r < 0) {
        r = check_available(node, size_bytes, error);
        if (r < 0)
            return r;
        r = map_memfd(backing, 0);
        if (r < 0) {
            snprintf(error, BACKING_ERROR_SIZE, "making a memfd of %s failed: %s", BYTES_TEXT(size_bytes),
                     strerror(-r));
            return r;
        }
        backing->pages = BACKING_PAGES_PLAIN;
        ask_transparent = huge_pages != CONFIG_HUGE_PAGES_OFF;
        if (ask_transparent)
            (void)madvise(backing->mapping, size_bytes, MADV_HUGEPAGE); /* a hint: for its first touches */
    }
    numa_prefer(backing->mapping, size_bytes, node); /* without NUMA there is nothing to prefer */
    r = make_pages(backing, ask_transparent, worker, &huge_bytes, error);
    if (r < 0)
        return r;
    if (ask_transparent) {
        if (huge_bytes >= size_bytes / 2 || (huge_bytes == 0 && transparent_pages_available()))
            backing->pages = BACKING_PAGES_TRANSPARENT;
        log_debug("%s of %s of host memory on node %d are in transparent huge pages", BYTES_TEXT(huge_bytes),
                  BYTES_TEXT(size_bytes), node);
    }
    backing_lock(backing, worker);
    return 0;
}

static int memfd_inherit(struct backing *backing) {
    if (!memfd_is_sealed(backing->fd, backing->size_bytes))
        return -EBADMSG;
    int r = mapping_make(backing->fd, backing->size_bytes, HOST_PAGES_HUGE_BYTES, &backing->mapping);
    if (r == 0)
        (void)madvise(backing->mapping, backing->size_bytes, MADV_DONTDUMP);
    return r;
}

static void memfd_free(struct backing *backing) {
    if (backing->mapping != NULL)
        host_pages_unmap(backing->mapping, backing->size_bytes);
}

static void memfd_retire(struct backing *backing) {
    host_pages_unmap(backing->mapping, backing->size_bytes); /* before: the pages are locked in it */
    backing->mapping = NULL;
    if (fallocate(backing->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)backing->size_bytes) < 0)
        log_warning("the pages of %s of host memory cannot be given up (%s): processes that still map them "
                    "keep them",
                    BYTES_TEXT(backing->size_bytes), strerror(errno));
}

/* --- host memory by cuMemCreate --- */

static int host_vmm_create(const struct backing_order *order, uint64_t *ret_handle) {
    return order->gpu->vmm_host_create(order->device, order->node, order->size_bytes, ret_handle);
}

static int host_vmm_make(const struct backing_order *order, struct worker *worker, struct backing *backing,
                         char error[BACKING_ERROR_SIZE]) {
    int r = check_available(order->node, order->size_bytes, error);
    return r < 0 ? r : vmm_make_by(host_vmm_create, order, worker, backing, error);
}

static int host_vmm_granule(const struct gpu *gpu, unsigned device, int node, uint64_t *ret_granule_bytes) {
    return gpu->vmm_host_granule(device, node, ret_granule_bytes);
}

/* --- all kinds --- */

static const struct backing_kind kinds[] = {
    [PROTO_SEGMENT_LEGACY_IPC] = {.pool_kind = PROTO_POOL_DEVICE,
                                  .export_as = CONFIG_EXPORT_USUAL,
                                  .export_name = "ipc",
                                  .end_call = "cudaFree",
                                  .needs_driver = true,
                                  .zeroed_by = "daemon",
                                  .make = legacy_make,
                                  .describe = legacy_describe,
                                  .free = legacy_free},
    [PROTO_SEGMENT_VMM_FD] = {.pool_kind = PROTO_POOL_DEVICE,
                              .export_as = CONFIG_EXPORT_VMM,
                              .export_name = "vmm",
                              .export_else = "ipc",
                              .end_call = "cuMemRelease",
                              .needs_driver = true,
                              .takes_descriptor = true,
                              .is_for_driver = true,
                              .granule = vmm_granule,
                              .make = vmm_make,
                              .describe = descriptor_describe,
                              .free = vmm_free},
    [PROTO_SEGMENT_HOST_VMM_FD] = {.pool_kind = PROTO_POOL_HOST,
                                   .export_as = CONFIG_EXPORT_VMM,
                                   .export_name = "vmm",
                                   .export_else = "memfd",
                                   .end_call = "cuMemRelease",
                                   .needs_driver = true,
                                   .takes_descriptor = true,
                                   .is_for_driver = true,
                                   .granule = host_vmm_granule,
                                   .make = host_vmm_make,
                                   .describe = descriptor_describe,
                                   .free = vmm_free},
    [PROTO_SEGMENT_MEMFD] = {.pool_kind = PROTO_POOL_HOST,
                             .export_as = CONFIG_EXPORT_USUAL,
                             .export_name = "memfd",
                             .end_call = "munmap",
                             .takes_descriptor = true,
                             .zeroed_by = "kernel",
                             .make = memfd_make,
                             .inherit = memfd_inherit,
                             .describe = descriptor_describe,
                             .retire = memfd_retire,
                             .free = memfd_free},
};

const struct backing_kind *backing_kind(enum proto_segment_kind kind) {
    return &kinds[kind];
}

bool backing_kind_is_known(unsigned kind) {
    return kind < sizeof kinds / sizeof kinds[0] && kinds[kind].make != NULL;
}

enum proto_segment_kind backing_kind_of_pool(enum proto_pool_kind pool_kind, enum config_export export_as) {
    unsigned kind = 1; /* there is no kind 0 */

    while (kinds[kind].pool_kind != pool_kind || kinds[kind].export_as != export_as) {
        kind++;
        assert(kind < sizeof kinds / sizeof kinds[0]);
    }
    return (enum proto_segment_kind)kind;
}

int backing_new(const struct backing_order *order, struct worker *worker, struct backing **ret_backing,
                char error[BACKING_ERROR_SIZE]) {
    _cleanup_(backing_freep) struct backing *backing = calloc(1, sizeof *backing);

    if (backing == NULL) {
        snprintf(error, BACKING_ERROR_SIZE, "out of memory for bookkeeping");
        return -ENOMEM;
    }
    *backing = (struct backing){.kind = order->kind,
                                .size_bytes = order->size_bytes,
                                .gpu = order->gpu,
                                .device = order->device,
                                .fd = -1};
    int r = order->is_simulated ? promise(order->size_bytes, error) : 0;
    if (r < 0)
        return r;
    r = backing_kind(order->kind)->make(order, worker, backing, error);
    if (order->is_simulated)
        promise_end(order->size_bytes);
    if (r == 0)
        *ret_backing = take_ptr(&backing);
    return r;
}

int backing_inherit(const struct backing_order *order, int fd, enum backing_pages pages,
                    struct backing **ret_backing) {
    _cleanup_(backing_freep) struct backing *backing = calloc(1, sizeof *backing);

    if (backing == NULL) {
        close_fd(fd);
        return -ENOMEM;
    }
    *backing = (struct backing){.kind = order->kind,
                                .size_bytes = order->size_bytes,
                                .gpu = order->gpu,
                                .device = order->device,
                                .fd = fd,
                                .pages = pages};
    int r = backing_kind(order->kind)->inherit != NULL ? backing_kind(order->kind)->inherit(backing) : 0;
    if (r == 0)
        *ret_backing = take_ptr(&backing);
    return r;
}

struct backing *backing_free(struct backing *backing) {
    if (backing == NULL)
        return NULL;
    backing_kind(backing->kind)->free(backing);
    close_fd(backing->fd);
    free(backing);
    return NULL;
}

struct backing *backing_retire(struct backing *backing) {
    if (backing != NULL && backing_kind(backing->kind)->retire != NULL)
        backing_kind(backing->kind)->retire(backing);
    return backing_free(backing);
}

bool backing_needs_driver(const struct backing *backing) {
    return backing_kind(backing->kind)->needs_driver;
}

int backing_describe(const struct backing *backing, struct proto_segment *description) {
    description->kind = backing->kind;
    return backing_kind(backing->kind)->describe(backing, description);
}

const char *backing_pages_name(enum backing_pages pages) {
    static const char *const names[] = {
        [BACKING_PAGES_HUGETLB] = "hugetlb",
        [BACKING_PAGES_TRANSPARENT] = "transparent",
        [BACKING_PAGES_PLAIN] = "plain",
    };
    return names[pages];
}
