/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table on real GPUs. It must not disturb the program that it lives in: a call that needs a context
 * pushes the primary context of its device, calls the driver, and pops it again, so that the thread's current
 * device and context stay what they were; primary contexts are retained with the first call that needs one
 * and kept for the process. After contexts_by_hand() only context_make() retains one. Calls that make, export
 * and release memory of VMM need no context, and use none: an error of the context is not theirs.
 *
 * The driver's own functions are called, looked up through the statically linked runtime, and not the
 * runtime's wrappers: those keep an error pending on the thread when they fail, and where the program uses
 * the same runtime, clearing it would lose an error that the program has not looked at yet. The numbers of
 * CUresult and cudaError_t are the same ones. The runtime gives the entry points, the errors' names and the
 * thread's current device.
 *
 * Limits: a program that resets a device (cudaDeviceReset) takes this object's context away with it. Where no
 * context is current, the current device is that of this copy of the runtime: a program with a runtime of its
 * own that has only chosen a device, in CUDA before 12.0, is not seen.
 */
#include "gpu/gpu.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/cleanup.h"
#include "base/high_fd.h"
#include "base/lock.h"
#include "gpu/cuda_driver.h"
#include "gpu/driver_settings.h"
#include "gpu/nvml.h"

#define DEVICES_MAX    64 /* of a process: twice what the largest servers have */

/* CU_MEM_LOCATION_TYPE_HOST_NUMA, which the headers have since CUDA 12.2. Older drivers refuse it. */
#define LOCATION_HOST_NUMA ((CUmemLocationType)3)

static struct driver driver;

struct device {
    CUdevice handle;
    struct gpu_device description;
    CUcontext context; /* atomic; NULL until a call needs it */
};

static struct {
    pthread_mutex_t lock; /* initialisation, and making contexts */
    bool ready;
    struct device devices[DEVICES_MAX];
    unsigned device_count;
    bool by_hand; /* atomic: only context_make() makes contexts */
    int first; /* atomic: the device whose context was made first, for calls without a device; -1: none yet */
} cuda = {.lock = PTHREAD_MUTEX_INITIALIZER, .first = -1};

/* --- contexts --- */

/* The device's context, as far as this object has it. device: valid. NULL: none. */
static CUcontext context_of(unsigned device) {
    return __atomic_load_n(&cuda.devices[device].context, __ATOMIC_ACQUIRE);
}

/* The device's primary context, made if need be and if that is allowed. */
static int context_get(unsigned device, bool may_make, CUcontext *ret_context) {
    CUcontext context;
    int r = 0;

    if (device >= cuda.device_count)
        return GPU_ERROR_INVALID_DEVICE;
    context = context_of(device);
    if (context == NULL) {
        if (!may_make)
            return GPU_ERROR_INVALID_CONTEXT;
        LOCKED(&cuda.lock);
        context = cuda.devices[device].context;
        if (context == NULL) {
            r = (int)driver.primary_retain(&context, cuda.devices[device].handle);
            if (r == 0) {
                __atomic_store_n(&cuda.devices[device].context, context, __ATOMIC_RELEASE);
                if (cuda.first < 0)
                    __atomic_store_n(&cuda.first, (int)device, __ATOMIC_RELEASE);
            }
        }
        if (r != 0)
            return r;
    }
    *ret_context = context;
    return 0;
}

/* The calling thread's capture mode, while it is inside. */
static _Thread_local CUstreamCaptureMode saved_mode;

/* While any thread captures a stream in the global mode, which is the default, calls such as an allocation,
 * the opening of a handle or a wait for another stream would fail and spoil that capture, although they have
 * nothing to do with it. The relaxed mode says so for this thread's calls. */
static void relaxed_enter(void) {
    saved_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver.capture_mode(&saved_mode);
}

static int relaxed_leave(CUresult result) {
    driver.capture_mode(&saved_mode);
    return (int)result;
}

static int context_enter(unsigned device) {
    CUcontext context;
    int r = context_get(device, !__atomic_load_n(&cuda.by_hand, __ATOMIC_ACQUIRE), &context);

    if (r == 0)
        r = (int)driver.context_push(context);
    if (r == 0)
        relaxed_enter();
    return r;
}

