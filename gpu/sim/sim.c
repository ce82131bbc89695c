/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated GPU: the table, its devices and what calls cost. One simulated driver in a process; the first
 * gpu_sim_open() fixes its options and reads the environment (sim.h). A device's context is made by the first
 * call that needs one, takes as long as a real one, and is never given up.
 */
#include "gpu/sim/sim.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/units.h"
#include "gpu/sim/internal.h"

#define DEVICE_BYTES_DEFAULT (8 * GIB)
#define CONTEXT_NS           (336 * NS_PER_MS) /* measured on H200, driver 580, CUDA 13.0 */
/* Shorter times than this are spent by watching the clock: a sleep would take some 50 us more than asked. */
#define SPIN_NS_MAX (20 * NS_PER_US)

struct sim_settings sim_settings;

static struct {
    pthread_mutex_t lock; /* initialisation */
    bool ready;
    unsigned visible[GPU_SIM_DEVICES_MAX]; /* ordinal → physical */
    unsigned visible_count;
    bool contexts_by_hand; /* atomic */
    struct {
        pthread_mutex_t lock; /* held while the context is being made */
        bool created;         /* atomic */
    } contexts[GPU_SIM_DEVICES_MAX];
} sim = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread unsigned current_device;

void sim_spend(uint64_t ns, uint64_t ns_per_gib, uint64_t size_bytes) {
    struct timespec until;
    uint64_t end_ns;

    if (!sim_settings.latency)
        return;
    ns += (uint64_t)((double)ns_per_gib * ((double)size_bytes / (double)GIB));
    end_ns = clock_now_ns() + ns;
    if (ns <= SPIN_NS_MAX) {
        while (clock_now_ns() < end_ns)
            continue;
        return;
    }
    until.tv_sec = (time_t)(end_ns / NS_PER_S);
    until.tv_nsec = (long)(end_ns % NS_PER_S);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

int sim_device(unsigned device, unsigned *ret_physical) {
    if (device >= sim.visible_count)
        return GPU_ERROR_INVALID_DEVICE;
    *ret_physical = sim.visible[device];
    return 0;
}

static void context_create(unsigned physical) {
    LOCKED(&sim.contexts[physical].lock);
    if (sim_has_context(physical))
        return;
    sim_spend(CONTEXT_NS, 0, 0);
    __atomic_store_n(&sim.contexts[physical].created, true, __ATOMIC_RELEASE);
}

int sim_context(unsigned device, unsigned *ret_physical) {
    unsigned physical;
    int r = sim_device(device, &physical);

    if (r != 0)
        return r;
    if (!sim_has_context(physical)) {
        if (__atomic_load_n(&sim.contexts_by_hand, __ATOMIC_ACQUIRE))
            return GPU_ERROR_INVALID_CONTEXT;
        context_create(physical);
    }
    *ret_physical = physical;
    return 0;
}

bool sim_has_context(unsigned physical) {
    return __atomic_load_n(&sim.contexts[physical].created, __ATOMIC_ACQUIRE);
}

/* --- devices --- */

/* "GPU-51310000-0000-4000-8000-0000000000NN": the same in every process, and like no real GPU's. */
static struct gpu_uuid device_uuid(unsigned physical) {
    return (struct gpu_uuid){.bytes = {0x51, 0x31, [6] = 0x40, [8] = 0x80, [15] = (uint8_t)physical}};
}

static int sim_device_count(unsigned *ret_count) {
    int r = sim_enter(SIM_DEVICE_COUNT);

    if (r != 0)
        return r;
    *ret_count = sim.visible_count;
    return 0;
}

static int sim_device_describe(unsigned device, struct gpu_device *ret_device) {
    struct gpu_device description = {.numa_node = -1};
    unsigned physical;
    int r = sim_enter_on(SIM_DEVICE_DESCRIBE, device, &physical);

    if (r != 0)
        return r;
    description.uuid = device_uuid(physical);
    snprintf(description.name, sizeof(description.name), "Simulated GPU %u", physical);
    description.total_bytes = sim_settings.device_bytes;
    *ret_device = description;
    return 0;
}

static int sim_context_make(unsigned device) {
    unsigned physical;
    int r = sim_enter_on(SIM_CONTEXT_MAKE, device, &physical);

    if (r == 0 && !sim_has_context(physical))
        context_create(physical);
    return r;
}

static bool sim_has_context_on(unsigned device) {
    unsigned physical;
    return sim_device(device, &physical) == 0 && sim_has_context(physical);
}

static void sim_contexts_by_hand(void) {
    __atomic_store_n(&sim.contexts_by_hand, true, __ATOMIC_RELEASE);
}

/* With a context, work of this process that went wrong has lost the device, and the call fails as all do. */
static int sim_device_check(unsigned device) {
    unsigned physical;
    return sim_enter_on(SIM_DEVICE_CHECK, device, &physical);
}

static const char *sim_unclean_setting(bool is_host) {
    (void)is_host;
    return sim_settings.unclean == SIM_UNCLEAN_TOLD ? "GPUPOOL_SIM_UNCLEAN" : NULL;
}

static int sim_device_current(unsigned *ret_device) {
    int r = sim_enter(SIM_DEVICE_CURRENT);

    if (r != 0)
        return r;
    *ret_device = current_device;
    return 0;
}

int gpu_sim_set_device(unsigned device) {
    if (device >= sim.visible_count)
        return GPU_ERROR_INVALID_DEVICE;
    current_device = device;
    return 0;
}

/* --- errors, as the CUDA runtime (13.0) names and describes them --- */

static const struct error {
    int number;
    const char *name, *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {205, "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {712, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {906, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {999, "cudaErrorUnknown", "unknown error"},
};

static const struct error *error_find(int number) {
    static const struct error unknown = {.name = "unrecognized error code",
                                         .text = "unrecognized error code"};

    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].number == number)
            return &errors[i];
    return &unknown;
}

