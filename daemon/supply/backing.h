/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SUPPLY_BACKING_H
#define DAEMON_SUPPLY_BACKING_H
/*
 * A segment's backing: the allocation itself, made and freed on a worker's thread, zeroed and exported. A
 * device backing is a cudaMalloc with its IPC handle, or memory of cuMemCreate() with a descriptor. A host
 * backing is a sealed memfd whose pages are there and stay there, or memory of cuMemCreate() as well.
 */
#include <stdint.h>

#include "daemon/config/config.h"
#include "gpu/gpu.h"
#include "proto/proto.h"

struct worker;

enum backing_pages {
    BACKING_PAGES_NONE,        /* the driver's: device memory, and host memory that it makes */
    BACKING_PAGES_HUGETLB,     /* 2 MiB pages from the system's reserve */
    BACKING_PAGES_TRANSPARENT, /* 2 MiB pages that the kernel put together, half of the memory or more */
    BACKING_PAGES_PLAIN,
};

struct backing {
    enum proto_segment_kind kind;
    uint64_t size_bytes;
    /* device, and VMM */
    const struct gpu *gpu;
    unsigned device; /* whose driver is called */
    void *memory;    /* of cudaMalloc */
    struct gpu_ipc_handle handle;
    bool has_vmm_handle;
    uint64_t vmm_handle;
    /* host, and VMM */
    int fd;
    /* host */
    void *mapping; /* keeps the pages locked; never read, and written only when the pages are made */
    enum backing_pages pages;
    bool locked;
    bool is_inherited; /* of a daemon before: its pages are to be locked */
    bool lost; /* the device is: that it cannot be freed is no news */
};

#define BACKING_ERROR_SIZE 256u

struct backing_order;

/* The row of a kind: all that depends on it in the daemon. */
struct backing_kind {
    /* The pools that have such segments, and their setting "export". */
    enum proto_pool_kind pool_kind;
    enum config_export export_as;
    const char *export_name; /* how the segments reach clients, as the configuration writes it */
    /* The setting to use if the driver does not make such memory. NULL: there is no other. */
    const char *export_else;
    const char *end_call; /* that frees the memory, for people */
    /* The driver makes the memory. A process needs the driver to use it, and may have work on a GPU. */
    bool needs_driver;
    bool takes_descriptor; /* each segment takes a descriptor of the daemon */
    bool is_for_driver;    /* that descriptor is for the driver: for sessions that know such descriptors */
    /* The part of the machine that always sets new memory to zero. NULL: the driver, or the daemon if it is
     * told to. */
    const char *zeroed_by;
    /* [slow] Asks the driver whether it makes such memory, and for its granule. Returns 0 or the driver's
     * error. NULL: a device that works does. */
    int (*granule)(const struct gpu *gpu, unsigned device, int node, uint64_t *ret_granule_bytes);
    /* Makes the memory of an empty backing. On failure free() is called with what there is. */
    int (*make)(const struct backing_order *order, struct worker *worker, struct backing *backing,
                char error[BACKING_ERROR_SIZE]);
    /* Takes what is behind the descriptor of a daemon before. NULL: nothing. Returns 0 or a negative errno. */
    int (*inherit)(struct backing *backing);
    /* The handle of a description; returns the descriptor that goes along, or -1. */
    int (*describe)(const struct backing *backing, struct proto_segment *description);
    void (*retire)(struct backing *backing); /* before free(). NULL: there is nothing to do */
    void (*free)(struct backing *backing);   /* frees all but the descriptor */
};

const struct backing_kind *backing_kind(enum proto_segment_kind kind);

/* Whether a number is that of a kind. */
bool backing_kind_is_known(unsigned kind);

/* The kind of the segments of a pool with a setting "export". */
enum proto_segment_kind backing_kind_of_pool(enum proto_pool_kind pool_kind, enum config_export export_as);

/* A backing that is to be made. */
struct backing_order {
    enum proto_segment_kind kind;
    uint64_t size_bytes;
    /* device, and VMM */
    const struct gpu *gpu;
    unsigned device;
    bool zeroes; /* VMM: the daemon sets new memory to zero, in a context; else the driver cleared it */
    /* host */
    int node; /* where pages should come from */
    enum config_huge_pages huge_pages;
    bool is_simulated; /* the driver's memory is the daemon's own */
};

/* [slow], on a worker's thread; worker: told about calls and progress, may be NULL. Returns 0, or a negative
 * errno with a text for people in error; *ret_backing is untouched then, and owned by the caller otherwise.
 * The memory is zero. The first one that needs the device's context makes it. */
int backing_new(const struct backing_order *order, struct worker *worker, struct backing **ret_backing,
                char error[BACKING_ERROR_SIZE]);

/* A backing of a daemon before, of which the descriptor was stored. fd: becomes the backing's. Host pages are not
 * locked yet: backing_lock(). Returns 0 or a negative errno; -EBADMSG: the descriptor is not of such memory. */
int backing_inherit(const struct backing_order *order, int fd, enum backing_pages pages,
                    struct backing **ret_backing);

/* [slow] Keeps host pages in memory, as backing_new() does. */
void backing_lock(struct backing *backing, struct worker *worker);

/* Whether a process needs the driver to use it: such a process may have work on a GPU. */
bool backing_needs_driver(const struct backing *backing);

/* Fills in the kind and the handle of a description. Returns the descriptor that goes along, which stays the
 * backing's, or -1. */
int backing_describe(const struct backing *backing, struct proto_segment *description);

/* [slow] Frees the allocation. Accepts NULL; returns NULL. A failing driver is logged: the memory is lost
 * then. Processes that have it mapped keep it. */
struct backing *backing_free(struct backing *backing);

/* [slow] The same for a segment that was retired: no session has it mapped any more, as far as the daemon was
 * told. The pages of host memory go even if a process still maps them (its next access finds a new page of
 * zeros, which counts as its own): it was told that they are gone, and would keep the daemon's memory. */
struct backing *backing_retire(struct backing *backing);

/* "hugetlb", "transparent", "plain"; NULL for BACKING_PAGES_NONE. */
const char *backing_pages_name(enum backing_pages pages);

#endif