/* Leaves the context again. Returns the result of the call that was made in it. */
static int context_leave(CUresult result) {
    CUcontext popped;

    int r = relaxed_leave(result), r_pop = (int)driver.context_pop(&popped);

    return r != 0 ? r : r_pop;
}

/* One driver call in the device's context. */
#define IN_CONTEXT(device, call)                                                                             \
    __extension__({                                                                                          \
        int r_ = context_enter(device);                                                                      \
        r_ != 0 ? r_ : context_leave(call);                                                                  \
    })

/* One driver call that needs no context. */
#define WITHOUT_CONTEXT(call)                                                                                \
    __extension__({                                                                                          \
        relaxed_enter();                                                                                     \
        relaxed_leave(call);                                                                                 \
    })

static int cuda_context_make(unsigned device) {
    CUcontext context;
    return context_get(device, true, &context);
}

static bool cuda_has_context(unsigned device) {
    return device < cuda.device_count && context_of(device) != NULL;
}

static void cuda_contexts_by_hand(void) {
    __atomic_store_n(&cuda.by_hand, true, __ATOMIC_RELEASE);
}

/* --- devices --- */

static int cuda_device_count(unsigned *ret_count) {
    *ret_count = cuda.device_count;
    return 0;
}

static int cuda_device_describe(unsigned device, struct gpu_device *ret_device) {
    if (device >= cuda.device_count)
        return GPU_ERROR_INVALID_DEVICE;
    *ret_device = cuda.devices[device].description;
    return 0;
}

static int cuda_device_memory(unsigned device, uint64_t *ret_free_bytes, uint64_t *ret_total_bytes) {
    if (device >= cuda.device_count)
        return GPU_ERROR_INVALID_DEVICE;
    return nvml_device_memory(&cuda.devices[device].description.uuid, ret_free_bytes, ret_total_bytes);
}

static int cuda_device_synchronize(unsigned device) {
    return IN_CONTEXT(device, driver.context_synchronize());
}

static int cuda_device_current(unsigned *ret_device) {
    CUcontext context = NULL;
    CUdevice handle;
    int ordinal, r = (int)driver.context_current(&context);

    if (r != 0)
        return r;
    if (context != NULL) {
        r = (int)driver.context_device(&handle);
        if (r != 0)
            return r;
        for (unsigned i = 0; i < cuda.device_count; i++)
            if (cuda.devices[i].handle == handle) {
                *ret_device = i;
                return 0;
            }
        return GPU_ERROR_INVALID_DEVICE;
    }
    r = (int)cudaGetDevice(&ordinal);
    if (r != 0) {
        cudaGetLastError();
        return r;
    }
    if (ordinal < 0 || (unsigned)ordinal >= cuda.device_count)
        return GPU_ERROR_INVALID_DEVICE;
    *ret_device = (unsigned)ordinal;
    return 0;
}

/* A device for calls that concern all of them: always the same one once there is a context, so that what was
 * registered in it is unregistered in it, and none whose context would be made for this alone. */
static int any_device(unsigned *ret_device) {
    int first = __atomic_load_n(&cuda.first, __ATOMIC_ACQUIRE);

    if (first < 0)
        return cuda_device_current(ret_device);
    *ret_device = (unsigned)first;
    return 0;
}

/* --- memory --- */

static int cuda_memory_allocate(unsigned device, uint64_t size_bytes, void **ret_memory) {
    CUdeviceptr memory;
    int r;

    if (size_bytes == 0 || size_bytes % GPU_ALLOCATION_GRANULE != 0)
        return GPU_ERROR_INVALID_VALUE;
    r = IN_CONTEXT(device, driver.memory_allocate(&memory, size_bytes));
    if (r == 0)
        *ret_memory = (void *)(uintptr_t)memory;
    return r;
}

static int cuda_memory_free(unsigned device, void *memory) {
    if (memory == NULL)
        return GPU_ERROR_INVALID_VALUE;
    return IN_CONTEXT(device, driver.memory_free((uintptr_t)memory));
}

