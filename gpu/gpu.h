/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPU_GPU_H
#define GPU_GPU_H
/*
 * The driver calls that the project makes, as one table. cuda.c fills it from the CUDA runtime, sim/ from a
 * simulated GPU; daemon and client use nothing else, so that the same code runs on both.
 *
 * Errors: every call returns 0 or a positive driver error, numbered as CUDA's runtime numbers them
 * (cudaError_t) in both tables; error_name() gives the name. Outputs are untouched on failure. No call leaves
 * a driver error pending on the thread or changes the thread's current device or context.
 *
 * Devices are ordinals 0…device_count-1 as this process sees them (CUDA_VISIBLE_DEVICES applies); the UUID
 * names the same device in every process. Streams are cudaStream_t as void *: NULL is the default stream,
 * and the runtime's special values 0x1 (legacy) and 0x2 (per thread) are accepted.
 *
 * Contexts: a call that needs the device's context makes it, unless contexts_by_hand() was called. These
 * calls need none: all of devices but device_synchronize(), the vmm_granule(), vmm_create(), vmm_release()
 * and vmm_export() of either kind of memory, the lists of processes, and the errors.
 *
 * All calls are thread-safe. Those that may take long (milliseconds and more) are marked [slow] and never run
 * on a loop.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GPU_UUID_BYTES       16u
#define GPU_UUID_TEXT_SIZE   41u /* "GPU-" + 36 + NUL */
#define GPU_IPC_HANDLE_BYTES 64u /* CUDA_IPC_HANDLE_SIZE */

/* cudaMalloc packs small allocations next to each other and an IPC handle is given for the underlying
 * allocation, so what is exported is allocated in multiples of this (measured on H200: small cudaMallocs lie
 * 4 KiB apart). */
#define GPU_ALLOCATION_GRANULE (UINT64_C(2) << 20)

/* The errors that callers tell apart; the numbers are cudaError_t's. */
enum gpu_error {
    GPU_SUCCESS = 0,
    GPU_ERROR_INVALID_VALUE = 1,
    GPU_ERROR_MEMORY_ALLOCATION = 2,
    GPU_ERROR_INSUFFICIENT_DRIVER = 35,
    GPU_ERROR_DEVICES_UNAVAILABLE = 46, /* device_check()'s word for a device that NVML calls lost */
    GPU_ERROR_NO_DEVICE = 100,
    GPU_ERROR_INVALID_DEVICE = 101,
    /* CUDA's answer when a handle is opened by its own exporter; and that of a call which needs a context,
     * where there is none and contexts_by_hand() holds. */
    GPU_ERROR_INVALID_CONTEXT = 201,
    GPU_ERROR_MAP_BUFFER_OBJECT_FAILED = 205, /* what CUDA says of a handle that cannot be mapped */
    GPU_ERROR_INVALID_RESOURCE_HANDLE = 400,
    GPU_ERROR_NOT_READY = 600,
    GPU_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    GPU_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    GPU_ERROR_NOT_SUPPORTED = 801,
    GPU_ERROR_UNKNOWN = 999,
};

struct gpu_uuid {
    uint8_t bytes[GPU_UUID_BYTES];
};

struct gpu_ipc_handle {
    uint8_t bytes[GPU_IPC_HANDLE_BYTES];
};

struct gpu_device {
    struct gpu_uuid uuid;
    char name[64];
    uint64_t total_bytes;
    int numa_node; /* -1 when the system does not say */
};

/* One that the driver holds resources for, on one device. */
#define GPU_USED_UNKNOWN UINT64_MAX
struct gpu_process {
    pid_t pid;
    bool under_mps; /* listed as a client of MPS, whose work another process does */
    /* Of the device, its context included; GPU_USED_UNKNOWN: the driver does not tell. Memory that another
     * process made and this one has only mapped does not count, by a legacy handle or a descriptor: a client
     * with 3 GiB of a pool was listed with the 518 MiB of its context (H100, driver 580.159). */
    uint64_t used_bytes;
};
#define GPU_DEVICE_FILES_SIZE 80u

/* The access of a device to mapped memory. */
enum gpu_access {
    GPU_ACCESS_NONE = 0,
    GPU_ACCESS_READ = 1,
    GPU_ACCESS_READ_WRITE = 3,
};

struct gpu {
    const char *name; /* "cuda" or "sim" */

    int (*device_count)(unsigned *ret_count);
    int (*device_describe)(unsigned device, struct gpu_device *ret_device);
    /* [slow] The memory of the whole device, by NVML. NOT_SUPPORTED where NVML is missing or does not know
     * the device. */
    int (*device_memory)(unsigned device, uint64_t *ret_free_bytes, uint64_t *ret_total_bytes);
    /* [slow] Whether this process can go on with the device: NVML is asked for it, the driver for memory
     * which is given back, and the context, where there is one, for work that went wrong. Without NVML its
     * question falls away. MEMORY_ALLOCATION: no memory is left, and the device answers. */
    int (*device_check)(unsigned device);
    /* [slow] Makes this process's context on the device, unless there is one: 336 ms on H200, and some 500
     * MiB of the device's memory. It stays until the process ends. */
    int (*context_make)(unsigned device);
    bool (*has_context)(unsigned device);
    /* From now on context_make() alone makes contexts, in the whole process. */
    void (*contexts_by_hand)(void);
    /* [slow] Waits for all work that this process gave to the device. */
    int (*device_synchronize)(unsigned device);
    /* The device that the calling thread has current (cudaGetDevice), without creating a context. */
    int (*device_current)(unsigned *ret_device);

