/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/death/holders.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

#define KERNEL_THREAD  0x00200000u /* PF_KTHREAD in a process's flags */
#define PROC_PATH_SIZE PROCESSES_PATH_SIZE

/* The result of a look into a process. */
struct finding {
    enum death_holders holders;
    char path[DEATH_PATH_SIZE];
};

bool holders_driver_is_loaded(const char *proc) {
    char path[PROC_PATH_SIZE], text[16384];

    snprintf(path, sizeof path, "%s/devices", proc);
    return process_read_file(path, text, sizeof text) < 0 || strstr(text, "nvidia") != NULL;
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
            char *deleted = strstr(target, " (deleted)"); /* as every memfd's name has it */
            if (deleted != NULL)
                *deleted = '\0';
            finding->holders = HOLDERS_SOME;
            snprintf(finding->path, sizeof finding->path, "%.*s", (int)sizeof finding->path - 1, target);
            return 0;
        }
    }
}

/* Whether the process has a file of the driver mapped: a mapping holds its file, too. */
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
    if (process_read_file(path, text, sizeof text) < 0)
        return true;
    const char *line = strstr(text, "\nUid:");
    if (line == NULL || sscanf(line, "\nUid: %u %u %u %u", &uids[0], &uids[1], &uids[2], &uids[3]) != 4)
        return true;
    for (unsigned i = 0; i < 4; i++)
        if (uids[i] == uid)
            return true;
    snprintf(path, sizeof path, "%s/%d/uid_map", proc, (int)pid);
    if (process_read_file(path, map, sizeof map) < 0)
        return true;
    snprintf(path, sizeof path, "%s/self/uid_map", proc);
    return process_read_file(path, own_map, sizeof own_map) < 0 || strcmp(map, own_map) != 0;
}

/* Whether this process has CAP_SYS_PTRACE, for which nothing in /proc is hidden. */
static bool may_see_all(const char *proc) {
    char path[PROC_PATH_SIZE], text[4096];
    uint64_t capabilities;

    snprintf(path, sizeof path, "%s/self/status", proc);
    if (process_read_file(path, text, sizeof text) < 0)
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

/* Enters what was found in a process into a subject that it may descend from. */
static void suspect(const char *proc, const struct process *process, const struct finding *finding,
                    struct holders_subject *subject) {
    if (subject->holders == HOLDERS_SOME)
        return;
    if (finding->holders == HOLDERS_HIDDEN &&
        (subject->holders == HOLDERS_HIDDEN || !may_be_child_of(proc, process->pid, subject->uid)))
        return;
    subject->holders = finding->holders;
    subject->holder = process->pid;
    process_read_name(proc, process->pid, subject->holder_name, sizeof subject->holder_name);
    memcpy(subject->holder_path, finding->path, sizeof subject->holder_path);
}

static void set_all(struct holders_subject *subjects, size_t n_subjects, enum death_holders holders) {
    for (size_t i = 0; i < n_subjects; i++)
        subjects[i].holders = holders;
}

/* The findings in each process, looked for once and only where a subject needs them. */
struct search {
    const char *proc, *device_files;
    const pid_t *exempt;
    size_t n_exempt;
    struct processes processes;
    struct finding *findings; /* by entry; HOLDERS_NOT_LOOKED: not yet */
    bool *may_descend;        /* by entry, from the subject in hand */
};

static bool is_exempt(const struct search *search, const struct process *process) {
    return process->pid == getpid() || (process->flags & KERNEL_THREAD) != 0 ||
           (search->n_exempt > 0 &&
            bsearch(&process->pid, search->exempt, search->n_exempt, sizeof(pid_t), compare_pids) != NULL);
}

static const struct finding *search_find(struct search *search, size_t entry) {
    struct finding *finding = &search->findings[entry];
    const struct process *process = &search->processes.entries[entry];

    if (finding->holders == HOLDERS_NOT_LOOKED) {
        if (process->is_unread) /* of which nothing is known, so everything has to be feared */
            finding->holders = HOLDERS_HIDDEN;
        else
            *finding = look_into(search->proc, process, search->device_files);
    }
    return finding;
}

static void search_for(struct search *search, struct holders_subject *subject) {
    processes_descend(&search->processes, search->proc, &subject->origin, search->may_descend);
    for (size_t i = 0; i < search->processes.count; i++) {
        const struct process *process = &search->processes.entries[i];
        if (!search->may_descend[i] || is_exempt(search, process))
            continue;
        const struct finding *finding = search_find(search, i);
        if (finding->holders != HOLDERS_NONE)
            suspect(search->proc, process, finding, subject);
    }
}

void holders_look(const char *proc, const char *device_files, const pid_t *exempt, size_t n_exempt,
                  struct holders_subject *subjects, size_t n_subjects) {
    struct search search = {
        .proc = proc, .device_files = device_files, .exempt = exempt, .n_exempt = n_exempt};

    set_all(subjects, n_subjects, HOLDERS_UNKNOWN);
    if (!is_own(proc) || !shows_everybody(proc))
        return;
    if (processes_read(&search.processes, proc) == 0 && processes_find(&search.processes, getpid()) != NULL) {
        search.findings = calloc(search.processes.count, sizeof *search.findings);
        search.may_descend = calloc(search.processes.count, sizeof *search.may_descend);
        if (search.findings != NULL && search.may_descend != NULL) {
            set_all(subjects, n_subjects, HOLDERS_NONE);
            for (size_t i = 0; i < n_subjects; i++)
                search_for(&search, &subjects[i]);
        }
    }
    free(search.findings);
    free(search.may_descend);
    processes_free(&search.processes);
}
