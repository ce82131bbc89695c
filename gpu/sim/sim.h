/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPU_SIM_H
#define GPU_SIM_H
/*
 * The simulated GPU, beyond the table of gpu.h: what can be planned from outside, for tests and
 * demonstrations.
 *
 * Device memory is a sealed memfd mapped in the process; memory that is made apart from its addresses is one
 * too, and what is exported of it is a descriptor of the memfd; streams are threads; an IPC handle is a
 * bearer token that the exporting process exchanges for the memfd over an abstract Unix socket, with a
 * process of any uid, as a legacy CUDA IPC handle can be opened by any. Processes of other network namespaces
 * find the exporter at the paths of struct gpu_sim_options. A process sees others by its own
 * exports only: processes() lists this process and those that hold mappings of its memory, or handles
 * imported from it, until they gave up the last one or are dead.
 *
 * Environment, read by the first gpu_sim() of a process (text that cannot be parsed makes it fail with
 * INVALID_VALUE):
 *
 * CUDA_VISIBLE_DEVICES: ordinals or UUIDs (or unambiguous beginnings of them), as for CUDA: renumbers the
 * devices; the first entry that names none ends the list.
 *
 * GPUPOOL_SIM_LATENCY=0: calls take no longer than the simulation needs. Otherwise they take what they took
 * on an H200 (driver 580, CUDA 13.0): creating a context 336 ms, allocating 25 us and 44 us/GiB, freeing 22
 * us and 203 us/GiB, exporting 5 us, opening a handle 85 us, closing it 35 us, registering host memory 0.15
 * ms and 31 ms/GiB, unregistering 50 us and 11.5 ms/GiB; making a handle 25 us, exporting it 100 us,
 * importing it 40 us, releasing it 49 us, mapping it 3 us, unmapping 25 us and 17 us a handle, setting access
 * 25 us and 28 us a handle; of host memory making a handle 240 ms/GiB, giving host code access 35 ms/GiB,
 * unmapping 25 ms/GiB.
 *
 * GPUPOOL_SIM_FAIL="call[@device]:n:error[,...]": the n-th call (from 1, counted in this process, on that
 * physical device if one is named) of that name in the table fails with that error (a number) and does
 * nothing else. "n+": it and all later ones. "n!": the device that it names is lost: from then on every call
 * on it fails with that error, but what NVML would answer. "~n": one call in n, at random (GPUPOOL_SIM_SEED,
 * a number, says which). The call "any" counts all calls.
 * "memory_allocate:3:2,ipc_open:1+:201,device_memory@1:4!:214".
 *
 * GPUPOOL_SIM_HANG="call[@device]:n:milliseconds[,...]": the n-th call sleeps so long before it does its
 * work; "n+" and "~n" as above. With an absolute path (without a comma) in place of the milliseconds it
 * hangs as long as there is a file of that name.
 *
 * GPUPOOL_SIM_LINGER_MS=N: how a dead client's GPU work looks (a kernel in flight outlives its process by
 * milliseconds, or by seconds where a forked child holds the device open). With the first import the process
 * forks a ghost. When the process dies with imported memory still mapped, the ghost goes on writing an
 * incrementing 64-bit counter to the first word of each such allocation for N ms; so long the exporter's
 * processes() lists the dead pid. The ghost is an ordinary child of the process: a wait for "any child" sees
 * it.
 *
 * GPUPOOL_SIM_LINGER_KEEP_FDS=1: the ghost keeps all descriptors that the process had open at its first
 * import, as a forked worker does. Otherwise it closes them.
 *
 * GPUPOOL_SIM_UNCLEAN=told|silent: new memory that is made apart from its addresses holds what an earlier
 * owner left. "told": the driver's settings say so.
 *
 * GPUPOOL_SIM_MPS=1: exporters list this process as a client of MPS. Nothing else about it is like one.
 *
 * Where it differs from CUDA: the list of processes is the exporter's, and ends with it; streams are captured only by gpu_sim_capture_begin(), and what is recorded is
 * never replayed; the legacy default stream can be captured; a thread that ends waits for its own default
 * stream; stream waits and writes, copies and sets take the CPU's time; copies with unregistered host memory
 * on one side are synchronous; host code can read and write device memory through its pointer; memory that
 * importers still have mapped, or a descriptor names, does not count against the device's size once its
 * exporter has freed it; a handle is unmapped between two parts of 2 MiB of an operation, never within one; a
 * peer GPU's memory is listed for the GPU that it lies on; host memory that is made apart from its addresses
 * comes from any node, host code can use it where any device can, and a process that has it is listed for the
 * GPU in whose context it was made.
 */
#include <stdbool.h>

#include "gpu/gpu.h"

#define GPU_SIM_API __attribute__((visibility("default")))

/* gpu_sim() calls this once it has loaded the library. */
GPU_SIM_API int gpu_sim_open(const struct gpu_sim_options *options, const struct gpu **ret_gpu);

/* Plans one failure in this process, in place of the one planned before: from now on the nth call (from 1) of
 * that name in the table, or of any table call for "any", fails with error and does nothing else. nth 0:
 * none. Returns 0, or -EINVAL when the table has no such call. Thread-safe. */
GPU_SIM_API int gpu_sim_fail(const char *call, unsigned nth, int error);

/* Whether the failure planned last has happened: an n-th failure loop ends with the round in which it did
 * not. */
GPU_SIM_API bool gpu_sim_failed(void);

/* Sets the calling thread's current device, as cudaSetDevice() would: what device_current() returns. Threads
 * start with device 0. Returns 0 or INVALID_DEVICE. */
GPU_SIM_API int gpu_sim_set_device(unsigned device);

/* Makes a stream that is ordered with the legacy default stream, as cudaStreamCreate() would; the table's are
 * cudaStreamNonBlocking. Destroyed as those are. Returns 0 or a driver error. */
GPU_SIM_API int gpu_sim_stream_create_blocking(unsigned device, void **ret_stream);

/* Begins to capture a stream, as cudaStreamBeginCapture() would: what is enqueued on it from now on is
 * counted and not done; waiting for it, for its device, or asking whether it is busy fails, and the capture
 * comes to nothing. Returns 0 or a driver error. */
GPU_SIM_API int gpu_sim_capture_begin(unsigned device, void *stream);

/* Ends the capture. *ret_operations: how many operations a graph would have got. 0, or 901 for one that came
 * to nothing, cudaErrorStreamCaptureInvalidated. */
GPU_SIM_API int gpu_sim_capture_end(unsigned device, void *stream, unsigned *ret_operations);

#endif
