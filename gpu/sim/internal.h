/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPU_SIM_INTERNAL_H
#define GPU_SIM_INTERNAL_H
/*
 * The interfaces between the simulated GPU's objects. One simulated driver in a process, as with CUDA:
 *   sim.c        the table, options, devices and contexts, latencies
 *   fault.c      planned failures and hangs
 *   memory.c     ranges: allocations, imports, registered host memory
 *   export.c     the exporter: the thread that hands out memfds for handles, and the connections of importers
 *   import.c     the importer: opened handles and the links to their exporters
 *   vmm.c        memory apart from its addresses
 *   ghost.c      the child that goes on writing when its process is dead
 *   operation.c  operations of streams
 *   stream.c     streams
 *
 * Devices are named in two ways: the ordinal that callers pass (CUDA_VISIBLE_DEVICES applies), and the
 * physical index, which is the same in every process. Everything behind sim_device() and sim_context() is
 * physical.
 *
 * Locks, in the order in which they nest: that of vmm.c, import, peers, streams, a stream's own, ranges.
 * Faults and contexts have locks of their own, with nothing inside.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "base/own_mapping.h"
#include "gpu/sim/sim.h"

/* --- fault.c --- */

/* The table's calls, as faults and hangs count them: the name in the enumeration, and that of the member. */
#define SIM_CALLS(X)                                                                                         \
    X(DEVICE_COUNT, device_count)                                                                            \
    X(DEVICE_DESCRIBE, device_describe)                                                                      \
    X(DEVICE_MEMORY, device_memory)                                                                          \
    X(DEVICE_CHECK, device_check)                                                                            \
    X(CONTEXT_MAKE, context_make)                                                                            \
    X(DEVICE_SYNCHRONIZE, device_synchronize)                                                                \
    X(DEVICE_CURRENT, device_current)                                                                        \
    X(MEMORY_ALLOCATE, memory_allocate)                                                                      \
    X(MEMORY_FREE, memory_free)                                                                              \
    X(IPC_EXPORT, ipc_export)                                                                                \
    X(IPC_OPEN, ipc_open)                                                                                    \
    X(IPC_CLOSE, ipc_close)                                                                                  \
    X(VMM_GRANULE, vmm_granule)                                                                              \
    X(VMM_CREATE, vmm_create)                                                                                \
    X(VMM_RELEASE, vmm_release)                                                                              \
    X(VMM_EXPORT, vmm_export)                                                                                \
    X(VMM_IMPORT, vmm_import)                                                                                \
    X(ADDRESS_RESERVE, address_reserve)                                                                      \
    X(ADDRESS_FREE, address_free)                                                                            \
    X(VMM_MAP, vmm_map)                                                                                      \
    X(VMM_UNMAP, vmm_unmap)                                                                                  \
    X(VMM_SET_ACCESS, vmm_set_access)                                                                        \
    X(VMM_HOST_GRANULE, vmm_host_granule)                                                                    \
    X(VMM_HOST_CREATE, vmm_host_create)                                                                      \
    X(VMM_HOST_SET_ACCESS, vmm_host_set_access)                                                              \
    X(HOST_REGISTER, host_register)                                                                          \
    X(HOST_UNREGISTER, host_unregister)                                                                      \
    X(STREAM_CREATE, stream_create)                                                                          \
    X(STREAM_DESTROY, stream_destroy)                                                                        \
    X(STREAM_SYNCHRONIZE, stream_synchronize)                                                                \
    X(STREAM_QUERY, stream_query)                                                                            \
    X(STREAM_IS_CAPTURING, stream_is_capturing)                                                              \
    X(STREAM_WRITE64, stream_write64)                                                                        \
    X(STREAM_WAIT64, stream_wait64)                                                                          \
    X(MEMORY_SET, memory_set)                                                                                \
    X(MEMORY_COPY, memory_copy)                                                                              \
    X(PROCESSES, processes)                                                                                  \
    X(CALL_ANY, any)

#define SIM_CALL_NUMBER(name, member) SIM_##name,
enum sim_call {
    SIM_CALLS(SIM_CALL_NUMBER)
};

/* Reads the plans of the environment. Returns 0 or INVALID_VALUE. Once, before any sim_enter(). */
int sim_fault_init(void);

/* Every call of the table begins here: counts it, hangs it, and returns the error that is planned for it,
 * else 0; in a forked child, which CUDA does not support either, always cudaErrorInitializationError. */
int sim_enter(enum sim_call call);
/* As sim_enter(), for a call that names a device, by its ordinal: faults may be planned for one device, or
 * lose it. Checks the ordinal. */
