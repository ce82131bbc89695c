/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/supply/neighbours.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

/* Reads the beginning of a file of a process; NULs stay. Returns the size, 0 where it cannot be read. */
static size_t read_file(const char *proc, const char *pid, const char *name, char *text, size_t size) {
    char path[512];

    snprintf(path, sizeof path, "%s/%.16s/%s", proc, pid, name);
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
    text[n > 0 ? n : 0] = '\0';
    return n > 0 ? (size_t)n : 0;
}

/* Whether a command line has "--gpu sim" or "--gpu none", or the like with "=". */
static bool goes_without_gpu(const char *line, size_t size) {
    bool is_value = false;

    for (const char *word = line; word < line + size; word += strlen(word) + 1) {
        const char *value = is_value ? word : strncmp(word, "--gpu=", 6) == 0 ? word + 6 : "";
        if (strcmp(value, "sim") == 0 || strcmp(value, "none") == 0)
            return true;
        is_value = strcmp(word, "--gpu") == 0;
    }
    return false;
}

pid_t neighbours_find(const char *proc, pid_t own, pid_t keeper) {
    DIR *directory = opendir(proc);
    const struct dirent *entry;
    pid_t found = 0;

    while (directory != NULL && found == 0 && (entry = readdir(directory)) != NULL) {
        char text[4096];
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid <= 0 || pid == own || pid == keeper ||
            read_file(proc, entry->d_name, "comm", text, sizeof text) == 0 || strcmp(text, "gpupoold\n") != 0)
            continue;
        size_t size = read_file(proc, entry->d_name, "cmdline", text, sizeof text);
        if (!goes_without_gpu(text, size))
            found = pid;
    }
    if (directory != NULL)
        closedir(directory);
    return found;
}
