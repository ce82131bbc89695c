/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_DESCRIPTORS_H
#define DAEMON_LOOP_DESCRIPTORS_H
/*
 * The daemon's last descriptors are for its operator. Clients get none of the last DESCRIPTORS_KEPT that
 * RLIMIT_NOFILE allows, so that root can still connect to the admin socket, and look, when clients have used
 * up all others. The kernel gives the lowest number that is free: a descriptor with one of the last numbers
 * says that all below are in use.
 *
 * Of the others, sessions, segments and pages of channels have shares. So segments and channels leave sessions
 * theirs, and the daemon promises no more sessions than it has descriptors for.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "base/cleanup.h"

#define DESCRIPTORS_KEPT 16

/* Raises the process's limit of descriptors to the hard one. Returns the limit then; 0: it is not known. */
uint64_t descriptors_raise(void);

struct descriptor_shares {
    uint32_t sessions; /* as many as are wanted, or fewer */
    uint32_t segments; /* that take a descriptor each */
    uint32_t channel_pages; /* that take two each: one to write, and one to read */
};

/* Shares the descriptors out. sessions: as many as the operator wants; they get up to one half of what the
 * daemon's own files leave, four descriptors each. Pages of channels get an eighth of
 * the rest, and segments the others. */
void descriptors_share(uint64_t descriptors, uint32_t sessions, unsigned n_pools,
                       struct descriptor_shares *ret_shares);

/* Of `limit` descriptors that the store holds, how many segments and pages of channels may have: what the daemon's own files and so many
 * sessions leave, which have up to one half. */
uint32_t descriptors_share_store(uint64_t limit, uint32_t sessions);

/* The pages of channels that may be stored, of so many descriptors that sessions leave in the store. */
uint32_t descriptors_share_stored_pages(uint32_t left);

/* Whether a new descriptor (-1: none) is one of the last. */
static inline bool descriptors_are_short(int fd) {
    struct rlimit limit;

    if (fd < DESCRIPTORS_KEPT || getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return false;
    return (rlim_t)fd + DESCRIPTORS_KEPT >= limit.rlim_cur;
}

/* Passes a new descriptor for a client on; closes one of the last, and returns -1 with EMFILE. */
static inline int descriptors_for_client(int fd) {
    if (!descriptors_are_short(fd))
        return fd;
    close_fd(fd);
    errno = EMFILE;
    return -1;
}

#endif
