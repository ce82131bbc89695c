/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_KEEPER_SPAWN_H
#define DAEMON_KEEPER_SPAWN_H
/* The start of a daemon: a child with the environment that systemd would give it, and the kept descriptors. */
#include <signal.h>
#include <sys/types.h>

struct kept;

struct spawn {
    const char *program; /* its path */
    char **arguments;
    const char *notify_path;
    struct kept *kept;
    unsigned deaths;           /* see KEEPER_DEATHS */
    const sigset_t *unblocked; /* signals that this process blocks, and the daemon does not */
};

/* The exit status of a child whose program cannot be executed. */
#define SPAWN_NO_PROGRAM 127

/* Returns the child's number, or a negative errno. */
pid_t spawn_run(const struct spawn *spawn);

#endif