    /* [slow] size: a multiple of GPU_ALLOCATION_GRANULE. The contents are undefined. */
    int (*memory_allocate)(unsigned device, uint64_t size_bytes, void **ret_memory);
    /* [slow] Importers keep their mapping alive beyond this call (measured on H200). */
    int (*memory_free)(unsigned device, void *memory);
    /* 2–6 µs. An interior pointer gives its base's handle; an imported pointer is refused (INVALID_VALUE). */
    int (*ipc_export)(unsigned device, void *memory, struct gpu_ipc_handle *ret_handle);
    /* [slow] 64–105 µs. Refused in the exporting process (INVALID_CONTEXT) and for freed allocations. Opening
     * again what is open gives the same pointer and counts; each open wants its close. */
    int (*ipc_open)(unsigned device, const struct gpu_ipc_handle *handle, void **ret_memory);
    int (*ipc_close)(unsigned device, void *memory);

    /* Memory that is made apart from its addresses (VMM): a handle names memory, which lives until the handle
     * is released in each process that has it, no address maps it, and no descriptor of it is open. New
     * memory is zero. All of it can be done beside running kernels, and waits for none: nothing protects a
     * kernel that still uses memory which is unmapped.
     *
     * [slow] The granule of sizes and addresses. Asks by making and exporting memory of that size:
     * some drivers accept the one and fail at the other. NOT_SUPPORTED, or that error. */
    int (*vmm_granule)(unsigned device, uint64_t *ret_granule_bytes);
    /* [slow] 12–55 µs. Memory of the device, for RDMA too where the device can. New memory is zero: the
     * driver clears what is freed, unless its setting RMDisableScrubOnFree is on. NVIDIA's manuals do not
     * promise it. */
    int (*vmm_create)(unsigned device, uint64_t size_bytes, uint64_t *ret_handle);
    int (*vmm_release)(unsigned device, uint64_t handle);
    /* [slow] 0.05–0.9 ms. A descriptor (close-on-exec) for other processes, which outlives this one. An
     * imported handle cannot be exported again (INVALID_VALUE). */
    int (*vmm_export)(unsigned device, uint64_t handle, int *ret_fd);
    /* 30–90 µs. The descriptor stays the caller's. device: one that the memory is to be used on. */
    int (*vmm_import)(unsigned device, int fd, uint64_t *ret_handle);
    /* Addresses without memory. Each reservation is freed as it was made, with nothing mapped in it. */
    int (*address_reserve)(unsigned device, uint64_t size_bytes, void **ret_address);
    int (*address_free)(unsigned device, void *address, uint64_t size_bytes);
    /* 2–9 µs. Maps a handle, whole (else NOT_SUPPORTED), at reserved addresses that map nothing. No device
     * may use it before vmm_set_access(). One handle may be mapped at several addresses. */
    int (*vmm_map)(unsigned device, void *address, uint64_t size_bytes, uint64_t handle);
    /* 40–60 µs. Of one handle or several that lie side by side, whole. */
    int (*vmm_unmap)(unsigned device, void *address, uint64_t size_bytes);
    /* 50–120 µs, some 28 µs a handle for many. The same ranges. Read-only is a guard against mistakes: a
     * process may raise the access of its own mappings. device: any of this process that can reach the
     * memory; it needs no context. */
    int (*vmm_set_access)(unsigned device, void *address, uint64_t size_bytes, enum gpu_access access);

    /* Host memory that is made like that, of one NUMA node, pinned as long as it exists. It is released,
     * exported, imported, mapped and unmapped by the calls above. Devices get access by vmm_set_access(),
     * host code by vmm_host_set_access(). It is not registered, and host_register() refuses it. device: one
     * whose driver makes it.
     *
     * [slow] The granule, asked for by making and exporting memory as vmm_granule() does. NOT_SUPPORTED, or
     * the error of the node: drivers refuse nodes without CPUs. */
    int (*vmm_host_granule)(unsigned device, int node, uint64_t *ret_granule_bytes);
    /* [slow] 60–92 ms for 256 MiB. node: one of the machine's; 0 where the kernel knows no nodes. New memory
     * is zero, unless the driver's setting InitializeSystemMemoryAllocations is 0 (release notes of driver
     * 260.19.36). */
    int (*vmm_host_create)(unsigned device, int node, uint64_t size_bytes, uint64_t *ret_handle);
    /* [slow] 9 ms for 256 MiB, mapping and a device's access included. Refused for memory of a device
     * (INVALID_VALUE). */
    int (*vmm_host_set_access)(unsigned device, void *address, uint64_t size_bytes, enum gpu_access access);