int sim_enter_on(enum sim_call call, unsigned device, unsigned *ret_physical);
/* As sim_enter_on(), for a call that needs the device's context: see sim_context(). */
int sim_enter_context(enum sim_call call, unsigned device, unsigned *ret_physical);

/* Whether a plan has made this device lost. */
bool sim_is_lost(unsigned physical);
/* The device fails for this process: from now on its calls fail with the error. */
void sim_lose(unsigned physical, int error);

/* --- sim.c --- */

/* The options of the first gpu_sim_open(), and those of the environment (sim.h). */
struct sim_settings {
    unsigned devices;
    uint64_t device_bytes; /* memory of each */
    bool latency;
    uint64_t linger_ns; /* how long this process's ghost goes on, 0: no ghost */
    bool linger_keeps_fds;
    bool under_mps; /* exporters are to list this process as a client of MPS */
    enum sim_unclean {
        SIM_CLEAN,          /* new memory of VMM is zero */
        SIM_UNCLEAN_TOLD,   /* it is not, and the driver's settings say so */
        SIM_UNCLEAN_SILENT, /* it is not */
    } unclean;
    bool forked; /* this process is a forked child of the one that initialised the simulated driver */
};
extern struct sim_settings sim_settings;

/* Checks an ordinal. Returns 0 or INVALID_DEVICE. */
int sim_device(unsigned device, unsigned *ret_physical);
/* As sim_device(), and creates this process's context on the device where there is none yet. After
 * contexts_by_hand() that is INVALID_CONTEXT. */
int sim_context(unsigned device, unsigned *ret_physical);
bool sim_has_context(unsigned physical);
/* Lets the time pass that a call takes on a real GPU: so much, and so much a GiB. */
void sim_spend(uint64_t ns, uint64_t ns_per_gib, uint64_t size_bytes);

/* --- memory.c --- */

enum sim_range_kind {
    SIM_RANGE_DEVICE, /* memory that this process allocated */
    SIM_RANGE_IMPORT, /* memory of another process, opened here */
    SIM_RANGE_HOST,   /* registered host memory */
    SIM_RANGE_VMM,    /* a mapped handle: vmm.c maps and unmaps it */
};

#define SIM_SECRET_BYTES 16u

struct sim_link;
struct sim_memory;

/* A range of addresses that the driver knows. Ranges do not overlap. Registered until it is freed, closed or
 * unregistered; lives on while operations in streams refer to it, and only then is device memory unmapped. */
struct sim_range {
    enum sim_range_kind kind;
    uintptr_t start;
    uint64_t size_bytes;
    unsigned references; /* atomic: the registry's, and one of each user */
    unsigned physical;   /* device; not for host ranges */
    /* SIM_RANGE_DEVICE and SIM_RANGE_IMPORT */
    struct own_mapping *mapping;
    /* SIM_RANGE_DEVICE */
    int memfd;
    uint64_t id;
    uint8_t secret[SIM_SECRET_BYTES];
    /* SIM_RANGE_IMPORT: under the import lock */
    struct gpu_ipc_handle handle;
    struct sim_link *link;
    uint64_t opens;
    struct list import_link; /* in importer.imports */
    /* SIM_RANGE_IMPORT, and SIM_RANGE_VMM of imported memory */
    uint64_t ghost_key;
    /* SIM_RANGE_VMM: under its lock */
    struct sim_memory *memory;
    uint8_t access[GPU_SIM_DEVICES_MAX]; /* enum gpu_access, by physical device */
    uint8_t host_access;                 /* enum gpu_access; of host memory alone */
};

/* Finds the registered range that holds an address; the caller gets a reference. NULL: none. */
struct sim_range *sim_range_find(const void *address);
/* Finds the registered range of an allocation; the caller gets a reference. NULL: none. */
struct sim_range *sim_range_find_allocation(uint64_t id);
/* Whether any registered range has a byte in [start, start + size). */
bool sim_range_touches(const void *start, uint64_t size_bytes);
/* Makes a range with one reference, which is the caller's. NULL: no memory. */
struct sim_range *sim_range_new(enum sim_range_kind kind, unsigned physical, void *start,
                                uint64_t size_bytes);
/* Maps a memfd as a range with one reference, which is the caller's. The memfd stays the caller's. NULL: no
 * memory. */
struct sim_range *sim_range_map(enum sim_range_kind kind, unsigned physical, int memfd, uint64_t size_bytes);
/* Registers a range and gives it its id; takes the caller's first reference. Returns 0, or MEMORY_ALLOCATION
 * with the range still the caller's. */
