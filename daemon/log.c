/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic enum log_level log_level = LOG_LEVEL_INFO;
static const char *const level_names[] = {"error", "warning", "info", "debug"};

void log_set_level(enum log_level level) {
    log_level = level;
}

int log_parse_level(const char *text, enum log_level *ret_level) {
    for (unsigned i = 0; i < sizeof level_names / sizeof *level_names; i++)
        if (strcmp(text, level_names[i]) == 0) {
            *ret_level = (enum log_level)i;
            return 0;
        }
    return -EINVAL;
}

void log_message(enum log_level level, const char *format, ...) {
    static const char priorities[] = {'3', '4', '6', '7'};
    int saved = errno;
    char line[2048];
    size_t used;
    va_list arguments;

    if (level > log_level)
        return;
    if (getenv("JOURNAL_STREAM") != NULL)
        used = (size_t)snprintf(line, sizeof line, "<%c>", priorities[level]);
    else
        used = (size_t)snprintf(line, sizeof line, "gpupoold: %s: ", level_names[level]);
    va_start(arguments, format);
    int n = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    used = n < 0 || used + (size_t)n > sizeof line - 2 ? sizeof line - 2 : used + (size_t)n;
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, used) < 0) {
        /* nobody left to tell */
    }
    errno = saved;
}
