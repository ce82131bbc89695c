/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_RUN_H
#define CLIENT_CTL_RUN_H
/*
 * gpupoolctl run: runs a program with libgpupool-preload.so, after it was seen that this can work. The
 * program takes this process's place, so there is nothing to clean up.
 */

/* The exit statuses of env(1): a program's own status can be told from them. */
enum run_exit {
    RUN_FAILED = 125, /* gpupoolctl itself: usage, no daemon, no library, a program that cannot be served */
    RUN_CANNOT_EXECUTE = 126,
    RUN_NOT_FOUND = 127,
};

/* argv[0] is "run". Returns what to exit with, if it returns. */
int run_program(int argc, char **argv);

/* Prints what "run --help" prints. */
void run_print_help(void);

#endif
