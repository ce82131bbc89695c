/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVML's lists of compute processes, and its word on a device's memory. States: not tried, ready, absent; the
 * last two are for good. Devices' handles are kept by UUID once they were found, since the look-up asks every
 * GPU of the machine. The lists of clients of MPS are NVML's own, beside those of all others.
 */
#include "gpu/nvml.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/lock.h"

/* From nvml.h, whose ABI is stable: these functions carry their version in their names. */
#define NVML_SUCCESS                 0
#define NVML_ERROR_INSUFFICIENT_SIZE 7
#define NVML_ERROR_GPU_IS_LOST       15
#define NVML_ERROR_RESET_REQUIRED    16

struct nvml_process_info { /* nvmlProcessInfo_t as nvmlDeviceGetComputeRunningProcesses_v3 fills it */
    unsigned pid;
    unsigned long long used_gpu_memory_bytes;
    unsigned gpu_instance_id, compute_instance_id;
};
_Static_assert(sizeof(struct nvml_process_info) == 24, "nvmlProcessInfo_t of version 2 and later");

struct nvml_memory { /* nvmlMemory_t as nvmlDeviceGetMemoryInfo fills it */
    unsigned long long total_bytes, free_bytes, used_bytes;
};

_Static_assert(GPU_USED_UNKNOWN == ULLONG_MAX, "NVML_VALUE_NOT_AVAILABLE, of 64 bits");

#define DEVICES_MAX 64u /* GPUs of a machine; more are looked up each time */
#define ROUNDS_MAX  8u  /* processes may come faster than the buffer grows, but not for ever */
#define GROWTH      16u /* for those that come between asking for the count and for the list */
#define COUNT_MAX   (UINT32_C(1) << 20) /* beyond any pid_max that systems run with: the answer is nonsense */

typedef int nvml_list_function(void *device, unsigned *count, struct nvml_process_info *processes);

static struct {
    pthread_mutex_t lock;
    enum {
        NVML_NOT_TRIED,
        NVML_READY,
        NVML_ABSENT,
    } state;
    int (*init)(void);
    int (*device_by_uuid)(const char *uuid, void **device);
    nvml_list_function *compute_processes;
    nvml_list_function *mps_processes; /* NULL: a library that has no such list */
    int (*device_count_get)(unsigned *count);
    int (*device_by_index)(unsigned index, void **device);
    int (*memory_info)(void *device, struct nvml_memory *memory); /* NULL: not in this library */
    struct {
        struct gpu_uuid uuid;
        void *device;
    } devices[DEVICES_MAX];
    size_t device_count;
} nvml = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool nvml_load(void) {
    void *library;

    LOCKED(&nvml.lock);
    if (nvml.state != NVML_NOT_TRIED)
        return nvml.state == NVML_READY;
    nvml.state = NVML_ABSENT;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return false;
    /* The function pointers of POSIX's dlsym, by way of void *. */
    *(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml.device_by_uuid = dlsym(library, "nvmlDeviceGetHandleByUUID");
    *(void **)&nvml.compute_processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    *(void **)&nvml.mps_processes = dlsym(library, "nvmlDeviceGetMPSComputeRunningProcesses_v3");
    *(void **)&nvml.device_count_get = dlsym(library, "nvmlDeviceGetCount_v2");
    *(void **)&nvml.device_by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&nvml.memory_info = dlsym(library, "nvmlDeviceGetMemoryInfo");
    if (nvml.init == NULL || nvml.device_by_uuid == NULL || nvml.compute_processes == NULL ||
        nvml.device_count_get == NULL || nvml.device_by_index == NULL || nvml.init() != NVML_SUCCESS) {
        dlclose(library);
        return false;
    }
    nvml.state = NVML_READY;
    return true;
}

static bool device_find(const struct gpu_uuid *uuid, void **ret_device) {
    char text[GPU_UUID_TEXT_SIZE];
    void *device;

    LOCKED(&nvml.lock);
    for (size_t i = 0; i < nvml.device_count; i++)
        if (gpu_uuid_equal(&nvml.devices[i].uuid, uuid)) {
            *ret_device = nvml.devices[i].device;
            return true;
        }
    gpu_uuid_format(uuid, text);
    if (nvml.device_by_uuid(text, &device) != NVML_SUCCESS)
        return false;
    if (nvml.device_count < DEVICES_MAX) {
        nvml.devices[nvml.device_count].uuid = *uuid;
        nvml.devices[nvml.device_count++].device = device;
    }
    *ret_device = device;
    return true;
}

/* Fetches a whole list. Returns 0, NOT_SUPPORTED or MEMORY_ALLOCATION. *ret_processes is the caller's to
 * free. */
static int list_fetch(nvml_list_function *list, void *device, struct nvml_process_info **ret_processes,
                      unsigned *ret_count) {
    _cleanup_(freep) struct nvml_process_info *processes = NULL;
    unsigned room = 0;

    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        struct nvml_process_info *larger;
        unsigned count = room;
        int r = list(device, &count, processes);

        if (r == NVML_SUCCESS && count <= room) {
            *ret_processes = take_ptr(&processes);
            *ret_count = count;
            return 0;
        }
        if (r == NVML_ERROR_GPU_IS_LOST) { /* it does no work for anybody any more */
            *ret_processes = NULL;
            *ret_count = 0;
            return 0;
        }
        if (r != NVML_ERROR_INSUFFICIENT_SIZE || count > COUNT_MAX)
            return GPU_ERROR_NOT_SUPPORTED;
        /* Some drivers leave the count as it was: then the buffer grows all the same. */
        room = (count > room ? count : room) + GROWTH;
        larger = realloc(processes, room * sizeof(*processes));
        if (larger == NULL)
            return GPU_ERROR_MEMORY_ALLOCATION;
        processes = larger;
    }
    return GPU_ERROR_NOT_SUPPORTED;
}

