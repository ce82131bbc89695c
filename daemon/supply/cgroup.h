/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SUPPLY_CGROUP_H
#define DAEMON_SUPPLY_CGROUP_H
/*
 * The memory that the daemon's control group allows: what a container or MemoryMax= of a unit says. Beyond it
 * the kernel kills the daemon, where an allocation on a full node would only fail.
 *
 * The limits of the group and of all its ancestors count. Both versions of the hierarchy are read, and the
 * one with the memory controller counts. Ancestors outside of the process's cgroup namespace cannot be seen;
 * in version 1 the kernel tells the least of their limits.
 */
#include <stdint.h>

#define CGROUP_NAME_SIZE 96u

struct cgroup_memory {
    uint64_t limit_bytes;     /* the least limit; UINT64_MAX: there is none */
    uint64_t available_bytes; /* the least that a group has left, page cache included; UINT64_MAX: no limit */
    char group[CGROUP_NAME_SIZE]; /* with that limit, as /proc/PID/cgroup names it; the end of a long name */
    const char *setting;          /* the limit's file there */
    const char *unit_setting;     /* and the key of a unit that sets it: "MemoryMax" */
};

/* Reads the files below root, which is "" but in tests. A file that cannot be read is no limit. */
void cgroup_memory(const char *root, struct cgroup_memory *ret_memory);

#endif
