/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_HIGH_FD_H
#define BASE_HIGH_FD_H
/*
 * Descriptors of the library are never 0 to 2. A program may run with these closed, and what any part of it
 * prints would go to the daemon, into an eventfd or into memory of a pool. Each call that makes or receives a
 * descriptor passes its result through high_fd(). A program of this project fills 0 to 2 at its start
 * instead.
 */
#include <fcntl.h>
#include <unistd.h>

#include "base/cleanup.h"

/* Moves a new descriptor (-1: none) to a number above those of the standard streams. Returns the descriptor,
 * which is close-on-exec; or -1 with errno: then fd is closed. */
static inline int high_fd(int fd) {
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close_fd(fd);
    return moved;
}

/* Moves both descriptors of a pair. Returns 0, or -1 with errno: then both are closed. */
static inline int high_fds(int fds[static 2]) {
    fds[0] = high_fd(fds[0]);
    fds[1] = high_fd(fds[1]);
    if (fds[0] >= 0 && fds[1] >= 0)
        return 0;
    fds[0] = close_fd(fds[0]);
    fds[1] = close_fd(fds[1]);
    return -1;
}

/* Opens /dev/null for each standard stream that is closed. A program that this one executes finds them closed
 * again. mode: O_RDWR; or O_RDONLY: what is printed there fails, as to a stream that is closed. Returns 0, or
 * -1 with errno. */
static inline int standard_streams_fill(int mode) {
    for (;;) {
        int fd = open("/dev/null", mode | O_CLOEXEC);
        if (fd < 0)
            return -1;
        if (fd > STDERR_FILENO) {
            close_fd(fd);
            return 0;
        }
    }
}

#endif
