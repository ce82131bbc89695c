/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_DESCRIPTORS_H
#define DAEMON_LOOP_DESCRIPTORS_H
/*
 * The daemon's last descriptors are for its operator. Clients get none of the last DESCRIPTORS_KEPT that
 * RLIMIT_NOFILE allows, so that root can still connect to the admin socket, and look, when clients have used
 * up all others. The kernel gives the lowest number that is free: a descriptor with one of the last numbers
 * says that all below are in use.
 */
#include <stdbool.h>

#define DESCRIPTORS_KEPT 16

/* Whether a new descriptor (-1: none) is one of the last. */
bool descriptors_are_short(int fd);

/* Passes a new descriptor for a client on; closes one of the last, and returns -1 with EMFILE. */
int descriptors_for_client(int fd);

#endif
