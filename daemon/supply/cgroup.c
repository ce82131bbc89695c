/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/supply/cgroup.h"

#include <errno.h>
#include <linux/limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* The kernel's word for "no limit" in version 1: LONG_MAX in whole pages, whose size is at most 64 KiB. */
#define V1_UNLIMITED_MIN (UINT64_C(0x7fffffffffffffff) / 65536 * 65536)

/* Where the process is in a hierarchy, and where that is mounted. */
struct place {
    bool is_v2;
    char group[PATH_MAX];      /* of the process, as /proc/self/cgroup names it */
    char mount_root[PATH_MAX]; /* the group that is mounted */
    char mount[PATH_MAX];
};

static FILE *open_below(const char *root, const char *path) {
    char whole[2 * PATH_MAX];
    int n = snprintf(whole, sizeof whole, "%s%s", root, path);

    return n > 0 && (size_t)n < sizeof whole ? fopen(whole, "re") : NULL;
}

/* --- the place --- */

/* Finds the process's group in the hierarchy of a version. */
static bool find_group(const char *root, struct place *place) {
    _cleanup_(fclosep) FILE *file = open_below(root, "/proc/self/cgroup");
    char line[PATH_MAX + 256];

    while (file != NULL && fgets(line, sizeof line, file) != NULL) { /* NUMBER:CONTROLLERS:GROUP */
        char *controllers = strchr(line, ':');
        char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL)
            continue;
        *group++ = '\0';
        controllers++;
        group[strcspn(group, "\n")] = '\0';
        bool found = place->is_v2 && *controllers == '\0';
        for (char *save = NULL, *name = place->is_v2 ? NULL : strtok_r(controllers, ",", &save);
             name != NULL && !found; name = strtok_r(NULL, ",", &save))
            found = strcmp(name, "memory") == 0;
        if (!found || strlen(group) >= sizeof place->group)
            continue;
        strcpy(place->group, group);
        return true;
    }
    return false;
}

