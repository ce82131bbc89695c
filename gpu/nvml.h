/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPU_NVML_H
#define GPU_NVML_H
/*
 * The questions to NVML: which processes the driver still holds resources for, how much of a device's memory
 * is free, and whether the device is lost. The library is opened at run time, once, and kept; nothing of NVML
 * is needed to build. Thread-safe.
 */
#include <stddef.h>
#include <sys/types.h>

#include "gpu/gpu.h"

/* The compute processes on the device with this UUID, as pids of the caller's PID namespace. Writes at most
 * capacity of them; *ret_count gets how many there are. Returns 0, or NOT_SUPPORTED where NVML is absent,
 * does not know the device (a MIG slice) or fails. */
int nvml_compute_processes(const struct gpu_uuid *uuid, pid_t *pids, size_t capacity, size_t *ret_count);

/* The compute processes and MPS clients of all GPUs that NVML knows. A process may be listed several times.
 * Returns 0, or NOT_SUPPORTED where NVML is absent or does not answer for one of the GPUs. */
int nvml_all_processes(struct gpu_process *processes, size_t capacity, size_t *ret_count);

/* The device's memory, all processes' together. Returns 0; DEVICES_UNAVAILABLE when the device is lost or has
 * to be reset; or NOT_SUPPORTED as nvml_compute_processes() does. */
int nvml_device_memory(const struct gpu_uuid *uuid, uint64_t *ret_free_bytes, uint64_t *ret_total_bytes);

#endif
