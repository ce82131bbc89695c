/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/device.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "base/thread.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"

/* cudaErrorStreamCaptureUnsupported … cudaErrorStreamCaptureWrongThread. The legacy default stream has no
 * capture of its own and answers with one of these while a stream that synchronises with it is captured. */
#define CAPTURE_ERROR_FIRST 900
#define CAPTURE_ERROR_LAST  908

/* Whether a driver error says that a capture forbids what was asked, and no more. */
static bool is_capture_error(int error) {
    return error >= CAPTURE_ERROR_FIRST && error <= CAPTURE_ERROR_LAST;
}

int devices_fail(const struct gpu *gpu, int error, const char *what) {
    return error_set(GPUPOOL_E_DRIVER, "%s: %s (%s)", what, gpu->error_name(error), gpu->error_text(error));
}

int devices_fail_on(const struct gpu *gpu, unsigned device, int error, const char *what) {
    devices_fail(gpu, error, what);
    return error_prefix(GPUPOOL_E_DRIVER, "device %u", device);
}

static int open_simulated(const struct devices *devices, const struct gpu **ret_gpu) {
    char path[sizeof(((struct sockaddr_un *)NULL)->sun_path) + sizeof GPU_SIM_PATH_SUFFIX];
    struct gpu_sim_options options = {0};

    if (devices->socket_path != NULL &&
        strlen(devices->socket_path) < sizeof path - strlen(GPU_SIM_PATH_SUFFIX)) {
        snprintf(path, sizeof path, "%s" GPU_SIM_PATH_SUFFIX, devices->socket_path);
        options.import_path = path;
    }
    return gpu_sim(&options, ret_gpu);
}

/* Fills the list. A machine where the driver cannot be used at all is an answer and is kept; a driver that
 * works and fails to describe its devices is asked again the next time. */
static int devices_list(struct devices *devices) {
    const struct gpu *gpu = NULL;
    int error = GPU_ERROR_NO_DEVICE;
    unsigned count = 0;

    if (!devices->forbidden && devices->kind == PROTO_GPU_CUDA)
        error = gpu_cuda(&gpu);
    else if (!devices->forbidden && devices->kind == PROTO_GPU_SIM)
        error = open_simulated(devices, &gpu);
    if (error == 0) {
        error = gpu->device_count(&count);
        if (error != 0)
            return devices_fail(gpu, error, "counting the devices");
        if (count > DEVICES_MAX)
            count = DEVICES_MAX;
        for (unsigned i = 0; i < count; i++) {
            error = gpu->device_describe(i, &devices->list[i]);
            if (error != 0)
                return devices_fail_on(gpu, i, error, "describing it");
        }
        devices->gpu = gpu;
        devices->count = count;
    }
    devices->error = error;
    return 0;
}

int devices_gpu(struct devices *devices, const struct gpu **ret_gpu) {
    if (!atomic_load_explicit(&devices->listed, memory_order_acquire)) {
        int r = 0;
        pthread_mutex_lock(&devices->lock);
        if (!atomic_load_explicit(&devices->listed, memory_order_relaxed)) {
            r = devices_list(devices);
            if (r == 0)
                atomic_store_explicit(&devices->listed, true, memory_order_release);
        }
        pthread_mutex_unlock(&devices->lock);
        if (r < 0)
            return r;
    }
    *ret_gpu = devices->gpu;
    return 0;
}

/* Why this process has no GPU. suffix: what follows from that. Returns NO_GPU. */
static int fail_without_gpu(const struct devices *devices, const char *suffix) {
    if (devices->kind == PROTO_GPU_NONE)
        return error_set(GPUPOOL_E_NO_GPU, "the daemon serves no GPU: %s", suffix);
    if (devices->forbidden)
        return error_set(GPUPOOL_E_NO_GPU,
                         "this client was opened with GPUPOOL_OPEN_NO_CUDA, or GPUPOOL_NO_CUDA=1 is in the "
                         "environment: %s",
                         suffix);
    if (devices->kind == PROTO_GPU_SIM && gpu_sim_missing() != NULL)
        return error_set(GPUPOOL_E_NO_GPU,
                         "the daemon's GPU is simulated, and the library for that cannot be loaded: %s",
                         gpu_sim_missing());
    return error_set(GPUPOOL_E_NO_GPU, "this process has no usable %s driver (error %d%s): %s",
                     devices->kind == PROTO_GPU_CUDA ? "CUDA" : "simulated", devices->error,
                     gpu_cuda_built() ? "" : "; the library was built without CUDA", suffix);
}

