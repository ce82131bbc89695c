/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/restarts_programs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* In one step: the keeper may look at any moment. */
static bool lead(const struct restarts_programs *programs, const char *program) {
    char fresh[sizeof programs->link + 8];

    snprintf(fresh, sizeof fresh, "%s.fresh", programs->link);
    return symlink(program, fresh) == 0 && rename(fresh, programs->link) == 0;
}

bool restarts_programs_begin(struct restarts_programs *programs, const char *folder) {
    if (programs->other_daemon == NULL)
        return true;
    programs->daemons[0] = realpath(getenv("GPUPOOL_DAEMON"), NULL);
    programs->daemons[1] = realpath(programs->other_daemon, NULL);
    snprintf(programs->link, sizeof programs->link, "%.100s/gpupoold", folder);
    return programs->daemons[0] != NULL && programs->daemons[1] != NULL &&
           lead(programs, programs->daemons[0]) && setenv("GPUPOOL_DAEMON", programs->link, 1) == 0;
}

bool restarts_programs_turn(struct restarts_programs *programs) {
    if (programs->other_daemon == NULL)
        return true;
    programs->turn ^= 1;
    return lead(programs, programs->daemons[programs->turn]);
}

bool restarts_programs_run(const struct restarts_programs *programs, pid_t pid) {
    struct stat wanted, found;
    char path[64];

    if (programs->other_daemon == NULL)
        return true;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    return stat(path, &found) == 0 && stat(programs->link, &wanted) == 0 && found.st_dev == wanted.st_dev &&
           found.st_ino == wanted.st_ino;
}

void restarts_programs_choose(const struct restarts_programs *programs, unsigned number) {
    const char *all = programs->libraries;
    unsigned n = 1;
    char folder[256];

    if (all == NULL)
        return;
    for (const char *comma = all; (comma = strchr(comma, ',')) != NULL; comma++)
        n++;
    for (number %= n; number > 0; number--)
        all = strchr(all, ',') + 1;
    snprintf(folder, sizeof folder, "%.*s", (int)strcspn(all, ","), all);
    if (strcmp(folder, "-") != 0)
        setenv("LD_LIBRARY_PATH", folder, 1);
}
