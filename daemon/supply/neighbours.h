/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SUPPLY_NEIGHBOURS_H
#define DAEMON_SUPPLY_NEIGHBOURS_H
/*
 * Other daemons of this machine: they may have pools on the same GPUs, and no daemon knows of another's.
 */
#include <sys/types.h>

/* Finds another process that is named as this program ("gpupoold") and was not told on its command line to go
 * without a real GPU. proc: "/proc". keeper: the parent, which is no neighbour. Returns its pid, or 0: none can be
 * seen. */
pid_t neighbours_find(const char *proc, pid_t own, pid_t keeper);

#endif
