/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVML's list of compute processes. States: not tried, ready, absent; the last two are for good. Devices'
 * handles are kept by UUID once they were found, since the look-up asks every GPU of the machine.
 */
#include "gpu/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/cleanup.h"

/* From nvml.h, whose ABI is stable: these functions carry their version in their names. */
#define NVML_SUCCESS                 0
#define NVML_ERROR_INSUFFICIENT_SIZE 7

struct nvml_process_info { /* nvmlProcessInfo_t as nvmlDeviceGetComputeRunningProcesses_v3 fills it */
    unsigned pid;
    unsigned long long used_gpu_memory_bytes;
    unsigned gpu_instance_id, compute_instance_id;
};
_Static_assert(sizeof(struct nvml_process_info) == 24, "nvmlProcessInfo_t of version 2 and later");

#define DEVICES_MAX 64u /* GPUs of a machine; more are looked up each time */
#define ROUNDS_MAX  8u  /* processes may come faster than the buffer grows, but not for ever */
#define GROWTH      16u /* for those that come between asking for the count and for the list */
#define COUNT_MAX   (UINT32_C(1) << 20) /* beyond any pid_max that systems run with: the answer is nonsense */

static struct {
    pthread_mutex_t lock;
    enum {
        NVML_NOT_TRIED,
        NVML_READY,
        NVML_ABSENT,
    } state;
    int (*init)(void);
    int (*device_by_uuid)(const char *uuid, void **device);
    int (*compute_processes)(void *device, unsigned *count, struct nvml_process_info *processes);
    struct {
        struct gpu_uuid uuid;
        void *device;
    } devices[DEVICES_MAX];
    size_t device_count;
} nvml = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Locked. */
static bool nvml_load(void) {
    void *library;

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
    if (nvml.init == NULL || nvml.device_by_uuid == NULL || nvml.compute_processes == NULL ||
        nvml.init() != NVML_SUCCESS) {
        dlclose(library);
        return false;
    }
    nvml.state = NVML_READY;
    return true;
}

/* Locked. */
static bool device_find(const struct gpu_uuid *uuid, void **ret_device) {
    char text[GPU_UUID_TEXT_SIZE];
    void *device;

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

int nvml_compute_processes(const struct gpu_uuid *uuid, pid_t *pids, size_t capacity, size_t *ret_count) {
    _cleanup_(freep) struct nvml_process_info *processes = NULL;
    unsigned room = 0;
    void *device;
    bool found;

    pthread_mutex_lock(&nvml.lock);
    found = nvml_load() && device_find(uuid, &device);
    pthread_mutex_unlock(&nvml.lock);
    if (!found)
        return GPU_ERROR_NOT_SUPPORTED;
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        struct nvml_process_info *larger;
        unsigned count = room;
        int r = nvml.compute_processes(device, &count, processes);

        if (r == NVML_SUCCESS && count <= room) {
            for (unsigned i = 0; i < count && i < capacity; i++)
                pids[i] = (pid_t)processes[i].pid;
            *ret_count = count;
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
