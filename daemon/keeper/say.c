/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/say.h"

#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/utf8.h"

static const char *const level_names[] = {"error", "warning", "info"};
static const char priorities[] = {'3', '4', '6'};

/* True: the journal reads stderr. The variable can be one that another program was meant to have. */
static bool journal_reads(void) {
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat status;

    return stream != NULL && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

/* The journal adds the time by itself. */
static size_t put_prefix(char *line, size_t size, enum say_level level) {
    time_t now = time(NULL);
    struct tm local = {0};

    if (journal_reads())
        return (size_t)snprintf(line, size, "<%c>keeper: ", priorities[level]);
    localtime_r(&now, &local);
    size_t used = strftime(line, size, "%Y-%m-%dT%H:%M:%S%z", &local);
    return used + (size_t)snprintf(line + used, size - used, " gpupoold --keeper: %s: ", level_names[level]);
}

void say(enum say_level level, const char *format, ...) {
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    char line[1024];
    va_list arguments;

    size_t begin = put_prefix(line, sizeof line, level), used = begin;
    va_start(arguments, format);
    int n = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    used = n < 0 || used + (size_t)n > sizeof line - 2 ? sizeof line - 2 : used + (size_t)n;
    utf8_make_plain(line + begin, used - begin); /* names come from a process */
    line[used++] = '\n';
    if (poll(&room, 1, 0) > 0 && write(STDERR_FILENO, line, used) < 0)
        return; /* no reader is left */
}
