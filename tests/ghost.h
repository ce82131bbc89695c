/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GHOST_H
#define TESTS_GHOST_H
/* Finds the process that goes on writing when another is dead (GPUPOOL_SIM_LINGER_MS in gpu/sim/sim.h), so
 * that a test may say when a dead process's GPU work is over. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "base/cleanup.h"

/* For a test that ends the ghost itself: longer than any test. */
#define GHOST_LINGERS "600000"

/* The ghost of a process that lives and has imported something; 0: none, or it has not run yet. */
static inline pid_t find_ghost(pid_t parent) {
    DIR *processes = opendir("/proc");
    pid_t found = 0;

    if (processes == NULL)
        abort();
    for (struct dirent *entry = readdir(processes); entry != NULL && found == 0; entry = readdir(processes)) {
        char path[300], name[64];
        int pid, its_parent;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        _cleanup_(fclosep) FILE *file =
            entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? fopen(path, "re") : NULL;
        if (file != NULL && fscanf(file, "%d (%63[^)]) %*c %d", &pid, name, &its_parent) == 3 &&
            its_parent == parent && strcmp(name, "gpupool-ghost") == 0)
            found = pid;
    }
    closedir(processes);
    return found;
}

#endif
