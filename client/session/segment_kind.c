/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/segment_kind.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mapping.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/memfd.h"

/* --- host memory: a sealed memfd, mapped and registered with the driver --- */

static const char *memfd_is_flawed(const struct proto_segment *description, int fd) {
    return memfd_flaw(fd, description->size_bytes);
}

/* Unregisters host memory and unmaps it. Where the driver refuses, it stays mapped for the rest of the
 * process's life: the driver may still have the GPU write there, and an address that is taken cannot be given
 * to other memory. Returns false then. */
static bool memfd_close(struct segment *segment) {
    bool clean = !segment->is_registered || segment->gpu->host_unregister(segment->memory) == 0;

    if (clean)
        clean = munmap(segment->memory, segment->size_bytes) == 0;
    segment->is_registered = false;
    segment->memory = NULL;
    segment->gpu = NULL;
    return clean;
}

static int fail_system(const char *what) {
    return error_set(GPUPOOL_E_DRIVER, "%s: %s (%s)", what, strerrorname_np(errno), strerrordesc_np(errno));
}

static int memfd_open(struct segment *segment, struct devices *devices,
                      const uint8_t uuid[PROTO_UUID_BYTES]) {
    const struct gpu *gpu;

    (void)uuid;
    int r = devices_gpu(devices, &gpu);
    if (r < 0)
        return r;
    void *memory;
    r = mapping_make(segment->fd, segment->size_bytes, SEGMENT_MAP_ALIGN_BYTES, &memory);
    if (r < 0) {
        errno = -r;
        return fail_system("mapping it");
    }
    /* A forked child must not share memory that the daemon thinks its parent alone has. */
    if (madvise(memory, segment->size_bytes, MADV_DONTFORK) < 0) {
        r = fail_system("keeping it out of forked children");
        munmap(memory, segment->size_bytes);
        return r;
    }
    (void)madvise(memory, segment->size_bytes,
                  MADV_HUGEPAGE); /* a hint: hugetlb memory refuses it, and has no need */

    segment->memory = memory;
    segment->gpu = gpu;
    if (gpu != NULL) {
        unsigned current;
        int error = gpu->host_register(memory, segment->size_bytes);
        if (error != 0) {
            memfd_close(segment);
            return devices_fail(gpu, error, "registering it with the driver");
        }
        segment->is_registered = true;
        /* Any device may use the memory; the one that surely has a context now is the current one. */
        if (gpu->device_current(&current) == 0)
            devices_note_use(devices, current);
    }
    return 0;
}

/* --- device memory --- */

static const char *is_never_flawed(const struct proto_segment *description, int fd) {
    (void)description;
    (void)fd;
    return NULL; /* the driver checks the handle or the descriptor */
}

/* The device of a pool in this process. Returns 0, NO_GPU, NO_POOL, DRIVER. */
static int find_device(struct devices *devices, const uint8_t uuid[PROTO_UUID_BYTES],
                       const struct gpu **ret_gpu, unsigned *ret_device, char text[GPU_UUID_TEXT_SIZE]) {
    struct gpu_uuid name;
    int r = devices_need_gpu(devices, ret_gpu);

    if (r < 0)
        return r;
    memcpy(name.bytes, uuid, sizeof name.bytes);
    gpu_uuid_format(&name, text);
    int device = devices_find(devices, uuid);
    if (device < 0)
        return error_set(GPUPOOL_E_NO_POOL,
                         "device %s is not visible in this process (CUDA_VISIBLE_DEVICES?)", text);
    *ret_device = (unsigned)device;
    return 0;
}

/* Opens a segment on its device by make(), which calls the driver. *ret_doing: the step of make() that
 * failed. */
static int device_open(struct segment *segment, struct devices *devices, const uint8_t uuid[PROTO_UUID_BYTES],
                       int (*make)(const struct gpu *gpu, unsigned device, struct segment *segment,
                                   void **ret_memory, const char **ret_doing)) {
    char text[GPU_UUID_TEXT_SIZE];
    const char *doing = "";
    const struct gpu *gpu = NULL;
    unsigned device = 0;
    void *memory;
    int r = find_device(devices, uuid, &gpu, &device, text);

    if (r < 0)
        return r;
    int error = make(gpu, device, segment, &memory, &doing);
    if (error != 0) {
        devices_fail(gpu, error, doing);
        return error_prefix(GPUPOOL_E_DRIVER, "device %u (%s)", device, text);
    }
    devices_note_use(devices, device);
    segment->memory = memory;
    segment->gpu = gpu;
    segment->device = (int)device;
    return 0;
}

