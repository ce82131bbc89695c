/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/death/processes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/utf8.h"

#define ROOM_AT_FIRST 512u

ssize_t process_read_file(const char *path, char *text, size_t size) {
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t n = 0;

    if (fd < 0)
        return -errno;
    while (length < size - 1 && (n = read(fd, text + length, size - 1 - length)) > 0)
        length += (size_t)n;
    if (n < 0)
        return -errno;
    text[length] = '\0';
    return (ssize_t)length;
}

void process_read_name(const char *proc, pid_t pid, char *name, size_t size) {
    char path[PROCESSES_PATH_SIZE];

    snprintf(path, sizeof path, "%s/%d/comm", proc, (int)pid);
    ssize_t length = process_read_file(path, name, size);
    if (length > 0 && name[length - 1] == '\n')
        name[--length] = '\0';
    if (length <= 0)
        snprintf(name, size, "?");
    else
        utf8_make_valid(name);
}

/* Returns 0, or a negative errno: -ENOENT and -ESRCH when the process has gone. */
static int process_read(const char *proc, pid_t pid, struct process *ret_process) {
    struct process process = {.pid = pid};
    char path[PROCESSES_PATH_SIZE], text[1024];
    int parent;

    snprintf(path, sizeof path, "%s/%d/stat", proc, (int)pid);
    ssize_t length = process_read_file(path, text, sizeof text);
    if (length < 0)
        return (int)length;
    /* "pid (name) state ppid pgrp session tty tpgid flags …": the name may hold anything. */
    const char *rest = strrchr(text, ')');
    if (rest == NULL ||
        sscanf(rest + 1,
               " %c %d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d "
               "%" SCNu64,
               &process.state, &parent, &process.flags, &process.threads, &process.start_ticks) != 5)
        return -EPROTO;
    process.parent = parent;
    *ret_process = process;
    return 0;
}

static int processes_add(struct processes *processes, const struct process *process) {
    if (processes->count == processes->room) {
        size_t room = processes->room == 0 ? ROOM_AT_FIRST : 2 * processes->room;
        struct process *entries = realloc(processes->entries, room * sizeof *entries);
        if (entries == NULL)
            return -ENOMEM;
        processes->entries = entries;
        processes->room = room;
    }
    processes->entries[processes->count++] = *process;
    return 0;
}

static int compare_pids(const void *a, const void *b) {
    pid_t left = ((const struct process *)a)->pid, right = ((const struct process *)b)->pid;
    return (left > right) - (left < right);
}

int processes_read(struct processes *processes, const char *proc) {
    _cleanup_(closedirp) DIR *directory = opendir(proc);

    processes->count = 0;
    if (directory == NULL)
        return -errno;
    for (;;) {
        struct process process;
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL)
            break;
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        int r = process_read(proc, pid, &process);
        if (r == -ENOENT || r == -ESRCH)
            continue;
        if (r < 0)
            process = (struct process){.pid = pid, .is_unread = true, .start_ticks = UINT64_MAX};
        r = processes_add(processes, &process);
        if (r < 0)
            return r;
    }
    if (errno != 0)
        return -errno;
    if (processes->count > 0)
        qsort(processes->entries, processes->count, sizeof *processes->entries, compare_pids);
    return 0;
}

void processes_free(struct processes *processes) {
    free(processes->entries);
    *processes = (struct processes){0};
}

const struct process *processes_find(const struct processes *processes, pid_t pid) {
    const struct process key = {.pid = pid};
    return processes->count == 0 ? NULL
                                 : bsearch(&key, processes->entries, processes->count,
                                           sizeof *processes->entries, compare_pids);
}

/* Whether the cache is of children of this parent. Ancestors above it may have ended since: then the orphans
 * went to other ancestors, which are in the cache, too. */
static bool cache_is_of(const struct process_origin_cache *cache, const struct process *parent) {
    return cache != NULL && cache->origin.n_ancestors > 0 && cache->origin.ancestors[0].pid == parent->pid &&
           cache->origin.ancestors[0].start_ticks == parent->start_ticks &&
           cache->grandparent == parent->parent;
}