static int cuda_ipc_export(unsigned device, void *memory, struct gpu_ipc_handle *ret_handle) {
    CUipcMemHandle handle;
    int r = IN_CONTEXT(device, driver.ipc_export(&handle, (uintptr_t)memory));

    if (r == 0)
        memcpy(ret_handle->bytes, &handle, sizeof(handle));
    return r;
}

static int cuda_ipc_open(unsigned device, const struct gpu_ipc_handle *bytes, void **ret_memory) {
    CUipcMemHandle handle;
    CUdeviceptr memory;
    int r;

    memcpy(&handle, bytes->bytes, sizeof(handle));
    r = IN_CONTEXT(device, driver.ipc_open(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    if (r == 0)
        *ret_memory = (void *)(uintptr_t)memory;
    return r;
}

static int cuda_ipc_close(unsigned device, void *memory) {
    return IN_CONTEXT(device, driver.ipc_close((uintptr_t)memory));
}

/* --- memory apart from its addresses --- */

static int attribute_of(unsigned device, CUdevice_attribute attribute) {
    int value = 0;
    CUresult result = driver.device_attribute(&value, attribute, cuda.devices[device].handle);
    return result == CUDA_SUCCESS ? value : 0;
}

/* The properties of memory that vmm_create() makes. device: valid. */
static CUmemAllocationProp vmm_properties(unsigned device) {
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda.devices[device].handle},
    };
    properties.allocFlags.gpuDirectRDMACapable =
        attribute_of(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
    return properties;
}

/* The properties of memory that vmm_host_create() makes. */
static CUmemAllocationProp vmm_host_properties(int node) {
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = LOCATION_HOST_NUMA, .id = node},
    };
}

static int vmm_create(uint64_t size_bytes, const CUmemAllocationProp *properties, uint64_t *ret_handle) {
    CUmemGenericAllocationHandle handle;
    int r = WITHOUT_CONTEXT(driver.vmm_create(&handle, size_bytes, properties, 0));

    if (r == 0)
        *ret_handle = handle;
    return r;
}

static int cuda_vmm_create(unsigned device, uint64_t size_bytes, uint64_t *ret_handle) {
    if (device >= cuda.device_count)
        return GPU_ERROR_INVALID_DEVICE;
    CUmemAllocationProp properties = vmm_properties(device);
    return vmm_create(size_bytes, &properties, ret_handle);
}

static int cuda_vmm_host_create(unsigned device, int node, uint64_t size_bytes, uint64_t *ret_handle) {
    CUmemAllocationProp properties = vmm_host_properties(node);
    return device >= cuda.device_count ? GPU_ERROR_INVALID_DEVICE
                                       : vmm_create(size_bytes, &properties, ret_handle);
}

static int cuda_vmm_release(unsigned device, uint64_t handle) {
    return device >= cuda.device_count ? GPU_ERROR_INVALID_DEVICE
                                       : WITHOUT_CONTEXT(driver.vmm_release(handle));
}

