/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/place.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/utf8.h"

/* Of a container's id, as its tools show it. */
#define ID_SHOWN 12
#define ID_SIZE  64u /* hexadecimal digits of a whole one */

/* The names of groups that container runtimes make: a prefix and the id. */
static const struct {
    const char *prefix, *word;
} runtimes[] = {
    {"docker-", "docker"}, {"cri-containerd-", "containerd"}, {"crio-", "cri-o"},
    {"libpod-", "podman"}, {"lxc.payload.", "lxc"},           {"nerdctl-", "nerdctl"},
};

static bool is_id(const char *text, size_t length) {
    return length >= ID_SIZE && strspn(text, "0123456789abcdef") >= ID_SIZE;
}

static bool ends_in(const char *text, size_t length, const char *end) {
    size_t size = strlen(end);
    return length > size && memcmp(text + length - size, end, size) == 0;
}

/* Whether a part of a path names a place; parent: the part before it, "" for none. */
static bool read_part(const char *part, size_t length, const char *parent, char place[PLACE_SIZE]) {
    for (size_t i = 0; i < ARRAY_LENGTH(runtimes); i++) {
        size_t size = strlen(runtimes[i].prefix);
        if (length <= size || strncmp(part, runtimes[i].prefix, size) != 0)
            continue;
        int shown = is_id(part + size, length - size) ? ID_SHOWN : (int)(length - size);
        snprintf(place, PLACE_SIZE, "%s %.*s", runtimes[i].word, shown, part + size);
        return true;
    }
    if (is_id(part, length)) { /* of version 1: /docker/ID, /kubepods/…/ID */
        snprintf(place, PLACE_SIZE, "%s %.*s", strncmp(parent, "docker", 6) == 0 ? "docker" : "container",
                 ID_SHOWN, part);
        return true;
    }
    if (strncmp(part, "job_", 4) == 0 && length > 4) {
        snprintf(place, PLACE_SIZE, "slurm job %.*s", (int)(length - 4), part + 4);
        return true;
    }
    if (ends_in(part, length, ".service") && strncmp(part, "user@", 5) != 0) {
        snprintf(place, PLACE_SIZE, "%.*s", (int)length, part);
        return true;
    }
    return false;
}

/* The innermost part of a path that names a place. */
static bool read_path(const char *path, size_t length, char place[PLACE_SIZE]) {
    const char *parent = "";
    bool is_found = false;

    for (size_t begin = 0; begin < length;) {
        size_t part = strcspn(path + begin, "/\n");
        if (begin + part > length)
            part = length - begin;
        if (part > 0) {
            is_found |= read_part(path + begin, part, parent, place);
            parent = path + begin;
        }
        begin += part + 1;
    }
    return is_found;
}

bool place_parse(const char *groups, char place[PLACE_SIZE]) {
    for (const char *line = groups; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        const char *colon = memchr(line, ':', length);
        const char *path = colon == NULL ? NULL : memchr(colon + 1, ':', length - (size_t)(colon + 1 - line));
        if (path != NULL && read_path(path + 1, length - (size_t)(path + 1 - line), place)) {
            utf8_make_valid(place); /* it may be cut, and anybody names groups */
            utf8_make_plain(place, strlen(place));
            return true;
        }
        line += length + (line[length] == '\n');
    }
    return false;
}

/* Reads a small file of /proc/PID. */
static bool read_file(int directory, const char *name, char *text, size_t size) {
    _cleanup_(close_fdp) int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Whether the process began before that: field 22 of its stat, in clock ticks since the machine's start. */
static bool began_before(int directory, uint64_t connected_ns) {
    char text[1024];
    struct timespec now;
    uint64_t ticks = 0;

    if (!read_file(directory, "stat", text, sizeof text) || clock_gettime(CLOCK_BOOTTIME, &now) < 0)
        return false;
    const char *field = strrchr(text, ')');
    for (unsigned i = 2; field != NULL && i < 22; i++)
        field = strchr(field + 1, ' ');
    if (field != NULL)
        ticks = strtoull(field + 1, NULL, 10);
    uint64_t now_ns = (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
    uint64_t began_ns = ticks * (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
    return ticks > 0 && began_ns + connected_ns <= now_ns;
}

bool place_of_process(uint64_t pid, uint64_t uid, uint64_t connected_ns, char place[PLACE_SIZE]) {
    char path[32], groups[4096];
    struct stat status;

    snprintf(path, sizeof path, "/proc/%" PRIu64, pid);
    _cleanup_(close_fdp) int directory = pid == 0 ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return directory >= 0 && fstat(directory, &status) == 0 && status.st_uid == uid &&
           began_before(directory, connected_ns) && read_file(directory, "cgroup", groups, sizeof groups) &&
           place_parse(groups, place);
}
