/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_USER_POLICY_H
#define DAEMON_CONFIG_USER_POLICY_H
/*
 * Access of users: makes the core's policy from the configuration. Names of users and groups are
 * looked up before the configuration takes effect and only then: the system's databases may lie on another
 * machine. A name that no user or group has allows nothing; the log says so.
 */
#include "base/units.h"
#include "daemon/core/limits.h"
#include "daemon/core/quota.h"

/* One user's limits unless the configuration says otherwise, so that no user can have the daemon's memory
 * or all of its sessions to themselves. Leases of 16 full processes, each in two ranges; requests of 4 that
 * wait with all the threads that they may; replies of 200,000 requests. docs/limits.md says what they cost.
 */
#define LEASES_DEFAULT  (16 * (uint64_t)SESSION_LEASES_DEFAULT)
#define RANGES_DEFAULT  (2 * LEASES_DEFAULT)
#define WAITING_DEFAULT (4 * (uint64_t)SESSION_WAITING_MAX)
#define REPLIES_DEFAULT (64 * MIB)

struct config;
struct config_limits;
struct core;

/* [slow] Finds the numbers of the users and groups that a configuration names. A name that no user or group
 * has stays unknown. For the start, and for a worker's thread. Returns 0 or -ENOMEM: then the
 * configuration is to be thrown away. */
int user_policy_look_up(struct config *config);

/* Sets the core's policy by a configuration, for the pools that the core has. The configuration has been
 * through user_policy_look_up(). Returns 0 or -ENOMEM: then the policy stays as it was. */
int user_policy_apply(struct core *core, const struct config *config);

/* Resolves limits, of which some are set, for the pools that the core has. Those that are not set are
 * POLICY_UNSET. */
void user_policy_resolve(const struct core *core, const struct config_limits *limits,
                         uint64_t ret_limits[QUOTA_ITEMS]);

#endif
