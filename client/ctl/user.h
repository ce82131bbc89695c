/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_USER_H
#define CLIENT_CTL_USER_H
/*
 * Users as people read them. The daemon tells their numbers: a name service can be slow, and the daemon waits
 * for none. This program looks the names up.
 */
#include <stdint.h>

/* A uid of the kernel's that stands for none. */
#define USER_NONE UINT64_C(4294967295)

/* "alice (1000)"; the number alone where it has no name; "-" for USER_NONE. Borrowed until the next call. Not
 * thread-safe. */
const char *user_text(uint64_t uid);

/* The uid of a user who is named, or whose number is given. Returns 0 or -ENOENT. */
int user_find(const char *user, uint64_t *ret_uid);

#endif
