/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_USERS_H
#define DAEMON_LOOP_USERS_H
/*
 * Users and groups as a configuration writes them: by name or by number. A name is looked up in the system's
 * database, which can lie on another machine: only at the start, and on a thread that may wait.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Reads an id that is written as a number. Returns false where it is none. */
bool users_parse_id(const char *name, uint32_t *ret_id);

/* Both return 0 or -ENOENT. */
int users_find_user(const char *name, uid_t *ret_uid);
int users_find_group(const char *name, gid_t *ret_gid);

#endif