int nvml_compute_processes(const struct gpu_uuid *uuid, pid_t *pids, size_t capacity, size_t *ret_count) {
    _cleanup_(freep) struct nvml_process_info *processes = NULL;
    unsigned count;
    void *device;

    if (!nvml_load() || !device_find(uuid, &device))
        return GPU_ERROR_NOT_SUPPORTED;
    int r = list_fetch(nvml.compute_processes, device, &processes, &count);
    if (r != 0)
        return r;
    for (unsigned i = 0; i < count && i < capacity; i++)
        pids[i] = (pid_t)processes[i].pid;
    *ret_count = count;
    return 0;
}

/* Adds one list of one device to what there is. */
static int list_add(nvml_list_function *list, bool under_mps, void *device, struct gpu_process *processes,
                    size_t capacity, size_t *count) {
    _cleanup_(freep) struct nvml_process_info *listed = NULL;
    unsigned listed_count;
    int r = list_fetch(list, device, &listed, &listed_count);

    if (r != 0)
        return r;
    for (unsigned i = 0; i < listed_count; i++, (*count)++)
        if (*count < capacity)
            processes[*count] = (struct gpu_process){.pid = (pid_t)listed[i].pid,
                                                     .under_mps = under_mps,
                                                     .used_bytes = listed[i].used_gpu_memory_bytes};
    return 0;
}

int nvml_all_processes(struct gpu_process *processes, size_t capacity, size_t *ret_count) {
    unsigned devices;
    size_t count = 0;

    if (!nvml_load() || nvml.device_count_get(&devices) != NVML_SUCCESS)
        return GPU_ERROR_NOT_SUPPORTED;
    for (unsigned index = 0; index < devices; index++) {
        void *device;
        int r = nvml.device_by_index(index, &device);

        if (r == NVML_ERROR_GPU_IS_LOST)
            continue;
        if (r != NVML_SUCCESS)
            return GPU_ERROR_NOT_SUPPORTED;
        r = list_add(nvml.compute_processes, false, device, processes, capacity, &count);
        if (r != 0)
            return r;
        /* Not all GPUs have a list of MPS's clients. A process that is on no list was never seen, and the
         * stricter rule holds for it. */
        if (nvml.mps_processes != NULL && list_add(nvml.mps_processes, true, device, processes, capacity,
                                                   &count) == GPU_ERROR_MEMORY_ALLOCATION)
            return GPU_ERROR_MEMORY_ALLOCATION;
    }
    *ret_count = count;
    return 0;
}

int nvml_device_memory(const struct gpu_uuid *uuid, uint64_t *ret_free_bytes, uint64_t *ret_total_bytes) {
    struct nvml_memory memory;
    void *device;

    if (!nvml_load() || nvml.memory_info == NULL || !device_find(uuid, &device))
        return GPU_ERROR_NOT_SUPPORTED;
    int r = nvml.memory_info(device, &memory);
    if (r != NVML_SUCCESS)
        return r == NVML_ERROR_GPU_IS_LOST || r == NVML_ERROR_RESET_REQUIRED ? GPU_ERROR_DEVICES_UNAVAILABLE
                                                                             : GPU_ERROR_NOT_SUPPORTED;
    *ret_free_bytes = memory.free_bytes;
    *ret_total_bytes = memory.total_bytes;
    return 0;
}
