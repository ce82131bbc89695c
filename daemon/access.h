/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ACCESS_H
#define DAEMON_ACCESS_H
/*
 * Who may have what: makes the core's policy of the configuration. Names of users and groups are looked up
 * here, when the configuration takes effect and only then: the system's databases may lie on another machine,
 * and the loop waits for them. A name that nobody has allows nobody anything; the log says so.
 */
#include <sys/types.h>

struct daemon;

/* Sets the core's policy by the daemon's configuration, for the pools that it has. Returns 0 or -ENOMEM: then
 * the policy stays as it was. */
int access_apply(struct daemon *daemon);

/* The group of a name or number. Returns 0 or -ENOENT. */
int access_find_group(const char *name, gid_t *ret_gid);

#endif