void process_origin_read(struct process_origin *origin, struct process_origin_cache *cache, const char *proc,
                         pid_t pid) {
    struct process process;
    pid_t grandparent = 0;

    *origin = (struct process_origin){0};
    if (pid <= 0 || process_read(proc, pid, &process) < 0)
        return;
    uint64_t start_ticks = origin->start_ticks = process.start_ticks;
    while (process.parent > 0) {
        uint64_t child_ticks = process.start_ticks;
        if (origin->n_ancestors == PROCESSES_ANCESTORS_MAX ||
            process_read(proc, process.parent, &process) < 0 ||
            process.start_ticks > child_ticks) /* it ended, and another process has its pid */
            return;
        if (origin->n_ancestors == 0 && cache_is_of(cache, &process)) {
            *origin = cache->origin;
            origin->start_ticks = start_ticks;
            return;
        }
        if (origin->n_ancestors == 0)
            grandparent = process.parent;
        origin->ancestors[origin->n_ancestors].pid = process.pid;
        origin->ancestors[origin->n_ancestors++].start_ticks = process.start_ticks;
    }
    origin->is_complete = true;
    if (cache != NULL)
        *cache = (struct process_origin_cache){.origin = *origin, .grandparent = grandparent};
}

/* --- descent --- */

enum judgement {
    NOT_JUDGED,
    BEING_JUDGED,
    DESCENDS, /* or may */
    DESCENDS_NOT,
};

struct descent {
    const struct processes *processes;
    const char *proc;
    const struct process_origin *origin;
    uint8_t *judgements; /* enum judgement, by entry */
};

static bool is_ancestor(const struct process_origin *origin, const struct process *process) {
    for (unsigned i = 0; i < origin->n_ancestors; i++)
        if (origin->ancestors[i].pid == process->pid &&
            origin->ancestors[i].start_ticks == process->start_ticks)
            return true;
    return false;
}

/* Whether it gets the orphans of a PID namespace. True where that cannot be read. */
static bool is_first_of_namespace(const char *proc, pid_t pid) {
    char path[PROCESSES_PATH_SIZE], text[4096];

    if (pid == 1)
        return true;
    snprintf(path, sizeof path, "%s/%d/status", proc, (int)pid);
    if (process_read_file(path, text, sizeof text) < 0)
        return true;
    /* "NSpid:" and its pid in each namespace, from the outermost to its own; absent without namespaces. */
    const char *line = strstr(text, "\nNSpid:");
    if (line == NULL)
        return false;
    line += strlen("\nNSpid:");
    long last = 0;
    for (size_t i = strspn(line, "\t "); line[i] >= '0' && line[i] <= '9'; i += strspn(line + i, "\t ")) {
        char *end;
        last = strtol(line + i, &end, 10);
        i = (size_t)(end - line);
    }
    return last == 1;
}

/* Judges an entry and, before that, those above it. */
static bool judge(struct descent *descent, const struct process *process) {
    const struct processes *processes = descent->processes;
    const struct process_origin *origin = descent->origin;
    uint8_t *judgement = &descent->judgements[process - processes->entries];

    if (*judgement == BEING_JUDGED) /* pids were reused while the table was read */
        return true;
    if (*judgement != NOT_JUDGED)
        return *judgement == DESCENDS;
    *judgement = BEING_JUDGED;
    /* An ancestor can have started in the same tick. */
    bool may =
        process->is_unread || (process->start_ticks >= origin->start_ticks && !is_ancestor(origin, process));
    if (may && !process->is_unread && origin->is_complete) {
        const struct process *parent = processes_find(processes, process->parent);
        bool is_known = parent != NULL && !parent->is_unread && parent->start_ticks <= process->start_ticks;
        may = !is_known || is_ancestor(origin, parent) || judge(descent, parent) ||
              is_first_of_namespace(descent->proc, parent->pid);
    }
    *judgement = may ? DESCENDS : DESCENDS_NOT;
    return may;
}

void processes_descend(const struct processes *processes, const char *proc,
                       const struct process_origin *origin, bool *may_descend) {
    struct descent descent = {.processes = processes, .proc = proc, .origin = origin};

    descent.judgements = calloc(processes->count + 1, sizeof *descent.judgements);
    for (size_t i = 0; i < processes->count; i++)
        may_descend[i] = descent.judgements == NULL || judge(&descent, &processes->entries[i]);
    free(descent.judgements);
}
