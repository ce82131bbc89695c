/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_DIRECTORY_FIXTURE_H
#define TESTS_UNIT_DIRECTORY_FIXTURE_H
/* A directory for the files of a group of tests: make_directory and remove_directory are the group's setup
 * and teardown. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char directory[] = "/tmp/gpupool-test-XXXXXX";

static inline int make_directory(void **state) {
    (void)state;
    return mkdtemp(directory) == NULL ? -1 : 0;
}

static inline int remove_directory(void **state) {
    (void)state;
    return rmdir(directory); /* fails where a test left something */
}

/* A path in the directory. Lives until the second next call. */
static inline const char *path_of(const char *name) {
    static char paths[2][128];
    static unsigned turn;
    char *path = paths[turn++ % 2];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

#endif
