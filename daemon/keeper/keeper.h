/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_KEEPER_KEEPER_H
#define DAEMON_KEEPER_KEEPER_H
/*
 * The keeper (gpupoold --keeper): one process with one thread, which starts the daemon, holds the descriptors
 * that the daemon stores, and starts the daemon again when it dies. It speaks systemd's protocol
 * (sd_notify(3), sd_listen_fds(3)), so the daemon does not know which of the two holds its descriptors.
 *
 * A daemon is started when the one before has ended and was waited for: there are never two. A message counts
 * if the daemon sent it, also shortly before its death.
 *
 * A keeper that starts where a daemon lost its own adopts that daemon. Its first child finds the daemon and asks it
 * (daemon/adoption_ask.h); the daemon stores all descriptors here, and is ready when all are here. The keeper sees its
 * end by a pidfd, since it is no child, and hears its exit status before. From then on all is as ever.
 *
 * The keeper drops no descriptor by itself. It ends in these cases:
 * - the daemon ends after a SIGTERM or SIGINT that the keeper forwarded, or either comes while no daemon runs
 *   (the sockets' files stay then);
 * - the daemon ends by itself with status 0: it does so only when it was told to;
 * - the very first daemon ends by itself before it is ready, such as by a mistake in the configuration.
 *   Nothing is lost then.
 * Its exit status is the daemon's, or 128 and the number of the signal that killed the daemon.
 */
struct keeper_options {
    /* The arguments of the daemon with its name in front, and of the keeper. Both end with a NULL. Borrowed. */
    char **daemon_arguments, **keeper_arguments;
    int ready_fd; /* gets a byte once a daemon is ready; -1: none. Taken */
};

/* The exit status of a daemon that is to be started again because an operator said so. */
#define KEEPER_RESTART_STATUS 75
/* The exit status of a child that found a daemon alive, and has the keeper hold it: the daemon's process is the one
 * that the child named with MAINPID=. */
#define KEEPER_ADOPTED_STATUS 76
/* "KEEPER_STATUS=NUMBER" in a daemon's message: the status that it is about to exit with. */
#define KEEPER_STATUS "EXIT_STATUS"

/* In the environment of a daemon: how many daemons before it died in a row before they were ready. */
#define KEEPER_DEATHS "GPUPOOL_DEATHS_BEFORE_READY"

/* Returns the exit status. */
int keeper_run(const struct keeper_options *options);

#endif
