/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_PEER_H
#define DAEMON_LOOP_PEER_H
/* The process at the other end of a Unix socket, as the kernel attests it. */
#include <stdbool.h>

#include "daemon/core/types.h"

/* Fills in pid, uid and gid; the command is "?". Cheap. Returns 0 or a negative errno. */
int peer_identify(int fd, struct peer *ret_peer);

/* The peer's user, for the scheduler: the scope, or on the ordinary socket the uid. In a container a process
 * can take any uid. */
static inline uint64_t peer_turn_user(const struct peer *peer) {
    return peer->scope != SCOPE_ORDINARY ? (uint64_t)peer->scope << 32 : peer->uid;
}

/* Whether the peer's user has no number in the daemon's user namespace. To the daemon, all such users have
 * the same uid (the kernel's overflow uid, 65534), so they could not be kept apart. Where not all users have
 * a number, the overflow uid itself counts as one of these. Asks /proc once. */
bool peer_is_unmapped(const struct peer *peer);

/* Fills in the process's name, as ps shows it, where there still is one. */
void peer_read_command(struct peer *peer);

/* Fills in the groups that the peer was in when it connected, beside its gid; the caller's to drop. None
 * where the kernel does not tell (SO_PEERGROUPS, Linux 4.13). Returns 0 or a negative errno. */
int peer_read_groups(int fd, struct peer *peer);
void peer_drop_groups(struct peer *peer);

/* A pidfd of the peer: SO_PEERPIDFD (Linux 6.5), else pidfd_open() of its pid, which can name another process
 * only if the peer died and its pid was reused between connect and here. Returns 0, -ESRCH when the peer is
 * gone already, or a negative errno. */
int peer_open_pidfd(int fd, pid_t pid, int *ret_pidfd);

/* Whether the kernel keeps the process that connected in mind (SO_PEERPIDFD), so that a pidfd of it may be
 * asked for at any later time. Where not, the pid means less with all that passes since connect(). */
bool peer_is_remembered(int fd);

#endif
