/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_PRIVATE_DAEMON_H
#define CLIENT_API_PRIVATE_DAEMON_H
/*
 * Starting a daemon for one client, or for a process and its children: for programs and tests that run
 * without a service. The daemon gets a directory of its own (mode 0700) with its two sockets, has no parent
 * here (it is forked twice) and ends with its last client, of whichever process; it then removes sockets and
 * directory itself. Until it says that it serves, they are this side's to remove.
 *
 * The daemon gets --ready-fd N. It has to write one byte "1" to N when it serves, and close it; or close
 * it.
 */
#include <stdint.h>

/* Starts a daemon and waits until it serves. program and arguments as in struct gpupool_options, both may be
 * NULL. Returns 0 and its socket's path, owned by the caller (free), or INVALID, NO_MEMORY, CONNECT,
 * TIMED_OUT; then no process and no file is left behind. Thread-safe. */
int private_daemon_start(const char *program, const char *const *arguments, uint64_t deadline_ns,
                         char **ret_socket_path);

/* Likewise, at a path in a directory that the caller has made and locked, with the program and the arguments
 * of the environment. On failure the directory is removed. */
int private_daemon_start_at(const char *socket_path, uint64_t deadline_ns);

/* Finds the private daemon of this process and its children, and starts it where none serves. It is at
 * private_daemon_path(), so processes that have the same path have the same daemon. A lock on the daemon's
 * directory orders processes that start it and a daemon that ends. Returns as private_daemon_start(). The
 * daemon may end before the caller connects: then the caller calls again. */
int private_daemon_join(uint64_t deadline_ns, char **ret_socket_path);

/* The path of the data socket of that daemon, whether it runs or not: $GPUPOOL_PRIVATE_SOCKET, which a parent
 * has handed on; else a path of this process, chosen once, which forked children have as well. NULL: there is
 * no directory for it. Lives as long as the process or the variable. Thread-safe. */
const char *private_daemon_path(void);

#endif