/* Undoes the kernel's way to write a blank in a path: \040. */
static void unescape(char *path) {
    char *to = path;

    for (const char *from = path; *from != '\0'; to++) {
        unsigned byte;
        if (from[0] == '\\' && sscanf(from + 1, "%3o", &byte) == 1) {
            *to = (char)byte;
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

static bool has_option(char *options, const char *wanted) {
    for (char *save = NULL, *option = strtok_r(options, ",", &save); option != NULL;
         option = strtok_r(NULL, ",", &save))
        if (strcmp(option, wanted) == 0)
            return true;
    return false;
}

/* Finds the mount of the hierarchy. */
static bool find_mount(const char *root, struct place *place) {
    _cleanup_(fclosep) FILE *file = open_below(root, "/proc/self/mountinfo");
    char line[3 * PATH_MAX];

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        /* ID PARENT DEVICE ROOT MOUNT OPTIONS [FIELD…] - TYPE SOURCE OPTIONS */
        char type[32], options[1024] = "";
        char *rest = strstr(line, " - ");
        if (rest == NULL || sscanf(rest, " - %31s %*s %1023s", type, options) < 1)
            continue;
        *rest = '\0';
        if (place->is_v2 ? strcmp(type, "cgroup2") != 0
                         : strcmp(type, "cgroup") != 0 || !has_option(options, "memory"))
            continue;
        if (sscanf(line, "%*s %*s %*s %4095s %4095s", place->mount_root, place->mount) != 2)
            continue;
        unescape(place->mount_root);
        unescape(place->mount);
        return true;
    }
    return false;
}

/* The group's path below the mount. A group that is not below the mounted one is seen from another namespace:
 * the mounted one is all that is known. */
static const char *below_mount(const struct place *place) {
    size_t length = strcmp(place->mount_root, "/") == 0 ? 0 : strlen(place->mount_root);

    if (strncmp(place->group, place->mount_root, length) != 0 ||
        (place->group[length] != '/' && place->group[length] != '\0') || strstr(place->group, "/..") != NULL)
        return "";
    return strcmp(place->group + length, "/") == 0 ? "" : place->group + length;
}

/* --- the figures of a group --- */

/* Reads the only number of a file. False: there is none, or it says that there is no limit. */
static bool read_number(const char *root, const char *directory, const char *name, uint64_t *ret_number) {
    char path[2 * PATH_MAX + 64];
    unsigned long long number;

    snprintf(path, sizeof path, "%s/%s", directory, name);
    _cleanup_(fclosep) FILE *file = open_below(root, path);
    if (file == NULL || fscanf(file, "%llu", &number) != 1 || number >= V1_UNLIMITED_MIN)
        return false;
    *ret_number = number;
    return true;
}

/* The sum of figures of memory.stat, whose names end a list with NULL. */
static uint64_t read_stat(const char *root, const char *directory, const char *const *names) {
    char path[2 * PATH_MAX + 64], line[256], name[64];
    unsigned long long number;
    uint64_t sum = 0;

    snprintf(path, sizeof path, "%s/memory.stat", directory);
    _cleanup_(fclosep) FILE *file = open_below(root, path);
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%63s %llu", name, &number) != 2)
            continue;
        for (const char *const *wanted = names; *wanted != NULL; wanted++)
            if (strcmp(name, *wanted) == 0)
                sum += number;
    }
    return sum;
}

static void note_limit(struct cgroup_memory *memory, uint64_t limit_bytes, uint64_t used_bytes,
                       const char *group, const char *setting) {
    uint64_t available_bytes = limit_bytes > used_bytes ? limit_bytes - used_bytes : 0;

    if (available_bytes < memory->available_bytes)
        memory->available_bytes = available_bytes;
    if (limit_bytes >= memory->limit_bytes)
        return;
    size_t length = strlen(group), room = sizeof memory->group - 1;
    memory->limit_bytes = limit_bytes;
    memory->setting = setting;
    memory->unit_setting = strcmp(setting, "memory.high") == 0 ? "MemoryHigh" : "MemoryMax";
    if (length > room)
        group += length - room;
    memcpy(memory->group, group, strlen(group) + 1);
    if (length > room)
        memcpy(memory->group, "...", 3);
}

/* Reads one group. hidden gets what the kernel says of all its ancestors. At memory.high the kernel stops a
 * process that goes on for long, rather than kill it. */
static void read_group(const char *root, const struct place *place, const char *directory, const char *group,
                       struct cgroup_memory *hidden, struct cgroup_memory *memory) {
    static const char *const v2_settings[] = {"memory.max", "memory.high", NULL};
    static const char *const v1_settings[] = {"memory.limit_in_bytes", NULL};
    static const char *const v2_cache[] = {"inactive_file", "active_file", NULL};
    static const char *const v1_cache[] = {"total_inactive_file", "total_active_file", NULL};
    static const char *const v1_ancestors[] = {"hierarchical_memory_limit", NULL};
    uint64_t limit, used = 0;

    if (read_number(root, directory, place->is_v2 ? "memory.current" : "memory.usage_in_bytes", &used)) {
        uint64_t cache = read_stat(root, directory, place->is_v2 ? v2_cache : v1_cache);
        used = used > cache ? used - cache : 0;
    }
    for (const char *const *setting = place->is_v2 ? v2_settings : v1_settings; *setting != NULL; setting++)
        if (read_number(root, directory, *setting, &limit))
            note_limit(memory, limit, used, group, *setting);
    limit = place->is_v2 ? 0 : read_stat(root, directory, v1_ancestors);
    if (limit > 0 && limit < V1_UNLIMITED_MIN)
        note_limit(hidden, limit, used, group, "hierarchical_memory_limit");
}

/* --- all groups --- */

static void read_hierarchy(const char *root, bool is_v2, struct cgroup_memory *memory) {
    struct place place = {.is_v2 = is_v2};
    struct cgroup_memory hidden = *memory;
    char below[PATH_MAX], directory[2 * PATH_MAX], group[2 * PATH_MAX];

    if (!find_group(root, &place) || !find_mount(root, &place))
        return;
    snprintf(below, sizeof below, "%s", below_mount(&place));
    const char *mounted = strcmp(place.mount_root, "/") == 0 ? "" : place.mount_root;
    for (;;) {
        snprintf(directory, sizeof directory, "%s%s", place.mount, below);
        snprintf(group, sizeof group, "%s%s", mounted, below);
        read_group(root, &place, directory, *group == '\0' ? "/" : group, &hidden, memory);
        char *last = strrchr(below, '/');
        if (last == NULL)
            break;
        *last = '\0';
    }
    if (hidden.limit_bytes < memory->limit_bytes) {
        uint64_t available_bytes = memory->available_bytes;
        *memory = hidden;
        if (available_bytes < memory->available_bytes)
            memory->available_bytes = available_bytes;
    }
}

void cgroup_memory(const char *root, struct cgroup_memory *ret_memory) {
    *ret_memory = (struct cgroup_memory){.limit_bytes = UINT64_MAX, .available_bytes = UINT64_MAX};
    read_hierarchy(root, false, ret_memory);
    read_hierarchy(root, true, ret_memory);
}