int sim_range_register(struct sim_range *range);
/* Takes a range out of the registry, with the registry's reference. False: it was not registered any more. */
bool sim_range_unregister(struct sim_range *range);
struct sim_range *sim_range_unref(struct sim_range *range);
struct sim_range *sim_range_ref(struct sim_range *range);
static inline void sim_range_unrefp(struct sim_range **range) {
    sim_range_unref(*range);
}
/* Whether all pages of a range of addresses are mapped in this process. */
bool sim_is_mapped(const void *start, uint64_t size_bytes);

/* Makes a memfd whose size is sealed. Returns 0, MEMORY_ALLOCATION or UNKNOWN. */
int sim_memfd_make(const char *name, uint64_t size_bytes, int *ret_memfd);
/* Writes words that an earlier owner may have left. Large memory is written at both ends only. */
void sim_memory_soil(void *start, uint64_t size_bytes);
/* Counts memory against a device's size. Returns 0 or MEMORY_ALLOCATION. */
int sim_memory_charge(unsigned physical, uint64_t size_bytes);
void sim_memory_discharge(unsigned physical, uint64_t size_bytes);

int sim_device_memory(unsigned device, uint64_t *ret_free_bytes, uint64_t *ret_total_bytes);
int sim_memory_allocate(unsigned device, uint64_t size_bytes, void **ret_memory);
int sim_memory_free(unsigned device, void *memory);
int sim_host_register(void *memory, uint64_t size_bytes);
int sim_host_unregister(void *memory);

/* --- export.c --- */

#define SIM_NONCE_BYTES 16u
#define SIM_FROM_MPS    UINT64_C(1)
#define SIM_PRESENT     UINT64_C(2) /* no allocation is asked for: the process has memory by descriptor */
#define SIM_MAGIC       UINT64_C(0x3149504d49535047) /* "GPSIMPI1" in memory */

/* The 64 bytes of a handle. */
struct sim_handle {
    uint64_t magic;
    uint32_t pid; /* of the exporter, in its PID namespace: part of the socket's name */
    uint32_t physical;
    uint64_t id;
    uint64_t reserved;              /* 0; in what an importer sends, SIM_FROM_MPS, SIM_PRESENT */
    uint8_t nonce[SIM_NONCE_BYTES]; /* names the exporter: the other part of the socket's name */
    uint8_t secret[SIM_SECRET_BYTES];
};
_Static_assert(sizeof(struct sim_handle) == GPU_IPC_HANDLE_BYTES, "a handle has CUDA's size");

/* The exporter's answer to a handle, with the memfd when error is 0. */
struct sim_answer {
    uint32_t error;
    uint32_t reserved;
    uint64_t size_bytes;
};

struct sockaddr_un;
/* The exporter's socket. Returns the address's length. */
GPU_SIM_API unsigned sim_handle_address(const struct sim_handle *handle, struct sockaddr_un *address);
/* Whether this process made the handle. */
bool sim_handle_is_own(const struct sim_handle *handle);
/* This process as an exporter, which becomes one if need be: the handle without an allocation. Returns 0 or
 * UNKNOWN. */
int sim_exporter(struct sim_handle *ret_exporter);
/* Becomes an exporter, at a path besides. Where nothing can be bound there it is only found by its name. */
int sim_exporter_start_at(const char *path);
/* Another path to look for exporters at. */
void sim_import_path_add(const char *path);
#define SIM_NONCE_TEXT_SIZE (2 * SIM_NONCE_BYTES + 1)
void sim_nonce_format(const uint8_t nonce[SIM_NONCE_BYTES], char text[SIM_NONCE_TEXT_SIZE]);
/* Returns 0 or -EINVAL. */
int sim_nonce_parse(const char *text, uint8_t ret_nonce[SIM_NONCE_BYTES]);
/* Random bytes that cannot be guessed. Returns 0 or UNKNOWN. */
int sim_random(void *bytes, size_t size);

int sim_ipc_export(unsigned device, void *memory, struct gpu_ipc_handle *ret_handle);
int sim_processes(unsigned device, pid_t *pids, size_t capacity, size_t *ret_count);
/* Counts as one call of processes() for each device, so that what is planned for those happens here. */
int sim_all_processes(struct gpu_process *processes, size_t capacity, size_t *ret_count);
/* The stand-in for /dev/nvidia*: a memfd that each importer keeps open while it has a link to this
 * exporter. Its name is the exporter's, so that several simulations on one machine do not see each other's.
 */