static int need_gpu(struct devices *devices, const struct gpu **ret_gpu, const char *suffix) {
    const struct gpu *gpu = NULL;
    int r = devices_gpu(devices, &gpu);

    if (r == 0 && gpu == NULL)
        r = fail_without_gpu(devices, suffix);
    if (r == 0)
        *ret_gpu = gpu;
    return r;
}

int devices_need_gpu(struct devices *devices, const struct gpu **ret_gpu) {
    return need_gpu(devices, ret_gpu, "host pools only");
}

int devices_need_gpu_for_host(struct devices *devices, const struct gpu **ret_gpu) {
    return need_gpu(devices, ret_gpu,
                    "the memory of this host pool (export = vmm) is for processes with CUDA; for others, the "
                    "daemon's configuration has to say export = memfd in the section [host]");
}

int devices_need_device(struct devices *devices, int ordinal, const struct gpu **ret_gpu) {
    const struct gpu *gpu = NULL; /* gcc 12 at -O3 does not see that a failure returned before it is used */
    int r = devices_need_gpu(devices, &gpu);
    if (r < 0)
        return r;
    if (ordinal < 0 || (unsigned)ordinal >= devices->count)
        return error_set(GPUPOOL_E_INVALID, "device %d: there is no such device in this process", ordinal);
    devices_note_use(devices, (unsigned)ordinal);
    *ret_gpu = gpu;
    return 0;
}

int devices_current(struct devices *devices, unsigned *ret_device) {
    const struct gpu *gpu = NULL;
    int r = devices_need_gpu(devices, &gpu);
    if (r < 0)
        return r;
    assert(gpu != NULL);
    int error = gpu->device_current(ret_device);
    return error == 0 ? 0 : devices_fail(gpu, error, "asking for the current device");
}

int devices_resolve(struct devices *devices, int *device) {
    unsigned current;
    int r = *device == -1 ? devices_current(devices, &current) : 0;
    if (r == 0 && *device == -1)
        *device = (int)current;
    return r;
}

int devices_find(struct devices *devices, const uint8_t uuid[PROTO_UUID_BYTES]) {
    const struct gpu *gpu;
    struct gpu_uuid wanted;

    if (devices_gpu(devices, &gpu) < 0 || gpu == NULL)
        return -1;
    memcpy(wanted.bytes, uuid, sizeof wanted.bytes);
    for (unsigned i = 0; i < devices->count; i++)
        if (gpu_uuid_equal(&devices->list[i].uuid, &wanted))
            return (int)i;
    return -1;
}

void devices_note_use(struct devices *devices, unsigned ordinal) {
    if (ordinal >= DEVICES_MAX)
        return;
    uint64_t bit = UINT64_C(1) << ordinal;
    if ((atomic_load_explicit(&devices->used, memory_order_relaxed) & bit) == 0)
        atomic_fetch_or(&devices->used, bit);
}

static int synchronize(const struct gpu *gpu, uint64_t used) {
    int first = 0;

    for (unsigned i = 0; used != 0; i++, used >>= 1) {
        if ((used & 1) == 0)
            continue;
        int error = gpu->device_synchronize(i);
        if (error != 0 && first == 0)
            first = error;
    }
    return first;
}

int devices_synchronize(struct devices *devices) {
    return synchronize(devices->gpu, atomic_load(&devices->used));
}

/* A wait in another thread. The last of the two that lets it go frees it. */
struct device_wait {
    pthread_mutex_t lock;
    pthread_cond_t done;
    const struct gpu *gpu;
    uint64_t used;
    bool is_done, is_left;
    int error;
};

static void wait_free(struct device_wait *wait) {
    pthread_cond_destroy(&wait->done);
    pthread_mutex_destroy(&wait->lock);
    free(wait);
}

