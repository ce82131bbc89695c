/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_PRIVATE_DAEMON_H
#define CLIENT_API_PRIVATE_DAEMON_H
/*
 * Starting a daemon for one client: for programs and tests that run without a service. The daemon gets a
 * directory of its own (mode 0700) with its two sockets, has no parent here (it is forked twice) and ends
 * with its last client; it then removes sockets and directory itself. Until it says that it serves, they are
 * this side's to remove.
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

#endif
