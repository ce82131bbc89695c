/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

#define KERNEL_THREAD  0x00200000u /* PF_KTHREAD in a process's flags */
#define PROC_PATH_SIZE 320u        /* three names of directory entries */

/* What stat and status tell of a process; readable for everybody. */
struct process {
    pid_t pid;
    char state;
    unsigned flags;
    long threads;
    uint64_t start_ticks;
};

/* What a look into a process found. */
struct finding {
    enum death_holders holders;
    char path[DEATH_PATH_SIZE];
};

static void closedirp(DIR **directory) {
    if (*directory != NULL)
        closedir(*directory);
}

/* Reads a whole small file, NUL-terminated. Returns its length, or a negative errno. */
static ssize_t read_file(const char *path, char *text, size_t size) {
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

/* Returns 0, or a negative errno: -ENOENT and -ESRCH when the process has gone. */
static int read_process(const char *proc, pid_t pid, struct process *ret_process) {
    struct process process = {.pid = pid};
    char path[PROC_PATH_SIZE], text[1024];

    snprintf(path, sizeof path, "%s/%d/stat", proc, (int)pid);
    ssize_t length = read_file(path, text, sizeof text);
    if (length < 0)
        return (int)length;
    /* "pid (name) state ppid pgrp session tty tpgid flags …": the name may hold anything. */
    const char *rest = strrchr(text, ')');
    if (rest == NULL || sscanf(rest + 1,
                               " %c %*d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d "
                               "%" SCNu64,
                               &process.state, &process.flags, &process.threads, &process.start_ticks) != 4)
        return -EPROTO;
    *ret_process = process;
    return 0;
}

uint64_t holders_start_ticks(const char *proc, pid_t pid) {
    struct process process;
    return pid > 0 && read_process(proc, pid, &process) == 0 ? process.start_ticks : 0;
}

bool holders_driver_is_loaded(const char *proc) {
    char path[PROC_PATH_SIZE], text[16384];

    snprintf(path, sizeof path, "%s/devices", proc);
    return read_file(path, text, sizeof text) < 0 || strstr(text, "nvidia") != NULL;
}

/* Whether a directory of descriptors has one of the driver's files. Returns 0 or a negative errno. */
static int look_at_descriptors(const char *directory_path, const char *device_files,
                               struct finding *finding) {
    _cleanup_(closedirp) DIR *directory = opendir(directory_path);
    if (directory == NULL)
        return -errno;
    for (;;) {
        char target[PATH_MAX];
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL)
            return -errno;
        if (entry->d_name[0] == '.')
            continue;
        ssize_t length = readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1);
        if (length < 0) {
            if (errno == ENOENT) /* closed meanwhile */
                continue;
            return -errno;
        }
        target[length] = '\0';
        if (strncmp(target, device_files, strlen(device_files)) == 0) {
            finding->holders = HOLDERS_SOME;
            snprintf(finding->path, sizeof finding->path, "%.*s", (int)sizeof finding->path - 1, target);
            return 0;
        }
    }
}

/* The same of what it has mapped: a mapping holds its file, too. */
static int look_at_mappings(const char *path, const char *device_files, struct finding *finding) {
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    char line[PATH_MAX + 128];

    if (file == NULL)
        return -errno;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *name = strstr(line, device_files);
        if (name != NULL) {
            finding->holders = HOLDERS_SOME;
            snprintf(finding->path, sizeof finding->path, "%.*s", (int)strcspn(name, " \n"), name);
            return 0;
        }
    }
    return ferror(file) ? -EIO : 0;
}

/* All threads' descriptors, where the first thread has ended and shows none. */
static int look_at_threads(const char *proc, pid_t pid, const char *device_files, struct finding *finding) {
    char path[PROC_PATH_SIZE];
    const struct dirent *entry;

    snprintf(path, sizeof path, "%s/%d/task", proc, (int)pid);
    _cleanup_(closedirp) DIR *directory = opendir(path);
    if (directory == NULL)
        return -errno;
    while ((entry = readdir(directory)) != NULL && finding->holders == HOLDERS_NONE) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%d/task/%.20s/fd", proc, (int)pid, entry->d_name);
        int r = look_at_descriptors(path, device_files, finding);
        if (r < 0 && r != -ENOENT && r != -ESRCH)
            return r;
    }
    return 0;
}

static struct finding look_into(const char *proc, const struct process *process, const char *device_files) {
    struct finding finding = {.holders = HOLDERS_NONE};
    char path[PROC_PATH_SIZE];
    int r;

    if (process->state == 'Z' || process->state == 'X') {
        r = process->threads > 1 ? look_at_threads(proc, process->pid, device_files, &finding) : 0;
    } else {
        snprintf(path, sizeof path, "%s/%d/fd", proc, (int)process->pid);
        r = look_at_descriptors(path, device_files, &finding);
        if (r == 0 && finding.holders == HOLDERS_NONE) {
            snprintf(path, sizeof path, "%s/%d/maps", proc, (int)process->pid);
            r = look_at_mappings(path, device_files, &finding);
        }
    }
    if (r < 0 && r != -ENOENT && r != -ESRCH)
        finding.holders = HOLDERS_HIDDEN;
    return finding;
}

/* Whether a process that may not be looked into has a uid, or is in another user namespace: see the header.
 */
