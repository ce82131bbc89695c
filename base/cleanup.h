/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_CLEANUP_H
#define BASE_CLEANUP_H
/*
 * Scope-bound ownership: a descriptor or a heap object that a function made is given up on every way out,
 * unless take_fd() or take_ptr() handed it on. -1 is the empty descriptor, NULL the empty pointer.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(function)                                                                                  \
    __attribute__((cleanup(function), unused)) /* clang: some are only begun and ended */

/* Closes a descriptor and keeps errno; accepts -1. Returns -1, so that `fd = close_fd(fd)` leaves it
 * empty. */
static inline int close_fd(int fd) {
    if (fd >= 0) {
        int saved = errno;
        close(fd);
        errno = saved;
    }
    return -1;
}

static inline void close_fdp(int *fd) {
    *fd = close_fd(*fd);
}

static inline void freep(void *pointer) {
    free(*(void **)pointer);
}

static inline void fclosep(FILE **file) {
    if (*file != NULL)
        fclose(*file);
}

static inline void closedirp(DIR **directory) {
    if (*directory != NULL)
        closedir(*directory);
}

/* Moves a descriptor out of a variable and leaves the variable empty. */
static inline int take_fd(int *fd) {
    int taken = *fd;
    *fd = -1;
    return taken;
}

/* Moves a pointer out of a variable and leaves the variable empty. */
#define take_ptr(pointer)                                                                                    \
    __extension__({                                                                                          \
        __typeof__(*(pointer)) taken_ = *(pointer);                                                          \
        *(pointer) = NULL;                                                                                   \
        taken_;                                                                                              \
    })

#endif
