/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/segment_kind.h"

#include <string.h>
#include <sys/mman.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000 /* Linux 4.17; older kernels take the address as a hint */
#endif

#include "base/cleanup.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/memfd.h"

/* --- host memory: a sealed memfd, mapped and registered with the driver --- */

static const char *memfd_is_flawed(const struct proto_segment *description, int fd) {
    return memfd_flaw(fd, description->size_bytes);
}

/* Unregisters host memory and ends its mapping. Where the driver refuses, it stays mapped for the rest of the
 * process's life: the driver may still have the GPU write there, and an address that is taken cannot be given
 * to other memory. Returns false then. */
static bool memfd_end(struct segment *segment, bool (*end)(struct own_mapping *mapping)) {
    bool clean = !segment->is_registered || segment->gpu->host_unregister(segment->memory) == 0;

    if (clean)
        clean = end(take_ptr(&segment->mapping));
    segment->is_registered = false;
    segment->memory = NULL;
    segment->gpu = NULL;
    return clean;
}

static bool memfd_close(struct segment *segment) {
    return memfd_end(segment, own_mapping_unmap);
}

static bool memfd_leave(struct segment *segment) {
    return memfd_end(segment, own_mapping_replace);
}

static int memfd_open(struct segment *segment, struct devices *devices,
                      const uint8_t uuid[PROTO_UUID_BYTES]) {
    const struct gpu *gpu;

    (void)uuid;
    int r = devices_gpu(devices, &gpu);
    if (r < 0)
        return r;
    /* A forked child must not share memory that the daemon thinks its parent alone has. */
    r = own_mapping_make(segment->fd, segment->size_bytes, SEGMENT_MAP_ALIGN_BYTES, &segment->mapping);
    if (r < 0)
        return error_set(GPUPOOL_E_DRIVER, "mapping it: %s (%s)", strerrorname_np(-r), strerrordesc_np(-r));
    void *memory = segment->mapping->memory;
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

/* --- device memory by a legacy IPC handle --- */

static int legacy_open(struct segment *segment, struct devices *devices,
                       const uint8_t uuid[PROTO_UUID_BYTES]) {
    char text[GPU_UUID_TEXT_SIZE];
    const struct gpu *gpu = NULL;
    unsigned device = 0;
    void *memory;
    int r = find_device(devices, uuid, &gpu, &device, text);

    if (r < 0)
        return r;
    int error = gpu->ipc_open(device, &segment->handle, &memory);
    if (error != 0) {
        devices_fail(gpu, error, "opening its handle");
        return error_prefix(GPUPOOL_E_DRIVER, "device %u (%s)", device, text);
    }
    devices_note_use(devices, device);
    segment->memory = memory;
    segment->gpu = gpu;
    segment->device = (int)device;
    return 0;
}

static bool legacy_close(struct segment *segment) {
    return segment->gpu->ipc_close((unsigned)segment->device, segment->memory) == 0;
}

/* --- memory by a descriptor for the driver, at addresses of its own --- */

/* Maps a handle, whole, at new addresses. give_access: to what uses the memory. Returns 0 or the driver's
 * error, and the step that failed. */
static int map_handle(const struct segment *segment, uint64_t handle,
                      int (*give_access)(const struct segment *segment, void *memory, uint64_t size_bytes),
                      void **ret_memory, const char **ret_doing) {
    const struct gpu *gpu = segment->gpu;
    uint64_t size_bytes = segment->size_bytes;

    *ret_doing = "reserving addresses for it";
    int error = gpu->address_reserve(segment->context, size_bytes, ret_memory);
    if (error != 0)
        return error;
    *ret_doing = "mapping it";
    error = gpu->vmm_map(segment->context, *ret_memory, size_bytes, handle);
    if (error == 0) {
        *ret_doing = "giving devices access to it";
        error = give_access(segment, *ret_memory, size_bytes);
        if (error != 0)
            gpu->vmm_unmap(segment->context, *ret_memory, size_bytes);
    }
    if (error != 0)
        gpu->address_free(segment->context, *ret_memory, size_bytes);
    return error;
}

/* The daemon named it because nothing is leased there, behind no fence either; or the client closes, and its
 * streams are idle. */
static bool vmm_close(struct segment *segment) {
    own_mapping_forget(take_ptr(&segment->mapping));
    return segment->gpu->vmm_unmap(segment->context, segment->memory, segment->size_bytes) == 0 &&
           segment->gpu->address_free(segment->context, segment->memory, segment->size_bytes) == 0;
}

/* --- of device memory --- */

int segment_give_access(const struct segment *segment, void *memory, uint64_t size_bytes,
                        enum gpu_access access) {
    const struct gpu *gpu = segment->gpu;
    unsigned device = (unsigned)segment->device, count = 0;
    int error = gpu->vmm_set_access(device, memory, size_bytes, access);

    if (error == 0)
        error = gpu->device_count(&count);
    for (unsigned other = 0; error == 0 && other < count; other++)
        if (other != device)
            (void)gpu->vmm_set_access(other, memory, size_bytes, access);
    return error;
}

static int vmm_import(struct segment *segment, struct devices *devices,
                      const uint8_t uuid[PROTO_UUID_BYTES]) {
    char text[GPU_UUID_TEXT_SIZE];
    const struct gpu *gpu = NULL;
    unsigned device = 0;
    int r = find_device(devices, uuid, &gpu, &device, text);

    if (r < 0)
        return r;
    int error = gpu->vmm_import(device, segment->fd, &segment->vmm_handle);
    if (error != 0) {
        devices_fail(gpu, error, "importing its descriptor");
        return error_prefix(GPUPOOL_E_DRIVER, "device %u (%s)", device, text);
    }
    devices_note_use(devices, device);
    segment->has_vmm_handle = true;
    segment->gpu = gpu;
    segment->device = (int)device;
    segment->context = device;
    return 0;
}

static bool vmm_drop(struct segment *segment) {
    segment->has_vmm_handle = false;
    return segment->gpu->vmm_release((unsigned)segment->device, segment->vmm_handle) == 0;
}

static int give_devices_access(const struct segment *segment, void *memory, uint64_t size_bytes) {
    return segment_give_access(segment, memory, size_bytes, GPU_ACCESS_READ_WRITE);
}

static int vmm_open(struct segment *segment, struct devices *devices, const uint8_t uuid[PROTO_UUID_BYTES]) {
    const char *doing = "";
    void *memory;
    int r = segment->has_vmm_handle ? 0 : vmm_import(segment, devices, uuid);

    if (r < 0)
        return r;
    int error = map_handle(segment, segment->vmm_handle, give_devices_access, &memory, &doing);
    if (error != 0)
        return devices_fail_on(segment->gpu, (unsigned)segment->device, error, doing);
    segment->memory = memory;
    return 0;
}

/* --- of host memory --- */

/* Host code and every device of this process. */
static int give_access_to_all(const struct segment *segment, void *memory, uint64_t size_bytes) {
    const struct gpu *gpu = segment->gpu;
    unsigned count = 0;
    int error = gpu->vmm_host_set_access(segment->context, memory, size_bytes, GPU_ACCESS_READ_WRITE);

    if (error == 0)
        error = gpu->device_count(&count);
    for (unsigned device = 0; error == 0 && device < count; device++)
        error = gpu->vmm_set_access(device, memory, size_bytes, GPU_ACCESS_READ_WRITE);
    return error;
}

/* The process ends soon, and the driver's part of the mapping ends with it. If the driver ended its part here,
 * the addresses would be without memory for a moment, and a thread that still uses them would fault. */
static bool host_vmm_leave(struct segment *segment) {
    return own_mapping_replace(take_ptr(&segment->mapping));
}

/* Imports the memory and maps it. The mapping alone keeps the memory. */
static int host_vmm_map(const struct segment *segment, void **ret_memory, const char **ret_doing) {
    const struct gpu *gpu = segment->gpu;
    uint64_t handle;

    *ret_doing = "importing its descriptor";
    int error = gpu->vmm_import(segment->context, segment->fd, &handle);
    if (error != 0)
        return error;
    error = map_handle(segment, handle, give_access_to_all, ret_memory, ret_doing);
    /* A handle that the driver does not release keeps the memory until this process ends. */
    (void)gpu->vmm_release(segment->context, handle);
    return error;
}

static int host_vmm_open(struct segment *segment, struct devices *devices,
                         const uint8_t uuid[PROTO_UUID_BYTES]) {
    const struct gpu *gpu = NULL;
    const char *doing = "";
    unsigned current = 0;
    void *memory;

    (void)uuid;
    int r = devices_need_gpu_for_host(devices, &gpu);
    if (r == 0)
        r = devices_current(devices, &current);
    if (r < 0)
        return r;
    segment->gpu = gpu;
    segment->context = current;
    int error = host_vmm_map(segment, &memory, &doing);
    if (error != 0)
        return devices_fail_on(gpu, current, error, doing);
    segment->memory = memory;
    /* For forked children, as with memfds: the driver's own mappings may be left out of them anyway. */
    r = own_mapping_adopt(memory, segment->size_bytes, &segment->mapping);
    if (r < 0) {
        (void)vmm_close(segment);
        segment->memory = NULL;
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory for a segment");
    }
    devices_note_use(devices, current);
    return 0;
}

const struct segment_kind *segment_kind(uint32_t kind) {
    static const struct segment_kind kinds[] = {
        [PROTO_SEGMENT_LEGACY_IPC] = {PROTO_POOL_DEVICE, is_never_flawed, legacy_open, legacy_close, NULL,
                                      NULL, true, NULL},
        [PROTO_SEGMENT_VMM_FD] = {PROTO_POOL_DEVICE, is_never_flawed, vmm_open, vmm_close, vmm_import,
                                  vmm_drop, false, NULL},
        [PROTO_SEGMENT_HOST_VMM_FD] = {PROTO_POOL_HOST, is_never_flawed, host_vmm_open, vmm_close, NULL, NULL,
                                       false, host_vmm_leave},
        [PROTO_SEGMENT_MEMFD] = {PROTO_POOL_HOST, memfd_is_flawed, memfd_open, memfd_close, NULL, NULL, true,
                                 memfd_leave},
    };
    return &kinds[kind];
}
