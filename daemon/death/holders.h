/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DEATH_HOLDERS_H
#define DAEMON_DEATH_HOLDERS_H
/*
 * The processes that may hold descriptors of the driver that came from a dead process, as /proc tells. For
 * deaths that the driver's list cannot tell of (see daemon/core/death.h).
 *
 * After a process has ended nothing says which processes descended from it. But a process that inherited its
 * descriptors was forked since it started, directly or not. So each process that may descend from it
 * (processes.h says which those are), has a file of the driver open or mapped, and has no better reason to,
 * is suspected: better to hold memory for a stranger's sake than to lend it too early. A better reason have:
 * the daemon itself; clients that are connected and alive, and processes that the driver lists in their own
 * name. (A forked child can be neither: CUDA and the client library refuse to work in one, and what another
 * program inherits by exec is not the driver's descriptors, which are close-on-exec.)
 *
 * A process that may not be looked into is suspected too (the daemon needs the same uid, or CAP_SYS_PTRACE),
 * with one exception: a process that has no uid in common with the dead one, where that was not root's and no
 * user namespace is involved, is no child of it, for no process changes users so without privilege. Threads'
 * own tables of descriptors (CLONE_FILES not shared) are looked at only where the first thread has ended.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/core/death.h"
#include "daemon/death/processes.h"

/* A dead process, and what was found. */
struct holders_subject {
    uint64_t token;     /* the caller's */
    bool is_for_people; /* likewise: the look is to name a holder, and no verdict waits for it */
    struct process_origin origin;
    uid_t uid;
    enum death_holders holders; /* NONE, SOME, HIDDEN or UNKNOWN, once looked for */
    pid_t holder;               /* with SOME and HIDDEN */
    char holder_name[DEATH_NAME_SIZE];
    char holder_path[DEATH_PATH_SIZE]; /* with SOME, else empty */
};

/* Looks through all processes. device_files: how the names of the driver's files begin. exempt: pids with a
 * better reason, ascending. proc: "/proc", or what stands in for it. Fills in the subjects. Takes
 * milliseconds and more: not for the loop. UNKNOWN where proc is not that of this process's PID namespace.
 * One look can miss a process that forks and ends while it goes on: NONE is to be confirmed by a second. */
void holders_look(const char *proc, const char *device_files, const pid_t *exempt, size_t n_exempt,
                  struct holders_subject *subjects, size_t n_subjects);

/* Whether the NVIDIA driver is loaded: without it no process can have work on a GPU. True where that cannot
 * be read. */
bool holders_driver_is_loaded(const char *proc);

#endif