#define SIM_DEVICE_FILE_SIZE 64u
void sim_device_file_name(const uint8_t nonce[SIM_NONCE_BYTES], char name[SIM_DEVICE_FILE_SIZE]);
void sim_device_files(char prefix[GPU_DEVICE_FILES_SIZE]);

/* --- import.c --- */

int sim_ipc_open(unsigned device, const struct gpu_ipc_handle *handle, void **ret_memory);
int sim_ipc_close(unsigned device, void *memory);

/* For memory by descriptor (vmm.c): the exporter lists this process until it leaves. Returns 0, or
 * MAP_BUFFER_OBJECT_FAILED where the exporter is dead. */
int sim_link_join(const struct sim_handle *exporter, struct sim_link **ret_link);
void sim_link_leave(struct sim_link *link);
/* The ghost is to write to memory that was mapped, until that is forgotten. Returns its key. */
uint64_t sim_import_note(int memfd, uint64_t size_bytes);
void sim_import_forget(uint64_t ghost_key);

/* --- vmm.c --- */

int sim_vmm_granule(unsigned device, uint64_t *ret_granule_bytes);
int sim_vmm_create(unsigned device, uint64_t size_bytes, uint64_t *ret_handle);
int sim_vmm_release(unsigned device, uint64_t handle);
int sim_vmm_export(unsigned device, uint64_t handle, int *ret_fd);
int sim_vmm_import(unsigned device, int fd, uint64_t *ret_handle);
int sim_address_reserve(unsigned device, uint64_t size_bytes, void **ret_address);
int sim_address_free(unsigned device, void *address, uint64_t size_bytes);
int sim_vmm_map(unsigned device, void *address, uint64_t size_bytes, uint64_t handle);
int sim_vmm_unmap(unsigned device, void *address, uint64_t size_bytes);
int sim_vmm_set_access(unsigned device, void *address, uint64_t size_bytes, enum gpu_access access);
int sim_vmm_host_granule(unsigned device, int node, uint64_t *ret_granule_bytes);
int sim_vmm_host_create(unsigned device, int node, uint64_t size_bytes, uint64_t *ret_handle);
int sim_vmm_host_set_access(unsigned device, void *address, uint64_t size_bytes, enum gpu_access access);

/* Whether any of the addresses is reserved, mapped or not. */
bool sim_is_reserved(const void *start, uint64_t size_bytes);
/* Whether a device may use all of a range of mapped addresses so. The answer holds until the end of the use,
 * in between sim_vmm_use_begin() and sim_vmm_use_end(). */
bool sim_vmm_reaches(unsigned physical, const void *start, uint64_t size_bytes, enum gpu_access access);
/* Whether host memory is mapped at an address, between these two. */
bool sim_vmm_is_host(const void *address);
void sim_vmm_use_begin(void);
void sim_vmm_use_end(void);
/* A stream met an address that it may not use: the device fails for this process. */
void sim_vmm_fault(unsigned physical);
bool sim_vmm_has_faulted(unsigned physical);

/* --- ghost.c: all under the import lock; they do nothing where no ghost is wanted --- */

/* Forks the ghost, at the first call. Before the first link: a ghost that keeps descriptors must not keep
 * one. */
void sim_ghost_start(void);
/* The process has opened its connection to an exporter (size 0), or mapped an allocation of a memfd. The key
 * is the process's name for it. */
void sim_ghost_keep(uint64_t key, int fd, uint64_t size_bytes);
/* The process has given it up. */
void sim_ghost_drop(uint64_t key);

/* --- stream.c --- */

/* Waits until all work is done that was given to the streams of a device before; SIM_ALL_DEVICES: of all. */
#define SIM_ALL_DEVICES GPU_SIM_DEVICES_MAX
void sim_streams_drain(unsigned physical);

int sim_device_synchronize(unsigned device);
int sim_stream_create(unsigned device, void **ret_stream);
int sim_stream_destroy(unsigned device, void *stream);
int sim_stream_synchronize(unsigned device, void *stream);
int sim_stream_query(unsigned device, void *stream);
int sim_stream_is_capturing(unsigned device, void *stream, bool *ret_capturing);
int sim_stream_write64(unsigned device, void *stream, uint64_t *word, uint64_t value);
int sim_stream_wait64(unsigned device, void *stream, uint64_t *word, uint64_t value);
int sim_memory_set(unsigned device, void *memory, uint8_t byte, uint64_t size_bytes, void *stream);
int sim_memory_copy(unsigned device, void *to, const void *from, uint64_t size_bytes, void *stream);

#endif