static const char *sim_error_name(int error) {
    return error_find(error)->name;
}

static const char *sim_error_text(int error) {
    return error_find(error)->text;
}

static const struct gpu table = {
    .name = "sim",
    .device_count = sim_device_count,
    .device_describe = sim_device_describe,
    .device_memory = sim_device_memory,
    .device_check = sim_device_check,
    .context_make = sim_context_make,
    .has_context = sim_has_context_on,
    .contexts_by_hand = sim_contexts_by_hand,
    .device_synchronize = sim_device_synchronize,
    .device_current = sim_device_current,
    .memory_allocate = sim_memory_allocate,
    .memory_free = sim_memory_free,
    .ipc_export = sim_ipc_export,
    .ipc_open = sim_ipc_open,
    .ipc_close = sim_ipc_close,
    .vmm_granule = sim_vmm_granule,
    .vmm_create = sim_vmm_create,
    .vmm_release = sim_vmm_release,
    .vmm_export = sim_vmm_export,
    .vmm_import = sim_vmm_import,
    .address_reserve = sim_address_reserve,
    .address_free = sim_address_free,
    .vmm_map = sim_vmm_map,
    .vmm_unmap = sim_vmm_unmap,
    .vmm_set_access = sim_vmm_set_access,
    .vmm_host_granule = sim_vmm_host_granule,
    .vmm_host_create = sim_vmm_host_create,
    .vmm_host_set_access = sim_vmm_host_set_access,
    .host_register = sim_host_register,
    .host_unregister = sim_host_unregister,
    .stream_create = sim_stream_create,
    .stream_destroy = sim_stream_destroy,
    .stream_synchronize = sim_stream_synchronize,
    .stream_query = sim_stream_query,
    .stream_is_capturing = sim_stream_is_capturing,
    .stream_write64 = sim_stream_write64,
    .stream_wait64 = sim_stream_wait64,
    .memory_set = sim_memory_set,
    .memory_copy = sim_memory_copy,
    .processes = sim_processes,
    .all_processes = sim_all_processes,
    .device_files = sim_device_files,
    .unclean_setting = sim_unclean_setting,
    .error_name = sim_error_name,
    .error_text = sim_error_text,
};

/* --- initialisation --- */

/* The physical device that one entry of CUDA_VISIBLE_DEVICES names, or -1. */
static int visible_parse(const char *entry, size_t length) {
    int found = -1;

    if (length == 0 || length >= GPU_UUID_TEXT_SIZE)
        return -1;
    if (length > 4 && strncmp(entry, "GPU-", 4) == 0) {
        for (unsigned i = 0; i < sim_settings.devices; i++) {
            struct gpu_uuid uuid = device_uuid(i);
            char text[GPU_UUID_TEXT_SIZE];

            gpu_uuid_format(&uuid, text);
            if (strncasecmp(text, entry, length) != 0)
                continue;
            if (found >= 0)
                return -1; /* ambiguous */
            found = (int)i;
        }
        return found;
    }
    found = 0;
    for (size_t i = 0; i < length; i++) {
        if (entry[i] < '0' || entry[i] > '9' || found >= (int)GPU_SIM_DEVICES_MAX)
            return -1;
        found = 10 * found + (entry[i] - '0');
    }
    return found < (int)sim_settings.devices ? found : -1;
}