/* --- device memory by a legacy IPC handle --- */

static int legacy_make(const struct gpu *gpu, unsigned device, struct segment *segment, void **ret_memory,
                       const char **ret_doing) {
    *ret_doing = "opening its handle";
    return gpu->ipc_open(device, &segment->handle, ret_memory);
}

static int legacy_open(struct segment *segment, struct devices *devices,
                       const uint8_t uuid[PROTO_UUID_BYTES]) {
    return device_open(segment, devices, uuid, legacy_make);
}

static bool legacy_close(struct segment *segment) {
    return segment->gpu->ipc_close((unsigned)segment->device, segment->memory) == 0;
}

/* --- device memory by a descriptor, at addresses of its own --- */

/* To its device, and to the others of this process that can reach it: which they are, the driver says. */
static int give_access(const struct gpu *gpu, unsigned device, void *memory, uint64_t size_bytes) {
    unsigned count = 0;
    int error = gpu->vmm_set_access(device, memory, size_bytes, GPU_ACCESS_READ_WRITE);

    if (error == 0)
        error = gpu->device_count(&count);
    for (unsigned other = 0; error == 0 && other < count; other++)
        if (other != device)
            (void)gpu->vmm_set_access(other, memory, size_bytes, GPU_ACCESS_READ_WRITE);
    return error;
}

/* The mapping keeps the memory: the handle is released at once. */
static int vmm_make(const struct gpu *gpu, unsigned device, struct segment *segment, void **ret_memory,
                    const char **ret_doing) {
    uint64_t handle, size_bytes = segment->size_bytes;
    void *memory;

    *ret_doing = "importing its descriptor";
    int error = gpu->vmm_import(device, segment->fd, &handle);
    if (error != 0)
        return error;
    *ret_doing = "reserving addresses for it";
    error = gpu->address_reserve(device, size_bytes, &memory);
    if (error == 0) {
        *ret_doing = "mapping it";
        error = gpu->vmm_map(device, memory, size_bytes, handle);
        if (error == 0) {
            *ret_doing = "giving devices access to it";
            error = give_access(gpu, device, memory, size_bytes);
            if (error != 0)
                gpu->vmm_unmap(device, memory, size_bytes);
        }
        if (error != 0)
            gpu->address_free(device, memory, size_bytes);
    }
    int released = gpu->vmm_release(device, handle);
    if (error == 0 && released != 0) {
        *ret_doing = "releasing its handle";
        error = released;
        gpu->vmm_unmap(device, memory, size_bytes);
        gpu->address_free(device, memory, size_bytes);
    }
    if (error == 0)
        *ret_memory = memory;
    return error;
}

static int vmm_open(struct segment *segment, struct devices *devices, const uint8_t uuid[PROTO_UUID_BYTES]) {
    return device_open(segment, devices, uuid, vmm_make);
}

/* The daemon named it because nothing is leased there, behind no fence either; or the client closes, and its
 * streams are idle. */
static bool vmm_close(struct segment *segment) {
    unsigned device = (unsigned)segment->device;

    return segment->gpu->vmm_unmap(device, segment->memory, segment->size_bytes) == 0 &&
           segment->gpu->address_free(device, segment->memory, segment->size_bytes) == 0;
}

const struct segment_kind *segment_kind(uint32_t kind) {
    static const struct segment_kind kinds[] = {
        [PROTO_SEGMENT_LEGACY_IPC] = {PROTO_POOL_DEVICE, is_never_flawed, legacy_open, legacy_close, true},
        [PROTO_SEGMENT_VMM_FD] = {PROTO_POOL_DEVICE, is_never_flawed, vmm_open, vmm_close, false},
        [PROTO_SEGMENT_MEMFD] = {PROTO_POOL_HOST, memfd_is_flawed, memfd_open, memfd_close, true},
    };
    return &kinds[kind];
}
