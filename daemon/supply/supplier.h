/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SUPPLY_SUPPLIER_H
#define DAEMON_SUPPLY_SUPPLIER_H
/*
 * A supplier makes and frees the segments of one pool, on a worker thread of its own. It carries out
 * the core's growth and retirement decisions and reports back; the loop never waits for it. One for each
 * pool, owned by the daemon.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/config/config.h"
#include "daemon/loop/worker.h"
#include "daemon/supply/backing.h"

struct pool;
struct segment;
struct store;

#define POOL_TOTAL_TEXT_SIZE 192u

/* The memory that a pool can be of: percentages are of it, and a limit is cut to it. */
struct pool_total {
    uint64_t bytes;
    char of[POOL_TOTAL_TEXT_SIZE]; /* the end of "the 8 GiB that …" */
};

struct supplier {
    struct pool *pool;
    struct worker worker;
    const struct gpu *gpu; /* NULL where the kernel makes the memory, and where there is none to make it */
    unsigned device;       /* whose driver makes the memory */
    bool is_simulated;     /* the machine's GPUs are */
    struct pool_total total;
    enum proto_segment_kind segment_kind; /* of all its segments */
    enum config_zero zero;                /* the part that sets new memory to zero, as configured */
    const char *unclean; /* the driver's setting for which the daemon does it unasked; NULL: none */
    enum config_huge_pages huge_pages;
    enum backing_pages pages; /* of the newest segment */
    bool checking;            /* a check of the device is under way */
    bool is_checked;          /* once, or a check is under way */
    bool context_told;        /* the log tells of the daemon's context on the device */
    bool is_gone;             /* it was the pool of a daemon before, and is not configured any more */
    bool is_locking;          /* an inherited segment's pages are being locked */
    struct store *store;      /* of the segments' descriptors; NULL: there is none. Borrowed */
    const char *stalled_call; /* its worker was in it at the last look and the one before; NULL: it got on */
};

/* Starts the worker, which asks whether the device can do what the pool needs: the pool becomes ready, or
 * failed, when that is done. No context is made. Returns 0 or a negative errno. */
int supplier_start(struct supplier *supplier, uv_loop_t *loop);

/* Frees every segment of the pool and stops the worker. No session may be left. Blocks until the driver is
 * done. Does nothing where the worker was not started. */
void supplier_stop(struct supplier *supplier);

/* Sets the backing of a segment that a daemon before has stored. Returns 0, -ENOENT: its descriptor is not there;
 * or another negative errno. */
int supplier_inherit(struct supplier *supplier, struct segment *segment);

void supplier_grow(struct supplier *supplier, uint64_t size_bytes);
void supplier_retire(struct supplier *supplier, struct segment *segment);
/* As supplier_retire(), but the memory stays with the processes that have it mapped, and with the next daemon. */
void supplier_leave(struct supplier *supplier, struct segment *segment);

/* Has the worker ask its device whether it still works; the pool is lost when it does not. Nothing happens
 * for pools without a device, for pools that are closed, and while the worker has other things to do. */
void supplier_check(struct supplier *supplier);

/* Whether the worker gets on; to be asked at intervals (see worker_is_alive). Says in the log and the pool
 * when it stalls and when it has come back. */
bool supplier_is_alive(struct supplier *supplier);

/* Whether the daemon has a context on the device whose driver makes the pool's memory. */
bool supplier_has_context(const struct supplier *supplier);

/* Which part of the machine sees to it that new memory of the pool is zero: "driver", "daemon" or "kernel".
 */
const char *supplier_zeroed_by(const struct supplier *supplier);

#endif