static int cuda_vmm_export(unsigned device, uint64_t handle, int *ret_fd) {
    int fd = -1;

    if (device >= cuda.device_count)
        return GPU_ERROR_INVALID_DEVICE;
    int r = WITHOUT_CONTEXT(driver.vmm_export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    if (r != 0)
        return r;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fd = high_fd(fd);
    if (fd < 0)
        return GPU_ERROR_UNKNOWN;
    *ret_fd = fd;
    return 0;
}

static int cuda_vmm_import(unsigned device, int fd, uint64_t *ret_handle) {
    CUmemGenericAllocationHandle handle;
    int r = IN_CONTEXT(
        device, driver.vmm_import(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));

    if (r == 0)
        *ret_handle = handle;
    return r;
}

/* Whether a device has this kind of memory at all, of the device or of the host. */
static bool has_vmm(unsigned device) {
    return attribute_of(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0 &&
           attribute_of(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
}

/* The granule of memory with such properties, if it can be made and exported. */
static int granule_of(unsigned device, const CUmemAllocationProp *properties, uint64_t *ret_granule_bytes) {
    uint64_t handle;
    size_t granule;
    int fd;
    int r =
        WITHOUT_CONTEXT(driver.vmm_granularity(&granule, properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));

    if (r == 0)
        r = vmm_create(granule, properties, &handle);
    if (r != 0)
        return r;
    r = cuda_vmm_export(device, handle, &fd);
    if (r == 0)
        close_fd(fd);
    cuda_vmm_release(device, handle);
    if (r == 0)
        *ret_granule_bytes = granule;
    return r;
}

static int cuda_vmm_granule(unsigned device, uint64_t *ret_granule_bytes) {
    if (device >= cuda.device_count)
        return GPU_ERROR_INVALID_DEVICE;
    if (!has_vmm(device))
        return GPU_ERROR_NOT_SUPPORTED;
    CUmemAllocationProp properties = vmm_properties(device);
    return granule_of(device, &properties, ret_granule_bytes);
}

/* No attribute is asked for: drivers that have such memory are older than the attribute for it. */
static int cuda_vmm_host_granule(unsigned device, int node, uint64_t *ret_granule_bytes) {
    if (device >= cuda.device_count)
        return GPU_ERROR_INVALID_DEVICE;
    if (!has_vmm(device))
        return GPU_ERROR_NOT_SUPPORTED;
    CUmemAllocationProp properties = vmm_host_properties(node);
    return granule_of(device, &properties, ret_granule_bytes);
}

static int cuda_device_check(unsigned device) {
    uint64_t free_bytes, total_bytes, handle;
    size_t free_size, total_size;

    if (device >= cuda.device_count)
        return GPU_ERROR_INVALID_DEVICE;
    int r = cuda_device_memory(device, &free_bytes, &total_bytes);
    if (r != 0 && r != GPU_ERROR_NOT_SUPPORTED)
        return r;
    if (cuda_has_context(device)) {
        r = IN_CONTEXT(device, driver.context_synchronize());
        return r != 0 ? r : IN_CONTEXT(device, driver.memory_info(&free_size, &total_size));
    }
    if (!has_vmm(device))
        return 0;
    r = cuda_vmm_create(device, GPU_ALLOCATION_GRANULE, &handle);
    return r != 0 ? r : cuda_vmm_release(device, handle);
}

static int cuda_address_reserve(unsigned device, uint64_t size_bytes, void **ret_address) {
    CUdeviceptr address;
    int r = IN_CONTEXT(device, driver.address_reserve(&address, size_bytes, 0, 0, 0));

    if (r == 0)
        *ret_address = (void *)(uintptr_t)address;
    return r;
}

static int cuda_address_free(unsigned device, void *address, uint64_t size_bytes) {
    return IN_CONTEXT(device, driver.address_free((uintptr_t)address, size_bytes));
}

static int cuda_vmm_map(unsigned device, void *address, uint64_t size_bytes, uint64_t handle) {
    return IN_CONTEXT(device, driver.vmm_map((uintptr_t)address, size_bytes, 0, handle, 0));
}

static int cuda_vmm_unmap(unsigned device, void *address, uint64_t size_bytes) {
    return IN_CONTEXT(device, driver.vmm_unmap((uintptr_t)address, size_bytes));
}

static int cuda_vmm_set_access(unsigned device, void *address, uint64_t size_bytes, enum gpu_access access) {
    if (device >= cuda.device_count)
        return GPU_ERROR_INVALID_DEVICE;
    CUmemAccessDesc description = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda.devices[device].handle},
        .flags = (CUmemAccess_flags)access,
    };
    unsigned any;
    int r = any_device(&any);
    return r != 0 ? r
                  : IN_CONTEXT(any, driver.vmm_set_access((uintptr_t)address, size_bytes, &description, 1));
}

/* The location names no node: the driver ignores it here (cuda.h). */
static int cuda_vmm_host_set_access(unsigned device, void *address, uint64_t size_bytes,
                                    enum gpu_access access) {
    CUmemAccessDesc description = {
        .location = {.type = LOCATION_HOST_NUMA},
        .flags = (CUmemAccess_flags)access,
    };
    return IN_CONTEXT(device, driver.vmm_set_access((uintptr_t)address, size_bytes, &description, 1));
}

/* --- host memory --- */

static int cuda_host_register(void *memory, uint64_t size_bytes) {
    unsigned device;
    int r = any_device(&device);

    if (r != 0)
        return r;
    return IN_CONTEXT(
        device,
        driver.host_register(memory, size_bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
}

static int cuda_host_unregister(void *memory) {
    unsigned device;
    int r = any_device(&device);

    return r != 0 ? r : IN_CONTEXT(device, driver.host_unregister(memory));
}

/* --- streams --- */

static int cuda_stream_create(unsigned device, void **ret_stream) {
    CUstream stream;
    int r = IN_CONTEXT(device, driver.stream_create(&stream, CU_STREAM_NON_BLOCKING));

    if (r == 0)
        *ret_stream = stream;
    return r;
}

static int cuda_stream_destroy(unsigned device, void *stream) {
    return IN_CONTEXT(device, driver.stream_destroy(stream));
}

static int cuda_stream_synchronize(unsigned device, void *stream) {
    return IN_CONTEXT(device, driver.stream_synchronize(stream));
}

static int cuda_stream_query(unsigned device, void *stream) {
    return IN_CONTEXT(device, driver.stream_query(stream));
}

static int cuda_stream_is_capturing(unsigned device, void *stream, bool *ret_capturing) {
    CUstreamCaptureStatus status;
    int r = IN_CONTEXT(device, driver.stream_is_capturing(stream, &status));

    if (r == 0)
        *ret_capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return r;
}

/* In the device's context: writes, or waits for, the word at the address by which the device reaches host
 * memory. Memory that was not registered but mapped has that address as an attribute. Both calls of the
 * driver have one type. */
static CUresult word_call(PFN_cuStreamWriteValue64_v11070 call, unsigned flags, void *stream, uint64_t *word,
                          uint64_t value) {
    CUdeviceptr address;
    CUresult result = driver.host_device_pointer(&address, word, 0);
    if (result != CUDA_SUCCESS)
        result = driver.pointer_attribute(&address, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, (uintptr_t)word);
    return result != CUDA_SUCCESS ? result : call(stream, address, value, flags);
}

static int cuda_stream_write64(unsigned device, void *stream, uint64_t *word, uint64_t value) {
    return IN_CONTEXT(device,
                      word_call(driver.stream_write64, CU_STREAM_WRITE_VALUE_DEFAULT, stream, word, value));
}

static int cuda_stream_wait64(unsigned device, void *stream, uint64_t *word, uint64_t value) {
    return IN_CONTEXT(device, word_call(driver.stream_wait64, CU_STREAM_WAIT_VALUE_GEQ, stream, word, value));
}

static int cuda_memory_set(unsigned device, void *memory, uint8_t byte, uint64_t size_bytes, void *stream) {
    return IN_CONTEXT(device, driver.memory_set((uintptr_t)memory, byte, size_bytes, stream));
}

static int cuda_memory_copy(unsigned device, void *to, const void *from, uint64_t size_bytes, void *stream) {
    return IN_CONTEXT(device, driver.memory_copy((uintptr_t)to, (uintptr_t)from, size_bytes, stream));
}

/* --- what is told of others, and errors --- */

static int cuda_processes(unsigned device, pid_t *pids, size_t capacity, size_t *ret_count) {
    if (device >= cuda.device_count)
        return GPU_ERROR_INVALID_DEVICE;
    return nvml_compute_processes(&cuda.devices[device].description.uuid, pids, capacity, ret_count);
}

static void cuda_device_files(char prefix[GPU_DEVICE_FILES_SIZE]) {
    /* nvidia0…, nvidiactl, nvidia-uvm, nvidia-caps */
    snprintf(prefix, GPU_DEVICE_FILES_SIZE, "/dev/nvidia");
}

static const char *cuda_unclean_setting(bool is_host) {
    return driver_settings_unclean(DRIVER_SETTINGS_FILE, is_host);
}

static const char *cuda_error_name(int error) {
    return cudaGetErrorName((cudaError_t)error);
}

static const char *cuda_error_text(int error) {
    return cudaGetErrorString((cudaError_t)error);
}

static const struct gpu table = {
    .name = "cuda",
    .device_count = cuda_device_count,
    .device_describe = cuda_device_describe,
    .device_memory = cuda_device_memory,
    .device_check = cuda_device_check,
    .context_make = cuda_context_make,
    .has_context = cuda_has_context,
    .contexts_by_hand = cuda_contexts_by_hand,
    .device_synchronize = cuda_device_synchronize,
    .device_current = cuda_device_current,
    .memory_allocate = cuda_memory_allocate,
    .memory_free = cuda_memory_free,
    .ipc_export = cuda_ipc_export,
    .ipc_open = cuda_ipc_open,
    .ipc_close = cuda_ipc_close,
    .vmm_granule = cuda_vmm_granule,
    .vmm_create = cuda_vmm_create,
    .vmm_release = cuda_vmm_release,
    .vmm_export = cuda_vmm_export,
    .vmm_import = cuda_vmm_import,
    .address_reserve = cuda_address_reserve,
    .address_free = cuda_address_free,
    .vmm_map = cuda_vmm_map,
    .vmm_unmap = cuda_vmm_unmap,
    .vmm_set_access = cuda_vmm_set_access,
    .vmm_host_granule = cuda_vmm_host_granule,
    .vmm_host_create = cuda_vmm_host_create,
    .vmm_host_set_access = cuda_vmm_host_set_access,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_synchronize = cuda_stream_synchronize,
    .stream_query = cuda_stream_query,
    .stream_is_capturing = cuda_stream_is_capturing,
    .stream_write64 = cuda_stream_write64,
    .stream_wait64 = cuda_stream_wait64,
    .memory_set = cuda_memory_set,
    .memory_copy = cuda_memory_copy,
    .processes = cuda_processes,
    .all_processes = nvml_all_processes,
    .device_files = cuda_device_files,
    .unclean_setting = cuda_unclean_setting,
    .error_name = cuda_error_name,
    .error_text = cuda_error_text,
};

/* --- initialisation --- */

/* The NUMA node of a PCI device, or -1. */
static int numa_node(char *bus) {
    _cleanup_(fclosep) FILE *file = NULL;
    char path[128];
    int node;

    for (char *c = bus; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus);
    int fd = high_fd(open(path, O_RDONLY | O_CLOEXEC));
    file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (file == NULL)
        close_fd(fd);
    if (file == NULL || fscanf(file, "%d", &node) != 1 || node < 0)
        return -1;
    return node;
}

static int device_init(unsigned ordinal, struct device *device) {
    struct gpu_device *description = &device->description;
    char bus[32];
    CUuuid uuid;
    size_t total_bytes;
    int r = (int)driver.device_get(&device->handle, (int)ordinal);

    if (r == 0)
        r = (int)driver.device_uuid(&uuid, device->handle);
    if (r == 0)
        r = (int)driver.device_name(description->name, (int)sizeof(description->name), device->handle);
    if (r == 0)
        r = (int)driver.device_total(&total_bytes, device->handle);
    if (r != 0)
        return r;
    memcpy(description->uuid.bytes, uuid.bytes, GPU_UUID_BYTES);
    description->name[sizeof(description->name) - 1] = '\0';
    description->total_bytes = total_bytes;
    description->numa_node = -1;
    if (driver.device_bus(bus, (int)sizeof(bus), device->handle) == CUDA_SUCCESS)
        description->numa_node = numa_node(bus);
    return 0;
}

/* Locked. */
static int cuda_init(void) {
    int count, r = cuda_driver_load(&driver);

    if (r == 0)
        r = (int)driver.init(0);
    if (r == 0)
        r = (int)driver.device_count(&count);
    if (r != 0)
        return r;
    if (count <= 0)
        return GPU_ERROR_NO_DEVICE;
    if (count > DEVICES_MAX)
        count = DEVICES_MAX;
    for (unsigned i = 0; i < (unsigned)count; i++) {
        r = device_init(i, &cuda.devices[i]);
        if (r != 0)
            return r;
    }
    cuda.device_count = (unsigned)count;
    return 0;
}

int gpu_cuda(const struct gpu **ret_gpu) {
    int r = 0;

    LOCKED(&cuda.lock);
    if (!cuda.ready)
        r = cuda_init();
    if (r != 0)
        return r;
    cuda.ready = true;
    *ret_gpu = &table;
    return 0;
}

bool gpu_cuda_built(void) {
    return true;
}

const char *gpu_cuda_toolkit(void) {
    return GPUPOOL_CUDA_TOOLKIT;
}