static bool may_be_child_of(const char *proc, pid_t pid, uid_t uid) {
    char path[PROC_PATH_SIZE], text[4096], own_map[1024], map[1024];
    unsigned uids[4];

    if (uid == 0)
        return true;
    snprintf(path, sizeof path, "%s/%d/status", proc, (int)pid);
    if (read_file(path, text, sizeof text) < 0)
        return true;
    const char *line = strstr(text, "\nUid:");
    if (line == NULL || sscanf(line, "\nUid: %u %u %u %u", &uids[0], &uids[1], &uids[2], &uids[3]) != 4)
        return true;
    for (unsigned i = 0; i < 4; i++)
        if (uids[i] == uid)
            return true;
    snprintf(path, sizeof path, "%s/%d/uid_map", proc, (int)pid);
    if (read_file(path, map, sizeof map) < 0)
        return true;
    snprintf(path, sizeof path, "%s/self/uid_map", proc);
    return read_file(path, own_map, sizeof own_map) < 0 || strcmp(map, own_map) != 0;
}

/* Whether this process has CAP_SYS_PTRACE, for which nothing in /proc is hidden. */
static bool may_see_all(const char *proc) {
    char path[PROC_PATH_SIZE], text[4096];
    uint64_t capabilities;

    snprintf(path, sizeof path, "%s/self/status", proc);
    if (read_file(path, text, sizeof text) < 0)
        return false;
    const char *line = strstr(text, "\nCapEff:");
    return line != NULL && sscanf(line, "\nCapEff: %" SCNx64, &capabilities) == 1 &&
           (capabilities >> CAP_SYS_PTRACE & 1) != 0;
}

/* Whether /proc shows the processes of all users. */
static bool shows_everybody(const char *proc) {
    char path[PROC_PATH_SIZE], line[4096];

    if (may_see_all(proc))
        return true;
    snprintf(path, sizeof path, "%s/self/mountinfo", proc);
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *option = strstr(line, " /proc ") != NULL ? strstr(line, "hidepid=") : NULL;
        if (option != NULL && strncmp(option, "hidepid=0", 9) != 0 && strncmp(option, "hidepid=off", 11) != 0)
            return false;
    }
    return !ferror(file);
}

/* Whether it is of this process's PID namespace: in another's the numbers mean other processes, and some are
 * missing. */
static bool is_own(const char *proc) {
    char path[PROC_PATH_SIZE], target[32];

    snprintf(path, sizeof path, "%s/self", proc);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0)
        return false;
    target[length] = '\0';
    return strtol(target, NULL, 10) == getpid();
}

static int compare_pids(const void *a, const void *b) {
    pid_t left = *(const pid_t *)a, right = *(const pid_t *)b;
    return (left > right) - (left < right);
}

/* Enters what was found in a process into the subjects that it can have descended from. */
static void suspect(const char *proc, const struct process *process, const struct finding *finding,
                    struct holders_subject *subjects, size_t n_subjects) {
    for (size_t i = 0; i < n_subjects; i++) {
        struct holders_subject *subject = &subjects[i];
        if (process->start_ticks < subject->start_ticks || subject->holders == HOLDERS_SOME)
            continue;
        if (finding->holders == HOLDERS_HIDDEN &&
            (subject->holders == HOLDERS_HIDDEN || !may_be_child_of(proc, process->pid, subject->uid)))
            continue;
        subject->holders = finding->holders;
        subject->holder = process->pid;
        memcpy(subject->holder_path, finding->path, sizeof subject->holder_path);
    }
}

static void set_all(struct holders_subject *subjects, size_t n_subjects, enum death_holders holders) {
    for (size_t i = 0; i < n_subjects; i++)
        subjects[i].holders = holders;
}

void holders_look(const char *proc, const char *device_files, const pid_t *exempt, size_t n_exempt,
                  struct holders_subject *subjects, size_t n_subjects) {
    uint64_t oldest_ticks = UINT64_MAX;
    bool seen_self = false;

    for (size_t i = 0; i < n_subjects; i++)
        if (subjects[i].start_ticks < oldest_ticks)
            oldest_ticks = subjects[i].start_ticks;
    _cleanup_(closedirp) DIR *directory = is_own(proc) && shows_everybody(proc) ? opendir(proc) : NULL;
    if (directory == NULL) {
        set_all(subjects, n_subjects, HOLDERS_UNKNOWN);
        return;
    }
    set_all(subjects, n_subjects, HOLDERS_NONE);
    for (;;) {
        struct process process;
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL)
            break;
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid == getpid())
            seen_self = true;
        if (pid == getpid() ||
            (n_exempt > 0 && bsearch(&pid, exempt, n_exempt, sizeof *exempt, compare_pids) != NULL))
            continue;
        int r = read_process(proc, pid, &process);
        if (r == -ENOENT || r == -ESRCH)
            continue;
        if (r < 0) { /* of somebody about whom nothing is known, everything has to be feared */
            process = (struct process){.pid = pid, .start_ticks = UINT64_MAX};
            const struct finding hidden = {.holders = HOLDERS_HIDDEN};
            suspect(proc, &process, &hidden, subjects, n_subjects);
            continue;
        }
        if ((process.flags & KERNEL_THREAD) != 0 || process.start_ticks < oldest_ticks)
            continue;
        const struct finding finding = look_into(proc, &process, device_files);
        if (finding.holders != HOLDERS_NONE)
            suspect(proc, &process, &finding, subjects, n_subjects);
    }
    if (errno != 0 || !seen_self)
        set_all(subjects, n_subjects, HOLDERS_UNKNOWN);
}
