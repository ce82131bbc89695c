/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SUPPLY_POOLS_H
#define DAEMON_SUPPLY_POOLS_H
/*
 * The daemon's pools, as the machine and the configuration have them: one for each GPU, one for each NUMA
 * node, each with its supplier.
 */
#include <uv.h>

#include "daemon/config/config.h"
#include "daemon/core/core.h"
#include "daemon/loop/notices.h"
#include "daemon/loop/store.h"
#include "gpu/gpu.h"

/* The driver of the machine's GPUs. */
struct machine {
    const struct gpu *gpu; /* NULL: none */
    enum proto_gpu_kind gpu_kind;
};

/* Opens the driver that the configuration names, or the one that is there. sim_path: of the second socket of
 * a simulated GPU; NULL: it has none. Returns 0, also where host memory is all that is served, or a negative
 * errno (logged). */
int pools_open_gpu(struct machine *machine, const struct config *config, const char *sim_path,
                   struct notices *notices);

/* A pool as a daemon before numbered it. */
struct pool_place {
    enum proto_pool_kind kind;
    int numa_node; /* of a host pool */
    uint8_t uuid[PROTO_UUID_BYTES];
    enum proto_segment_kind segment_kind;
};

/* The arguments of pools_add(). All borrowed. */
struct pools_terms {
    struct core *core;
    const struct machine *machine;
    struct config *config;
    struct store *store;             /* of segments' descriptors; NULL: there is none */
    const struct pool_place *places; /* of the pools that a daemon before had, by number from 1 on */
    unsigned n_places;
};

/* Adds a pool for each device of the machine's driver and for each NUMA node. Those that a daemon before had keep
 * their numbers and the kind of their segments; one that is not there any more keeps its number, and is closed.
 * Notes the pools in the configuration. *n_warnings grows with the warnings that it logs. Returns 0, -ENODEV where
 * no pool is enabled, or another negative errno (logged). */
int pools_add(const struct pools_terms *terms, unsigned *n_warnings);

/* Starts the suppliers' workers. Returns 0 or a negative errno. */
int pools_start(struct core *core, uv_loop_t *loop);

/* Stops the suppliers' workers and frees the segments. No session may be left. */
void pools_stop(struct core *core);

/* Frees the suppliers, once the loop has closed their handles. */
void pools_free_suppliers(struct core *core);

/* Gives the pools the sizes of another configuration. */
void pools_configure(struct core *core, const struct config *config);

#endif
