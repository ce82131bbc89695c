/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_ENTRIES_H
#define TESTS_ENTRIES_H
/* How many names a directory of /proc has: descriptors, threads. */
#include <dirent.h>
#include <stdlib.h>

/* "." and ".." are counted, and for one's own descriptors the one that looks. Ends the test where there is no
 * such directory. */
static inline unsigned count_entries(const char *path) {
    DIR *directory = opendir(path);
    unsigned count = 0;

    if (directory == NULL)
        abort();
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

#endif
