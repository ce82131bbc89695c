/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_DEVICE_H
#define CLIENT_SESSION_DEVICE_H
/*
 * The GPUs as this process sees them. A client owns one list. It is empty until something needs a GPU, so
 * that a program that only uses host pools never initialises CUDA; then it is filled once and does not
 * change. The UUID names the same device in the daemon and here. Ordinals differ with
 * CUDA_VISIBLE_DEVICES.
 *
 * The list also notes which devices the client has used, because its farewell must wait for their work.
 *
 * The lock is a leaf: nothing else is locked while it is held. An empty list is zero but for it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu.h"
#include "proto/proto.h"

/* The bits of `used` and `served`; four times what a DGX has. */
#define DEVICES_MAX 64u

struct devices {
    pthread_mutex_t lock;
    enum proto_gpu_kind kind; /* what the daemon serves */
    bool forbidden;           /* GPUPOOL_OPEN_NO_CUDA */
    const char *socket_path;  /* borrowed: of the daemon; NULL: not known */
    atomic_bool listed;       /* below is complete */
    const struct gpu *gpu;    /* NULL: this process has no GPU to use */
    int error;                /* why not: the driver's error */
    unsigned count;
    struct gpu_device list[DEVICES_MAX];
    _Atomic uint64_t used;
    _Atomic uint64_t served; /* known to have a pool in the daemon: client_enter_served() */
};

/* The table to use in this process, or NULL where there is no usable driver: then host memory is mapped
 * without being registered. Returns 0 or DRIVER (the driver is there, and failed). */
int devices_gpu(struct devices *devices, const struct gpu **ret_gpu);

/* As devices_gpu, for what cannot be done without: NO_GPU where there is none. */
int devices_need_gpu(struct devices *devices, const struct gpu **ret_gpu);

/* As devices_need_gpu, for host memory that only the driver can map: the error says what an operator can do.
 */
int devices_need_gpu_for_host(struct devices *devices, const struct gpu **ret_gpu);

/* As devices_need_gpu, and checks that ordinal is a device of this process: INVALID. Notes the device as
 * used. */
int devices_need_device(struct devices *devices, int ordinal, const struct gpu **ret_gpu);

/* The device that the calling thread has current. 0, NO_GPU, DRIVER. */
int devices_current(struct devices *devices, unsigned *ret_device);

/* -1 becomes the device that the calling thread has current. */
int devices_resolve(struct devices *devices, int *device);

/* The ordinal of a device in this process; -1 where it is not visible or there is no GPU. */
int devices_find(struct devices *devices, const uint8_t uuid[PROTO_UUID_BYTES]);

/* Notes that the client gave work or memory to a device. */
void devices_note_use(struct devices *devices, unsigned ordinal);

/* Waits for the work of this process on every device that was noted. Returns 0 or the first driver error. */
int devices_synchronize(struct devices *devices);

/* As devices_synchronize(), until a time, in another thread: a GPU that never comes to an end leaves that
 * thread waiting. Returns whether all work is done. */
bool devices_synchronize_until(struct devices *devices, uint64_t end_ns);

/* Waits on the CPU for all work of this process on a device. 0; CAPTURING: a stream there is being captured
 * into a graph; DRIVER. */
int devices_wait(const struct gpu *gpu, unsigned device);

/* Finds out where a stream of an unsaid device lives: the calling thread's current device, else one that was
 * noted. Returns 0, DRIVER (no device knows the stream), or CAPTURING. */
int devices_find_stream(struct devices *devices, const struct gpu *gpu, void *stream, unsigned *ret_device);

/* Whether a stream has work that is not done; a stream that is being captured, or that the driver does not
 * know, counts as busy. Spoils no capture. */
bool devices_stream_is_busy(const struct gpu *gpu, unsigned device, void *stream);

/* Refuses a stream that is being captured into a graph: waiting for it would break the capture. 0, CAPTURING,
 * DRIVER. */
int devices_check_stream(const struct gpu *gpu, unsigned device, void *stream);

/* Asks whether a device works still, of whom something is waited for that a failed one never does. No capture
 * is disturbed. 0, DRIVER. */
int devices_check_device(const struct gpu *gpu, unsigned device);

/* Sets the error text "what: cudaErrorX (text)" and returns DRIVER; with "device N: " in front of it. */
int devices_fail(const struct gpu *gpu, int error, const char *what);
int devices_fail_on(const struct gpu *gpu, unsigned device, int error, const char *what);

#endif