static void *wait_main(void *argument) {
    struct device_wait *wait = argument;
    int error = synchronize(wait->gpu, wait->used);

    pthread_mutex_lock(&wait->lock);
    wait->error = error;
    wait->is_done = true;
    bool is_left = wait->is_left;
    pthread_cond_signal(&wait->done);
    pthread_mutex_unlock(&wait->lock);
    if (is_left)
        wait_free(wait);
    return NULL;
}

bool devices_synchronize_until(struct devices *devices, uint64_t end_ns) {
    uint64_t used = atomic_load(&devices->used);
    struct device_wait *wait = used != 0 ? calloc(1, sizeof *wait) : NULL;
    pthread_t thread;

    if (wait == NULL)
        return used == 0;
    pthread_mutex_init(&wait->lock, NULL);
    thread_condition_init(&wait->done);
    wait->gpu = devices->gpu;
    wait->used = used;
    if (thread_create(&thread, NULL, wait_main, wait) != 0) {
        wait_free(wait);
        return false;
    }
    pthread_detach(thread);
    pthread_mutex_lock(&wait->lock);
    while (!wait->is_done && thread_condition_wait(&wait->done, &wait->lock, end_ns) == 0)
        ;
    wait->is_left = true;
    bool is_done = wait->is_done, is_idle = is_done && wait->error == 0;
    pthread_mutex_unlock(&wait->lock);
    if (is_done)
        wait_free(wait);
    return is_idle;
}

int devices_wait(const struct gpu *gpu, unsigned device) {
    int error = gpu->device_synchronize(device);
    if (error == 0)
        return 0;
    if (is_capture_error(error))
        return error_set(
            GPUPOOL_E_CAPTURING,
            "a stream is being captured into a graph on device %u, all of which would have to be "
            "waited for",
            device);
    return devices_fail_on(gpu, device, error, "waiting for all work on it");
}

int devices_check_stream(const struct gpu *gpu, unsigned device, void *stream) {
    bool capturing = false;
    int error = gpu->stream_is_capturing(device, stream, &capturing);
    if (capturing || is_capture_error(error))
        return error_set(GPUPOOL_E_CAPTURING, "the stream is being captured into a graph on device %u",
                         device);
    return error == 0 ? 0 : devices_fail_on(gpu, device, error, "asking whether the stream is captured");
}

bool devices_stream_is_busy(const struct gpu *gpu, unsigned device, void *stream) {
    bool capturing = false;
    return gpu->stream_is_capturing(device, stream, &capturing) != 0 || capturing ||
           gpu->stream_query(device, stream) != 0;
}

int devices_check_device(const struct gpu *gpu, unsigned device) {
    void *own =
        GPUPOOL_PER_THREAD; /* whose captures are this thread's: no other thread begins one meanwhile */
    bool capturing = false;

    /* A failed device says so at each call. Asking a captured stream how far it is spoils the capture. */
    int error = gpu->stream_is_capturing(device, own, &capturing);
    if (error == 0 && !capturing)
        error = gpu->stream_query(device, own);
    if (error == 0 || error == GPU_ERROR_NOT_READY || is_capture_error(error))
        return 0;
    return devices_fail_on(gpu, device, error, "asking whether it works");
}

int devices_find_stream(struct devices *devices, const struct gpu *gpu, void *stream, unsigned *ret_device) {
    unsigned current;
    int r = devices_current(devices, &current);
    if (r < 0)
        return r;
    r = devices_check_stream(gpu, current, stream);
    /* CUDA takes a stream of any device under any current one. Where the driver is particular, the stream is
     * of another device; only ones in use are tried, because asking an idle one would create a context on it.
     */
    uint64_t used = atomic_load(&devices->used);
    for (unsigned i = 0; r == GPUPOOL_E_DRIVER && i < devices->count; i++)
        if (i != current && (used & (UINT64_C(1) << i)) != 0) {
            r = devices_check_stream(gpu, i, stream);
            if (r == 0)
                current = i;
        }
    if (r < 0)
        return r;
    devices_note_use(devices, current);
    *ret_device = current;
    return 0;
}
