/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_SUBUID_H
#define DAEMON_CONFIG_SUBUID_H
/*
 * The file of subordinate uids (subuid(5)): which users have which further uids, each line OWNER:FIRST:COUNT.
 * The owner is a name or a number.
 */
#include "daemon/core/policy.h"

#define SUBUID_FILE_DEFAULT "/etc/subuid"

/* [slow] Reads the file. A line that makes no sense, or whose owner is not known, is left out and warned of.
 * A file that is not there has no lines. Returns 0, or -ENOMEM; *ret_ranges is owned by the caller. */
int subuid_read(const char *path, struct policy_range **ret_ranges, unsigned *ret_n_ranges);

#endif
