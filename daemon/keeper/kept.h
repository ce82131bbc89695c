/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_KEEPER_KEPT_H
#define DAEMON_KEEPER_KEPT_H
/*
 * The descriptors that the keeper holds for the daemon, each with a name. It behaves as systemd's descriptor
 * store does: an open file that is there already keeps its first name, several descriptors may have one name,
 * and a removal closes all of a name. A descriptor goes by a removal alone, not by a hang-up.
 *
 * The names reach the next daemon in one string of its environment, which the kernel limits. So the table
 * takes no name that would make the string longer: a daemon whose environment is too large cannot start at
 * all.
 */
#include <stddef.h>
#include <sys/types.h>

#include "base/array.h"

/* The longest string of an environment, with its NUL: 32 pages (execve(2)). */
#define KEPT_STRING_MAX (128u << 10)
#define KEPT_NAMES      "LISTEN_FDNAMES="
/* The longest name that systemd takes. */
#define KEPT_NAME_MAX 255u
/* With names of four characters and their colons, 24,000 descriptors fill 120,000 bytes of KEPT_STRING_MAX. */
#define KEPT_MAX 24000u
/* The number of the first descriptor that is passed: SD_LISTEN_FDS_START. */
#define KEPT_FIRST_FD 3

struct kept_fd {
    char *name;
    int fd; /* close-on-exec, and no standard stream */
    dev_t device;
    ino_t inode; /* of fd: two descriptors of one open file have the same */
};

struct kept {
    struct kept_fd *all;
    size_t count, capacity;
    size_t limit;       /* of count */
    size_t names_bytes; /* of all names, with a byte behind each */
};

void kept_init(struct kept *kept, size_t limit);
void kept_deinit(struct kept *kept);

/* Takes fd. name: NULL, and a name that systemd would not take: "stored", as there. Returns 1; 0: the open file
 * is there already; or a negative errno, as those that follow. In the last two cases fd is closed.
 * -ENOSPC: there are as many descriptors as there may be.
 * -E2BIG: the names of all would not fit into an environment. */
int kept_add(struct kept *kept, int fd, const char *name);

/* Closes all of this name. Returns their number. */
size_t kept_remove(struct kept *kept, const char *name);

/* Sorts by the descriptors' numbers. Then writes the names as LISTEN_FDNAMES has them, the variable's name
 * included. Returns the string, which the caller frees; NULL: there is no memory. */
char *kept_list(struct kept *kept);

/* In a child that is about to execute a program, after kept_list(): gives the descriptors the numbers from
 * KEPT_FIRST_FD on, and has the program inherit them. Closes what has these numbers otherwise. Returns 0 or a
 * negative errno. */
int kept_pass(const struct kept *kept);

#endif