static void visible_init(const char *text) {
    sim.visible_count = 0;
    if (text == NULL) {
        for (unsigned i = 0; i < sim_settings.devices; i++)
            sim.visible[sim.visible_count++] = i;
        return;
    }
    for (;;) {
        const char *comma;
        size_t length;
        int physical;

        text += strspn(text, " \t");
        comma = strchrnul(text, ',');
        for (length = (size_t)(comma - text); length > 0 && strchr(" \t", text[length - 1]) != NULL;)
            length--;
        physical = visible_parse(text, length);
        if (physical < 0)
            return;
        for (unsigned i = 0; i < sim.visible_count; i++)
            if (sim.visible[i] == (unsigned)physical)
                return;
        sim.visible[sim.visible_count++] = (unsigned)physical;
        if (*comma == '\0')
            return;
        text = comma + 1;
    }
}

static void forked_child(void) {
    sim_settings.forked = true;
}

static int sim_init(const struct gpu_sim_options *options) {
    const char *latency = secure_getenv("GPUPOOL_SIM_LATENCY");
    const char *linger = secure_getenv("GPUPOOL_SIM_LINGER_MS");
    const char *keep = secure_getenv("GPUPOOL_SIM_LINGER_KEEP_FDS");
    const char *mps = secure_getenv("GPUPOOL_SIM_MPS");
    const char *unclean = secure_getenv("GPUPOOL_SIM_UNCLEAN");
    int r;

    if (options != NULL && options->devices > GPU_SIM_DEVICES_MAX)
        return GPU_ERROR_INVALID_VALUE;
    sim_settings.devices = options != NULL && options->devices > 0 ? options->devices : GPU_SIM_DEVICES_MAX;
    sim_settings.device_bytes =
        options != NULL && options->device_bytes > 0 ? options->device_bytes : DEVICE_BYTES_DEFAULT;
    sim_settings.latency = latency == NULL || strcmp(latency, "0") != 0;
    sim_settings.linger_keeps_fds = keep != NULL && strcmp(keep, "1") == 0;
    sim_settings.under_mps = mps != NULL && strcmp(mps, "1") == 0;
    if (unclean == NULL || *unclean == '\0')
        sim_settings.unclean = SIM_CLEAN;
    else if (strcmp(unclean, "told") == 0)
        sim_settings.unclean = SIM_UNCLEAN_TOLD;
    else if (strcmp(unclean, "silent") == 0)
        sim_settings.unclean = SIM_UNCLEAN_SILENT;
    else
        return GPU_ERROR_INVALID_VALUE;
    sim_settings.linger_ns = 0;
    if (linger != NULL && *linger != '\0') {
        uint64_t ms;
        if (units_parse_number(linger, INT32_MAX, &ms) < 0)
            return GPU_ERROR_INVALID_VALUE;
        sim_settings.linger_ns = ms * NS_PER_MS;
    }
    r = sim_fault_init();
    if (r != 0)
        return r;
    visible_init(secure_getenv("CUDA_VISIBLE_DEVICES"));
    if (sim.visible_count == 0)
        return GPU_ERROR_NO_DEVICE;
    for (unsigned i = 0; i < GPU_SIM_DEVICES_MAX; i++)
        pthread_mutex_init(&sim.contexts[i].lock, NULL);
    if (pthread_atfork(NULL, NULL, forked_child) != 0)
        return GPU_ERROR_UNKNOWN;
    return 0;
}

int gpu_sim_open(const struct gpu_sim_options *options, const struct gpu **ret_gpu) {
    int r = 0;

    if (sim_settings.forked)
        return 3; /* cudaErrorInitializationError, as CUDA says in a forked child */
    LOCKED(&sim.lock);
    if (!sim.ready)
        r = sim_init(options);
    if (r == 0 && !sim.ready && options != NULL && options->export_path != NULL)
        r = sim_exporter_start_at(options->export_path);
    if (r != 0)
        return r;
    if (options != NULL && options->import_path != NULL)
        sim_import_path_add(options->import_path);
    sim.ready = true;
    *ret_gpu = &table;
    return 0;
}
