/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DEATH_PROCESSES_H
#define DAEMON_DEATH_PROCESSES_H
/*
 * The processes of this machine as /proc lists them at one time, and which of them can descend from a process
 * that has ended.
 *
 * A process whose parent ended gets another one: the first process of its PID namespace, or an ancestor that
 * asked for orphans (PR_SET_CHILD_SUBREAPER), which nothing in /proc shows. So the parent that /proc names is
 * either the true one, or the first process of a PID namespace, or an ancestor of the true one. A descendant
 * of the dead process therefore has as its parent one of
 * - another descendant, which started no earlier than the dead process,
 * - an ancestor of the dead process,
 * - the first process of a PID namespace,
 * - a process that is not in the table, or not visible here.
 * A process with any other parent does not descend from it, and neither do that process's children. Nor does an
 * ancestor, whose start cannot always be told from that of the dead process: a tick has 10 ms.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The ancestors that are remembered: more than any service manager, container and shells put above a worker.
 */
#define PROCESSES_ANCESTORS_MAX 32u
#define PROCESSES_PATH_SIZE     320u /* three names of directory entries */

/* A process's stat file, which every user may read. */
struct process {
    pid_t pid, parent;
    char state;
    bool is_unread; /* it is there, and nothing else is known of it */
    unsigned flags;
    long threads;
    uint64_t start_ticks; /* clock ticks since boot */
};

struct processes {
    struct process *entries; /* by pid, ascending */
    size_t count, room;
};

/* Where a process comes from, read while it lives. All zero: nothing is known, and any process may descend
 * from it. */
struct process_origin {
    uint64_t start_ticks;
    bool is_complete; /* these are all its ancestors that can be seen */
    unsigned n_ancestors;
    struct {
        pid_t pid;
        uint64_t start_ticks;
    } ancestors[PROCESSES_ANCESTORS_MAX];
};

/* The findings of the last complete reading above one parent: most clients have the same launcher. All zero:
 * nothing. */
struct process_origin_cache {
    struct process_origin origin; /* of a child of origin.ancestors[0] */
    pid_t grandparent;            /* the parent of that parent, when it was read */
};

/* Reads a whole small file, NUL-terminated. Returns its length, or a negative errno. */
ssize_t process_read_file(const char *path, char *text, size_t size);

/* Reads a process's name, as ps shows it: valid UTF-8, "?" where it has none. */
void process_read_name(const char *proc, pid_t pid, char *name, size_t size);

/* Reads the table; proc: "/proc", or what stands in for it. Returns 0 or a negative errno. */
int processes_read(struct processes *processes, const char *proc);
void processes_free(struct processes *processes);

/* NULL: it is not there. */
const struct process *processes_find(const struct processes *processes, pid_t pid);

/* Reads where a living process comes from. The caller knows that the pid is still that process's. The cache,
 * which may be NULL, spares it what lies above a parent that it has met: a process's own ancestors change
 * only when its parent ends. */
void process_origin_read(struct process_origin *origin, struct process_origin_cache *cache, const char *proc,
                         pid_t pid);

/* For each entry of the table, whether it may descend from a process of that origin. may_descend: room for
 * count values. */
void processes_descend(const struct processes *processes, const char *proc,
                       const struct process_origin *origin, bool *may_descend);

#endif
