/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SUPPLY_POOLS_H
#define DAEMON_SUPPLY_POOLS_H
/*
 * The daemon's pools, as the machine and the configuration have them: one for each GPU, one for each NUMA
 * node, each with its supplier.
 */
#include "daemon/config/config.h"
#include "daemon/core/core.h"

struct daemon;

/* Opens the driver that the configuration names, or the one that is there. Returns 0, also where host memory
 * is all that is served, or a negative errno (logged). */
int pools_open_gpu(struct daemon *daemon);

/* Adds a pool for each device of daemon->gpu and for each NUMA node. Returns 0, -ENODEV where no pool is
 * enabled, or another negative errno (logged). */
int pools_add(struct daemon *daemon);

/* The kind of a pool's segments. */
enum proto_segment_kind pools_segment_kind(enum proto_pool_kind kind, const struct config_pool_sizes *sizes);

/* A pool's sizes, as the core takes them. */
struct pool_sizes pools_sizes(const struct config_pool_sizes *sizes);

#endif
