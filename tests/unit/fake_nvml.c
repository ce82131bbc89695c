/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library with NVML's name and the functions that are used of it, for test_nvml.c: one GPU, with as many
 * processes as FAKE_NVML_PROCESSES says, numbered from 1000, and clients of MPS, numbered from 5000, as
 * FAKE_NVML_MPS says (unset: a GPU that cannot tell of them), and memory of which FAKE_NVML_FREE says how
 * much is free
 * ("lost": the GPU is; unset: it does not say).
 */
#include <stdlib.h>
#include <string.h>

struct process_info { /* nvmlProcessInfo_t */
    unsigned pid;
    unsigned long long used_gpu_memory_bytes;
    unsigned gpu_instance_id, compute_instance_id;
};

#define VISIBLE __attribute__((visibility("default")))

struct memory { /* nvmlMemory_t */
    unsigned long long total_bytes, free_bytes, used_bytes;
};

VISIBLE int nvmlInit_v2(void);
VISIBLE int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
VISIBLE int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
VISIBLE int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                                    struct process_info *processes);

VISIBLE int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count,
                                                       struct process_info *processes);
VISIBLE int nvmlDeviceGetCount_v2(unsigned *count);
VISIBLE int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);

static int the_device;

int nvmlInit_v2(void) {
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (strcmp(uuid, "GPU-01020304-0506-0708-090a-0b0c0d0e0f10") != 0)
        return 6; /* NVML_ERROR_NOT_FOUND */
    *device = &the_device;
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index != 0)
        return 2; /* NVML_ERROR_INVALID_ARGUMENT */
    *device = &the_device;
    return 0;
}

static int list(const char *variable, unsigned first_pid, const void *device, unsigned *count,
                struct process_info *processes) {
    const char *text = getenv(variable);
    unsigned there = text != NULL ? (unsigned)strtoul(text, NULL, 10) : 0;

    if (device != &the_device || text == NULL)
        return 999; /* NVML_ERROR_UNKNOWN */
    if (*count < there) {
        *count = there;
        return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
    }
    for (unsigned i = 0; i < there; i++)
        processes[i] = (struct process_info){.pid = first_pid + i, .used_gpu_memory_bytes = i};
    *count = there;
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process_info *processes) {
    return list("FAKE_NVML_PROCESSES", 1000, device, count, processes);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count,
                                               struct process_info *processes) {
    return list("FAKE_NVML_MPS", 5000, device, count, processes);
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    const char *text = getenv("FAKE_NVML_FREE");

    if (device != &the_device || text == NULL)
        return 999;
    if (strcmp(text, "lost") == 0)
        return 15; /* NVML_ERROR_GPU_IS_LOST */
    memory->total_bytes = 1000;
    memory->free_bytes = strtoull(text, NULL, 10);
    memory->used_bytes = memory->total_bytes - memory->free_bytes;
    return 0;
}
