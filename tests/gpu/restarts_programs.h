/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_RESTARTS_PROGRAMS_H
#define TESTS_GPU_RESTARTS_PROGRAMS_H
/*
 * The builds that a run of the program restarts takes in turn: the daemons of two, and the client libraries of several.
 * Zeroed, it is this build alone.
 *
 * The keeper starts the file to which a link leads. The link leads to the one program and to the other in turn. A keeper
 * that executes itself becomes that program, too.
 */
#include <stdbool.h>
#include <sys/types.h>

struct restarts_programs {
    const char *other_daemon; /* NULL: there is none */
    const char *libraries;    /* folders with commas between; "-": that of this build. NULL: that alone */
    const char *daemons[2];
    char link[128];
    unsigned turn;
};

/* Makes the link in the folder, and sets $GPUPOOL_DAEMON to it. Returns whether that succeeded. */
bool restarts_programs_begin(struct restarts_programs *programs, const char *folder);

/* The link leads to the other program. Returns whether that succeeded. */
bool restarts_programs_turn(struct restarts_programs *programs);

/* Whether the process has the program that the link leads to. */
bool restarts_programs_run(const struct restarts_programs *programs, pid_t pid);

/* A process that this one executes next has the library of that number, of those that there are. */
void restarts_programs_choose(const struct restarts_programs *programs, unsigned number);

#endif
