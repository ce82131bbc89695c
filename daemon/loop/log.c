/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/units.h"
#include "base/utf8.h"

static _Atomic enum log_level log_level = LOG_LEVEL_INFO;
static const char *const level_names[] = {"error", "warning", "info", "debug"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local struct log_copy *thread_copy;
static unsigned long n_lost; /* messages, since the last one that was written; under lock */

void log_set_level(enum log_level level) {
    log_level = level;
}

void log_copy_to(struct log_copy *copy) {
    thread_copy = copy;
}

__attribute__((format(printf, 2, 0))) static void copy_line(struct log_copy *copy, const char *format,
                                                            va_list arguments) {
    unsigned room = LOG_COPY_SIZE - copy->used;

    copy->count++;
    int n = vsnprintf(copy->text + copy->used, room, format, arguments);
    if (n < 0 || (unsigned)n + 1 >= room)
        copy->text[copy->used] = '\0'; /* it does not fit */
    else
        copy->used += (unsigned)n;
    if (copy->used > 0 && copy->text[copy->used - 1] != '\n' && copy->used + 1 < LOG_COPY_SIZE)
        memcpy(copy->text + copy->used++, "\n", 2);
}

/* Writes a line, and never waits for the log's reader. poll() tells of a pipe that it has room for PIPE_BUF
 * bytes; another process can fill the pipe in between. False: there is no room. */
static bool write_line(const char *line, size_t size) {
    ssize_t n = send(STDERR_FILENO, line, size, MSG_DONTWAIT | MSG_NOSIGNAL); /* the journal's is a socket */

    if (n < 0 && errno == ENOTSOCK) {
        struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
        if (poll(&room, 1, 0) == 0)
            return false;
        n = write(STDERR_FILENO, line, size);
    }
    return n >= 0 || errno != EAGAIN; /* else no reader is left */
}

/* True: the journal reads stderr. The variable names the device and the inode of the journal's socket; a
 * program passes it on to its children even if it gives them another stderr (systemd.exec(5)). */
static bool session_log_reads(void) {
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat status;

    return stream != NULL && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

/* The time of day as in ISO 8601, in the local time zone: "2026-03-01T09:30:00.250+01:00". */
static size_t put_time(char *line, size_t size) {
    struct timespec now;
    struct tm local = {0};

    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    size_t used = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &local);
    long minutes = labs(local.tm_gmtoff) / 60;
    return used + (size_t)snprintf(line + used, size - used, ".%03ld%c%02ld:%02ld", now.tv_nsec / 1000000,
                                   local.tm_gmtoff < 0 ? '-' : '+', minutes / 60, minutes % 60);
}

/* The beginning of a line. The journal has the time and the daemon's name by itself. */
static size_t put_prefix(char *line, size_t size, enum log_level level) {
    static const char priorities[] = {'3', '4', '6', '7'};

    if (session_log_reads())
        return (size_t)snprintf(line, size, "<%c>", priorities[level]);
    size_t used = put_time(line, size);
    return used + (size_t)snprintf(line + used, size - used, " gpupoold: %s: ", level_names[level]);
}

/* Says how many messages are missing. False: there is no room for that either. */
static bool tell_lost_locked(void) {
    char line[128];
    size_t used = put_prefix(line, sizeof line, LOG_LEVEL_WARNING);

    used += (size_t)snprintf(line + used, sizeof line - used, "nobody read the log: it lacks %s here\n",
                             COUNT_TEXT(n_lost, "message"));
    if (!write_line(line, used))
        return false;
    n_lost = 0;
    return true;
}

void log_message(enum log_level level, const char *format, ...) {
    int saved = errno;
    char line[2048];
    va_list arguments;

    if (thread_copy != NULL && level <= LOG_LEVEL_WARNING) {
        va_start(arguments, format);
        copy_line(thread_copy, format, arguments);
        va_end(arguments);
    }
    if (level > log_level)
        return;
    size_t begin = put_prefix(line, sizeof line, level), used = begin;
    va_start(arguments, format);
    int n = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    used = n < 0 || used + (size_t)n > sizeof line - 2 ? sizeof line - 2 : used + (size_t)n;
    /* Names of processes and paths come from other users: nothing of them may steer the reader's terminal, or
     * look like a line of its own. */
    utf8_make_plain(line + begin, used - begin);
    line[used++] = '\n';
    pthread_mutex_lock(&lock);
    if ((n_lost > 0 && !tell_lost_locked()) || !write_line(line, used))
        n_lost++;
    pthread_mutex_unlock(&lock);
    errno = saved;
}