    /* [slow] Pins mapped host memory for all devices (portable, mapped). Page-aligned. */
    int (*host_register)(void *memory, uint64_t size_bytes);
    int (*host_unregister)(void *memory);

    int (*stream_create)(unsigned device, void **ret_stream); /* non-blocking towards the default stream */
    int (*stream_destroy)(unsigned device, void *stream);
    int (*stream_synchronize)(unsigned device, void *stream); /* [slow] */
    int (*stream_query)(unsigned device, void *stream);       /* 0 idle, NOT_READY busy */
    int (*stream_is_capturing)(unsigned device, void *stream, bool *ret_capturing);
    /* In stream order: writes a 64-bit word in registered host memory, or in host memory of
     * vmm_host_create(); holds the stream until the word (unsigned, as a cyclic difference) is ≥ value. */
    int (*stream_write64)(unsigned device, void *stream, uint64_t *word, uint64_t value);
    int (*stream_wait64)(unsigned device, void *stream, uint64_t *word, uint64_t value);
    int (*memory_set)(unsigned device, void *memory, uint8_t byte, uint64_t size_bytes, void *stream);
    /* Between any two of: device memory, registered host memory, pageable host memory. */
    int (*memory_copy)(unsigned device, void *to, const void *from, uint64_t size_bytes, void *stream);

    /* The processes that the driver holds resources for on this device (NVML's compute processes), as pids of
     * the caller's PID namespace. Writes at most capacity of them, *ret_count gets how many there are.
     * NOT_SUPPORTED without NVML. Tens to hundreds of µs. */
    int (*processes)(unsigned device, pid_t *pids, size_t capacity, size_t *ret_count);

    /* The processes that the driver holds resources for on any GPU of the machine, whether this process uses
     * it or not. They include clients of MPS. A process may be listed several times. NOT_SUPPORTED unless all
     * GPUs can be asked; a lost GPU counts as one without processes, for it does no work any more. */
    int (*all_processes)(struct gpu_process *processes, size_t capacity, size_t *ret_count);

    /* How the names of the files begin through which a process has its GPU work done, as links in
     * /proc/PID/fd show them. Work goes on at most as long as somebody has such a file open (measured on
     * H200, for a forked child). */
    void (*device_files)(char prefix[GPU_DEVICE_FILES_SIZE]);

    /* Whether the driver is set up to clear memory before another process gets it: device memory, or host
     * memory that it makes. NULL, or the setting that keeps it from clearing, for people. */
    const char *(*unclean_setting)(bool is_host);

    const char *(*error_name)(int error); /* "cudaErrorMemoryAllocation"; never NULL */
    const char *(*error_text)(int error); /* "out of memory"; never NULL */
};

/* The CUDA table. Returns 0 and the table when a usable driver with at least one device is there;
 * INSUFFICIENT_DRIVER where there is no driver or the build had no CUDA toolkit; NO_DEVICE where the driver
 * sees no GPU; otherwise what the driver said. Creates no context. */
int gpu_cuda(const struct gpu **ret_gpu);

/* Whether this build contains the CUDA table at all, and the toolkit's version as text ("13.0", or
 * "none"). */
bool gpu_cuda_built(void);
const char *gpu_cuda_toolkit(void);

struct gpu_sim_options {
    unsigned devices;      /* 1…GPU_SIM_DEVICES_MAX; 0: GPU_SIM_DEVICES_MAX, what a client of a simulated GPU wants */
    uint64_t device_bytes; /* memory of each; 0: 8 GiB */
    /* Paths for processes in other network namespaces, which the names of abstract sockets do not reach.
     * NULL: none. Where this process serves what it exports: the caller unlinks it. Where this process looks
     * for an exporter; each call adds one. */
    const char *export_path, *import_path;
};
#define GPU_SIM_DEVICES_MAX 16u
/* The path of a daemon's data socket with this behind it is the daemon's export_path. */
#define GPU_SIM_PATH_SUFFIX ".sim"

/* The simulated table (one simulated driver in a process, as with CUDA), from libgpupool-sim.so.0, which the
 * first call loads. That call also fixes the options; later ones ignore theirs but for import_path. Its
 * behaviour can be planned from the environment: see sim/sim.h. Returns 0 or a driver error;
 * INSUFFICIENT_DRIVER where the library cannot be loaded. */
int gpu_sim(const struct gpu_sim_options *options, const struct gpu **ret_gpu);

/* Why the library of the simulated GPU could not be loaded. NULL: it was, or gpu_sim() was not called. */
const char *gpu_sim_missing(void);

/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", as nvidia-smi writes it; text holds GPU_UUID_TEXT_SIZE
 * bytes. */
void gpu_uuid_format(const struct gpu_uuid *uuid, char text[GPU_UUID_TEXT_SIZE]);
/* Accepts that form. Returns 0 or -EINVAL. */
int gpu_uuid_parse(const char *text, struct gpu_uuid *ret_uuid);
bool gpu_uuid_equal(const struct gpu_uuid *a, const struct gpu_uuid *b);

#endif
